"""The event-driven engine against a naive one that shares no code with it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.schedule import naive

from flatout.schedule import rigid
from flatout.schedule.cluster import uniform
from flatout.schedule.engine import Simulation
from flatout.schedule.jobs import Assumptions, ClusterJob
from flatout.schedule.policies.easy import Easy, EasyOracle
from flatout.schedule.policies.fifo import Fifo
from flatout.schedule.policies.priority import Priority
from flatout.schedule.policies.shortest import ShortestFirstOracle
from flatout.schedule.policies.skip import Skip
from flatout.schedule.policies.srtf import ShortestRemainingOracle
from flatout.schedule.policy import Policy

NODES, CAPACITY = 3, 4
histories = st.lists(
    st.tuples(st.integers(0, 40), st.sampled_from([1, 1, 1, 2, 3, 4, 5, 8, 12]), st.integers(1, 30)),
    min_size=1,
    max_size=25,
).map(sorted)
# Submission, GPUs and thousandths of each, duration, and how much longer the user's limit is.
REQUESTS = [(1, 200), (1, 300), (1, 500), (1, 700), (1, 1000), (2, 1000), (3, 1000), (4, 1000), (6, 1000)]
shared_histories = st.lists(
    st.tuples(st.integers(0, 25), st.sampled_from(REQUESTS), st.integers(1, 30), st.sampled_from([0, 0, 5, 20])),
    min_size=1,
    max_size=25,
).map(sorted)
SharedHistory = list[tuple[int, tuple[int, int], int, int]]


def finish(jobs: list[tuple[int, int, int]], policy: Policy) -> list[float]:
    history = [ClusterJob(submit_s=float(s), num_gpus=g, duration_s=float(d)) for s, g, d in jobs]
    return Simulation(history, uniform(NODES, CAPACITY), policy).run().finish_s


def naive_finish(jobs: list[tuple[int, int, int]], policy: object) -> list[int]:
    made = [naive.make_job(number, *job) for number, job in enumerate(jobs)]
    return naive.Naive(made, NODES, CAPACITY).run(policy)


def finish_shared(jobs: SharedHistory, nodes: int, policy: Policy) -> list[float]:
    history = [
        ClusterJob(
            submit_s=float(submit),
            num_gpus=gpus,
            gpu_share=milli / 1000,
            duration_s=float(duration),
            limit_s=float(duration + longer),
        )
        for submit, (gpus, milli), duration, longer in jobs
    ]
    return Simulation(history, uniform(nodes, CAPACITY), policy).run().finish_s


def naive_finish_shared(jobs: SharedHistory, nodes: int, policy: object, *, with_limits: bool = False) -> list[int]:
    made = [
        naive.make_job(number, submit, gpus, duration, milli=milli, limit=duration + longer * with_limits)
        for number, (submit, (gpus, milli), duration, longer) in enumerate(jobs)
    ]
    return naive.Naive(made, nodes, CAPACITY).run(policy)


@settings(max_examples=60, deadline=None)
@given(histories)
def test_fifo_ends_each_job_when_a_tick_simulator_does(jobs: list[tuple[int, int, int]]) -> None:
    assert finish(jobs, Fifo()) == naive_finish(jobs, naive.fifo)


@settings(max_examples=150, deadline=None)
@given(histories)
def test_easy_ends_each_job_when_a_tick_simulator_does(jobs: list[tuple[int, int, int]]) -> None:
    assert finish(jobs, EasyOracle()) == naive_finish(jobs, naive.Easy())


@settings(max_examples=150, deadline=None)
@given(shared_histories, st.integers(2, 3))
def test_easy_with_shares_ends_each_job_when_a_tick_simulator_does(jobs: SharedHistory, nodes: int) -> None:
    assert finish_shared(jobs, nodes, EasyOracle()) == naive_finish_shared(jobs, nodes, naive.Easy())


@settings(max_examples=150, deadline=None)
@given(shared_histories, st.integers(2, 3))
def test_easy_with_limits_ends_each_job_when_a_tick_simulator_does(jobs: SharedHistory, nodes: int) -> None:
    expected = naive_finish_shared(jobs, nodes, naive.Easy(), with_limits=True)
    assert finish_shared(jobs, nodes, Easy()) == expected


@pytest.mark.parametrize(
    ("policy", "same"),
    [(Fifo, naive.fifo), (Skip, naive.skip), (ShortestFirstOracle, naive.shortest_first)],
)
@settings(max_examples=60, deadline=None)
@given(shared_histories, st.integers(2, 3))
def test_shares_end_when_a_tick_simulator_ends_them(
    policy: type[Policy], same: object, jobs: SharedHistory, nodes: int
) -> None:
    assert finish_shared(jobs, nodes, policy()) == naive_finish_shared(jobs, nodes, same)


@settings(max_examples=60, deadline=None)
@given(histories)
def test_the_quick_way_for_fifo_gives_the_same_segments(jobs: list[tuple[int, int, int]]) -> None:
    history = [ClusterJob(submit_s=float(s), num_gpus=g, duration_s=float(d)) for s, g, d in jobs]
    slow = Simulation(history, uniform(NODES, CAPACITY), Fifo()).run()
    quick = rigid.fifo(history, uniform(NODES, CAPACITY))
    assert sorted(quick.log) == sorted(slow.log)
    assert quick.finish_s == slow.finish_s


@settings(max_examples=60, deadline=None)
@given(histories)
def test_shortest_first_ends_each_job_when_a_tick_simulator_does(jobs: list[tuple[int, int, int]]) -> None:
    assert finish(jobs, ShortestFirstOracle()) == naive_finish(jobs, naive.shortest_first)


class Retried(Priority):
    """Priorities, with attempts to preempt at every decision, as the tick simulator makes them."""

    retry_s = 0.0


class Aged(Retried):
    """The rules of the default policy about whom it stops and when, with small numbers and levels by priority."""

    protected_s = 3.0
    spares_wider = True
    largest_loss_s = 2.0
    ageing_s = 30.0
    quantum_s = 6.0

    def keeps_order(self, level: int) -> bool:
        return False


prioritised = st.lists(
    st.tuples(st.integers(0, 40), st.sampled_from(REQUESTS), st.integers(1, 30), st.integers(0, 3)),
    max_size=20,
    min_size=1,
).map(sorted)


@pytest.mark.parametrize("policy", [Retried, Aged])
@settings(max_examples=120, deadline=None)
@given(prioritised, st.integers(2, 3), st.integers(0, 4), st.integers(1, 8))
def test_stopped_jobs_and_shares_end_when_a_tick_simulator_ends_them(
    policy: type[Retried], jobs: SharedHistory, nodes: int, restart: int, every: int
) -> None:
    """Who is stopped for whom, restarts, lost work, protection, and turns of jobs that have waited for long."""
    history = [
        ClusterJob(
            submit_s=float(submit), num_gpus=gpus, gpu_share=milli / 1000, duration_s=float(duration), priority=priority
        )
        for submit, (gpus, milli), duration, priority in jobs
    ]
    charged = Assumptions(checkpoint_s=float(every), restart_s=float(restart))
    run = Simulation(history, uniform(nodes, CAPACITY), policy(), assumptions=charged).run()
    made = [
        naive.make_job(number, submit, gpus, duration, milli=milli, priority=priority)
        for number, (submit, (gpus, milli), duration, priority) in enumerate(jobs)
    ]
    rules: dict[str, int] = {"keeps_order": True}
    if policy is Aged:
        rules = {"protected": 3, "loss": 2, "ageing": 30, "quantum": 6, "spares_wider": True}
    same = naive.ByLevel(lambda job: -job["priority"], **rules)  # type: ignore[arg-type]
    assert run.finish_s == naive.Naive(made, nodes, CAPACITY, restart, every).run(same)


class Exact(ShortestRemainingOracle):
    """SRTF by the very remaining time, in place of half octaves: levels are whole seconds."""

    retry_s = 0.0

    def level(self, job: int) -> int:
        return round(self.remaining(job))

    def next_change(self, job: int) -> float:
        return self.sim.now + 1.0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.just(1), st.integers(1, 30)), min_size=1, max_size=12).map(sorted),
    st.integers(0, 4),
    st.integers(1, 8),
)
def test_srtf_on_one_gpu_charges_restarts_as_a_tick_simulator_does(
    jobs: list[tuple[int, int, int]], restart: int, every: int
) -> None:
    history = [ClusterJob(submit_s=float(s), num_gpus=g, duration_s=float(d)) for s, g, d in jobs]
    charged = Assumptions(checkpoint_s=float(every), restart_s=float(restart))
    run = Simulation(history, uniform(1, 1), Exact(), assumptions=charged).run()
    made = [naive.make_job(number, *one) for number, one in enumerate(jobs)]
    expected = naive.Naive(made, 1, 1, restart, every).run(naive.shortest_remaining_first)
    assert run.finish_s == pytest.approx(expected, abs=0.01)
