"""A time limit stops a job at a step that all ranks learn of in time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from flatout.inside.identity import Identity
from flatout.inside.phases import stop
from flatout.inside.phases.consensus import TracePlan
from flatout.inside.phases.stop import StopCondition
from flatout.inside.settings import RecorderSettings, StopRule


def condition(
    state: Path,
    world_size: int,
    rank: int = 0,
    num_nodes: int = 1,
    *,
    rule: StopRule | None = None,
    backend: str = "gloo",
) -> StopCondition:
    identity = Identity(rank=rank, world_size=world_size, local_rank=rank, backend=backend, num_nodes=num_nodes)
    settings = RecorderSettings(recording=state, is_light=True, stop_after_s=4, stop_rule=rule)
    settings.state.mkdir(exist_ok=True, parents=True)
    return StopCondition(settings, identity, 0)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit has passed."""
    monkeypatch.setattr(stop, "_IMPORTED_S", stop._IMPORTED_S - 1000)


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize(
    ("world_size", "num_nodes", "step_s", "stops_before"),
    [
        (1, 1, 0.0, 1),  # alone: at once
        (2, 1, 0.0, None),  # after the first step, no step time is known
        (2, 1, 0.5, 1 + 4),  # two seconds ahead
        (2, 1, 0.3, 1 + 7),
        (2, 2, 0.5, 1 + 10),  # across nodes, five
    ],
)
def test_the_step_is_announced_once_a_step_time_is_known(
    tmp_path: Path, world_size: int, num_nodes: int, step_s: float, stops_before: int | None
) -> None:
    first = condition(tmp_path, world_size, num_nodes=num_nodes)
    first.look(1, step_s)
    assert first.step == stops_before
    if world_size > 1:
        other = condition(tmp_path, world_size, rank=1, num_nodes=num_nodes)
        other.look(2, step_s)
        assert other.step == stops_before


def test_a_trial_that_counts_its_steps_is_stopped_by_time_with_less_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ranks look after each step, and where a few steps of each epoch take far longer, many steps ahead is long."""
    monkeypatch.setattr(stop, "_IMPORTED_S", time.monotonic())
    rule = StopRule(min_steps=1000, max_steps=2000, relative_error=0.01)
    ranks = [condition(tmp_path, 2, rank, rule=rule, backend="nccl") for rank in (0, 1)]
    assert run_together(ranks, 0.1, sure_s=0.1, num_steps=20) == {}
    monkeypatch.setattr(stop, "_IMPORTED_S", stop._IMPORTED_S - 1000)
    for rank in (0, 1):
        ranks[rank]._next_look = 0.0
        ranks[rank].look(21, 0.1)
    assert [one.step for one in ranks] == [21 + 4, 21 + 4]


@pytest.mark.usefixtures("late")
def test_a_limit_that_passes_in_the_first_step_stops_all_ranks_at_the_same_step(tmp_path: Path) -> None:
    ranks = [condition(tmp_path, 2, rank) for rank in (0, 1)]
    step_of_rank = {}
    for following in range(1, 10):
        for rank in (1, 0):  # rank 1 looks just before rank 0 announces
            ranks[rank]._next_look = 0.0
            ranks[rank].look(following, 0.0 if following == 1 else 0.5)
            if rank not in step_of_rank and ranks[rank].is_due(following):
                step_of_rank[rank] = following
    assert step_of_rank == {0: 6, 1: 6}


def test_nothing_stops_before_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "_IMPORTED_S", time.monotonic())
    stop_condition = condition(tmp_path, 1)
    stop_condition.look(1, 0.5)
    assert stop_condition.step is None


def run_together(ranks: list[StopCondition], step_s: float, *, sure_s: float, num_steps: int = 400) -> dict[int, int]:
    """Let all ranks count steps from step 1 on; return the step before which each of them stops.

    Other ranks take their turn first, so they see an announcement of rank 0 only in the next step.
    """
    now = 0.0
    stopped: dict[int, int] = {}
    for one in ranks:
        one.agreed(TracePlan(settled=1, flops_step=1, start=None, num_steps=1))
    for ended in range(1, num_steps):
        now += step_s
        for rank in reversed(range(len(ranks))):
            ranks[rank].count(step_s * (1 + 0.001 * (ended % 3)))
            ranks[rank]._next_look = max(ranks[rank]._next_look - step_s, 0.0)  # as much time has passed
            ranks[rank].look(ended + 1, sure_s)
            if rank not in stopped and ranks[rank].is_due(ended + 1):
                stopped[rank] = ended + 1
        if len(stopped) == len(ranks):
            break
    return stopped


@pytest.mark.parametrize(
    ("backend", "num_nodes", "step_s", "num_counted"),
    [
        ("gloo", 1, 1.0, 5),  # announced two steps ahead, after the third
        ("nccl", 1, 1.0, 5),  # announced four steps ahead, after the first: hosts do not wait for collectives
        ("gloo", 1, 0.01, 34),  # 30 steps are 0.3 s, and of fewer than four steps no spread is known
        ("gloo", 2, 0.1, 34),  # three seconds across nodes
    ],
)
def test_all_ranks_stop_at_one_step_when_enough_steps_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, num_nodes: int, step_s: float, num_counted: int
) -> None:
    monkeypatch.setattr(stop, "_IMPORTED_S", time.monotonic())
    rule = StopRule(min_steps=5, max_steps=300, relative_error=0.01)
    ranks = [condition(tmp_path, 2, rank, num_nodes, rule=rule, backend=backend) for rank in (0, 1)]
    stopped = run_together(ranks, step_s, sure_s=step_s)
    assert stopped[0] == stopped[1]
    num_ahead = {"gloo": 2, "nccl": 4}[backend]
    expected = max(num_counted, 4 + num_ahead) if step_s == 1.0 else num_counted
    assert stopped[0] - 1 == expected
    assert {one.reason for one in ranks} == {"enough"}


def test_a_process_alone_stops_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "_IMPORTED_S", time.monotonic())
    alone = condition(tmp_path, 1, rule=StopRule(min_steps=5, max_steps=300, relative_error=0.01))
    assert run_together([alone], 0.01, sure_s=0.01) == {0: 6}


def test_a_fixed_number_of_steps_is_exact_and_a_worse_candidate_ends_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop, "_IMPORTED_S", time.monotonic())
    for limit_s, expected, reason in ((None, 41, "max"), (0.5, 7, "abandoned")):
        rule = StopRule(min_steps=40, max_steps=40, abandon_step_s=limit_s)
        ranks = [condition(tmp_path / str(expected), 2, rank, rule=rule) for rank in (0, 1)]
        assert run_together(ranks, 1.0, sure_s=1.0) == {0: expected, 1: expected}
        assert {one.reason for one in ranks} == {reason}


def test_steps_that_became_shorter_than_those_of_the_warm_up_get_more_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop, "_IMPORTED_S", time.monotonic())
    rule = StopRule(min_steps=5, max_steps=300, relative_error=0.01)
    ranks = [condition(tmp_path, 2, rank, rule=rule) for rank in (0, 1)]
    assert run_together(ranks, 0.01, sure_s=1.0) == {0: 35, 1: 35}


def test_no_rule_applies_outside_a_trial(tmp_path: Path) -> None:
    identity = Identity(rank=0, world_size=1, local_rank=0, backend=None, num_nodes=1)
    rule = StopRule(min_steps=1, max_steps=1)
    settings = RecorderSettings(recording=tmp_path, is_light=False, stop_rule=rule)
    assert not StopCondition(settings, identity, 0).is_asked
