"""The conformance class finds what it is for: policies that peek, cheat, or forget a job."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from flatout.schedule.cluster import Cluster
from flatout.schedule.engine import Simulation
from flatout.schedule.jobs import ClusterJob
from flatout.schedule.levels import MultilevelPolicy
from flatout.schedule.policies.fifo import Fifo
from flatout.schedule.policies.las import LeastAttainedService
from flatout.schedule.policies.shortest import ShortestFirst
from flatout.schedule.policy import Policy
from flatout.testing.policies import PolicyConformance


class Peeks(ShortestFirst):
    """Knows durations and doesn't say so."""

    def order(self, job: int) -> float:
        return self.sim.work_left_s[job]


class Forgets(Fifo):
    """One job is never queued."""

    def submitted(self, job: int) -> None:
        if job != 7:
            super().submitted(job)


class StopsForFree(LeastAttainedService):
    """Takes back the cost of each stop."""

    def submitted(self, job: int) -> None:
        self.sim.start_overhead_s[job] = 0.0
        super().submitted(job)


class GivesTwice(MultilevelPolicy):
    """Hands out GPUs that it didn't take from the pool."""

    preempts = False

    def level(self, job: int) -> int:
        return 0

    def attach(self, sim: Simulation) -> None:
        super().attach(sim)
        sim.pool.release = lambda place, gpus: None  # type: ignore[method-assign]

    def allocate(self, job: int) -> int:
        return 0


def conformance(policy: type[Policy]) -> PolicyConformance:
    class Tested(PolicyConformance):
        def make(self, jobs: Sequence[ClusterJob], cluster: Cluster) -> Policy:
            return policy()

    return Tested()


def test_a_policy_that_peeks_is_found() -> None:
    with pytest.raises(AssertionError):
        conformance(Peeks).test_decisions_do_not_rest_on_durations_that_nobody_knows()


def test_a_forgotten_job_is_found() -> None:
    with pytest.raises(AssertionError, match="left 1 jobs waiting forever"):
        conformance(Forgets).test_every_job_ends_once_and_not_before_it_can()


def test_stops_for_free_are_found() -> None:
    with pytest.raises(AssertionError):
        conformance(StopsForFree).test_restarts_and_lost_work_are_charged()


def test_gpus_given_twice_are_found() -> None:
    checked = conformance(GivesTwice)
    run = checked.run_of(checked.jobs(1))
    checked.runs = lambda: [run]  # type: ignore[method-assign]
    with pytest.raises(AssertionError):
        checked.test_no_gpu_is_given_twice()
