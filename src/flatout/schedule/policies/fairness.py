"""Finish-time fairness: the job that is furthest behind its fair-share completion time comes first.

Rule: rho = (time since submission + predicted remaining time) / predicted duration. Jobs run for a lease of an hour;
then those with the largest rho, in quarter octaves, are served first and stop others.
Source: Mahajan et al., Themis, NSDI'20 (without its auction: each job is its own bidder, and durations are predicted).
When wrong: it serves the jobs that waited, so the mean suffers; short jobs soon have a large rho, long ones never do;
with predictions from a poor history, rho ranks by waiting time only.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from flatout.schedule.engine import WAITING
from flatout.schedule.policies.srtf import ShortestRemaining

if TYPE_CHECKING:
    from flatout.schedule.engine import Simulation

LEASE_S = 3600.0


class FinishTimeFairness(ShortestRemaining):
    name: ClassVar[str] = "fairness"
    summary: ClassVar[str] = "furthest from its fair finish time first, in leases of an hour (Themis)"
    protected_s: ClassVar[float] = LEASE_S

    def attach(self, sim: Simulation) -> None:
        super().attach(sim)
        self._waiting_jobs: dict[int, None] = {}
        self._next_round = -math.inf

    def level(self, job: int) -> int:
        sim = self.sim
        predicted_s = max(60.0, self.predicted[job])
        in_system_s = sim.now - sim.submit_s[job]
        rho = (in_system_s + self.remaining(job)) / predicted_s
        return -int(4 * math.log2(max(1e-3, rho)))

    def next_change(self, job: int) -> float:
        return self.sim.now + LEASE_S

    def submitted(self, job: int) -> None:
        super().submitted(job)
        self._waiting_jobs[job] = None

    def decide(self) -> None:
        now = self.sim.now
        if now >= self._next_round:
            self._update_waiting_levels()
            self._next_round = now + LEASE_S
            if self._waiting_jobs:
                self.sim.wake(self._next_round)
        super().decide()

    def _update_waiting_levels(self) -> None:
        """Queue again the waiting jobs whose level has changed."""
        for job in [*self._waiting_jobs]:
            if self.sim.status[job] != WAITING:
                del self._waiting_jobs[job]
                continue
            level = self.level(job)
            if level != self.levels[job]:
                self._queue(job, level)
