"""Finish-time fairness: the job that is furthest from the time it would end at with a fair share goes first.

Rule: rho = (time since submission + predicted remaining time) / predicted duration. Jobs run for a lease of an hour;
then those with the largest rho, in quarter octaves, are served first and stop others.
Source: Mahajan et al., Themis, NSDI'20 (without its auction: there is one bidder a job, and durations are predicted).
When wrong: it serves who waited, so the mean suffers; short jobs have a large rho soon and long ones never; predictions
from a poor history make rho a ranking by waiting time.
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
        self._waits: dict[int, None] = {}
        self._next_round = -math.inf

    def level(self, job: int) -> int:
        sim = self.sim
        predicted = max(60.0, self.predicted[job])
        rho = (sim.now - sim.submit[job] + self.remaining(job)) / predicted
        return -int(4 * math.log2(max(1e-3, rho)))

    def next_change(self, job: int) -> float:
        return self.sim.now + LEASE_S

    def submitted(self, job: int) -> None:
        super().submitted(job)
        self._waits[job] = None

    def decide(self) -> None:
        now = self.sim.now
        if now >= self._next_round:
            for job in [*self._waits]:
                if self.sim.status[job] != WAITING:
                    del self._waits[job]
                elif (level := self.level(job)) != self.levels[job]:
                    self._queue(job, level)
            self._next_round = now + LEASE_S
            if self._waits:
                self.sim.wake(self._next_round)
        super().decide()
