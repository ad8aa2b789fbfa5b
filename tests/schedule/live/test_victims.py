"""Victims make room, none of them for nothing, and at a cost near the least possible."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st
from tests.schedule.live.made import cluster, node, pending, running

from flatout.schedule.live.victims import FreeCapacity, victims_for
from flatout.schedule.live.view import JobView


def lost(job: JobView) -> float:
    return job.lost_gpu_s(1_000_000.0)


@st.composite
def filled(draw: st.DrawFn) -> tuple[list[JobView], int, JobView]:
    """Running jobs on up to four nodes, and one that waits."""
    num_nodes = draw(st.integers(1, 4))
    free = {f"n{number}": 8 for number in range(num_nodes)}
    jobs = []
    for number in range(draw(st.integers(0, 6))):
        size = draw(st.sampled_from([1, 2, 4, 8]))
        on = [name for name in free if free[name] >= size][: draw(st.integers(1, 2))]
        if on:
            for name in on:
                free[name] -= size
            jobs.append(running(str(number), dict.fromkeys(on, size), ran_s=draw(st.integers(1, 1000))))
    return jobs, num_nodes, pending("99", nodes=draw(st.integers(1, num_nodes)), gpus=draw(st.sampled_from([1, 4, 8])))


@given(filled())
def test_victims_against_all_subsets(case: tuple[list[JobView], int, JobView]) -> None:
    jobs, num_nodes, job = case
    view = cluster(*jobs, *(node(f"n{number}") for number in range(num_nodes)))

    def fits_without(gone: tuple[JobView, ...]) -> bool:
        room = FreeCapacity(view)
        for each in gone:
            room.give(each)
        return room.placement(job) is not None

    if fits_without(()):
        assert FreeCapacity(view).placement(job) is not None
        return
    costs = [
        sum(map(lost, gone)) for size in range(len(jobs) + 1) for gone in combinations(jobs, size) if fits_without(gone)
    ]
    found = victims_for(job, FreeCapacity(view), jobs, lost)
    assert (found is None) == (costs == [])
    if found is not None:
        assert fits_without(tuple(found))
        assert not any(fits_without(tuple(each for each in found if each is not one)) for one in found)
        assert sum(map(lost, found)) <= 3 * min(costs)


def test_the_least_lost_work_is_chosen_and_a_checkpoint_counts() -> None:
    old = running("1", {"a": 8}, ran_s=5000)
    saved = running("2", {"b": 8}, ran_s=9000, last_checkpoint_unix_s=1_000_000.0 - 10)
    young = running("3", {"c": 8}, ran_s=60)
    view = cluster(old, saved, young, node("a"), node("b"), node("c"))
    assert victims_for(pending("9"), FreeCapacity(view), [old, saved, young], lost) == [saved]
    assert victims_for(pending("9"), FreeCapacity(view), [old, young], lost) == [young]


def test_nodes_that_cannot_be_used_are_left_out() -> None:
    jobs = [running(str(number), {name: 8}) for number, name in enumerate("abcd")]
    nodes = [
        node("a", is_usable=False),
        node("b", partitions=("other",)),
        node("c", is_reserved=True),
        node("d", features=("h100",)),
    ]
    room = FreeCapacity(cluster(*jobs, *nodes))
    assert victims_for(pending("9"), room, jobs, lost) == [jobs[3]]
    assert victims_for(pending("9", required_features="a100"), room, jobs, lost) is None
    assert victims_for(pending("9", required_features="h100|a100"), room, jobs, lost) is None  # not understood
    assert victims_for(pending("9", excluded_nodes=("d",)), room, jobs, lost) is None


def test_cpus_count_too() -> None:
    job = running("1", {"a": 4}, cpus_by_node={"a": 8})
    view = cluster(job, node("a", num_cpus=8))
    assert FreeCapacity(view).placement(pending("9", gpus=4, cpus=2)) is None
    assert FreeCapacity(view).placement(pending("9", gpus=4)) == {"a": 4}


def test_a_number_of_gpus_anywhere() -> None:
    jobs = [running("1", {"a": 8}, ran_s=10), running("2", {"b": 8}, ran_s=20), running("3", {"c": 8}, ran_s=5)]
    view = cluster(*jobs, node("a"), node("b"), node("c"))
    job = pending("9", gpus_per_node=None, num_gpus=12)
    assert {each.id for each in victims_for(job, FreeCapacity(view), jobs, lost) or ()} == {"1", "3"}
