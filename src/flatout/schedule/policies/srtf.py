"""SRTF: shortest remaining time first, by predicted durations; `srtf-oracle` knows them, as a bound.

Rule: the job with the shortest predicted remaining time, in octaves, preempts longer ones. A job that outlives its
prediction is predicted anew from those of its like that ran longer.
Source: Schrage 1968 (optimal for the mean on one machine); with predictions, Hu et al., SC'21.
When wrong: with poor predictions, as from a history without users; for wide jobs it counts time and not GPUs (see
qssf); and long jobs wait for as long as short ones keep coming.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from flatout.schedule.durations import Durations
from flatout.schedule.levels import MultilevelPolicy

if TYPE_CHECKING:
    from flatout.schedule.engine import Simulation


class ShortestRemaining(MultilevelPolicy):
    name: ClassVar[str] = "srtf"
    summary: ClassVar[str] = "shortest predicted remaining time first, preemptive"

    def attach(self, sim: Simulation) -> None:
        super().attach(sim)
        self.durations = Durations(sim.jobs)
        self.predicted: list[float] = [0.0] * len(sim.jobs)

    def submitted(self, job: int) -> None:
        if not self.predicted[job]:
            self.predicted[job] = self.durations.expected(job)
        super().submitted(job)

    def ended(self, job: int) -> None:
        self.durations.ended(job, self.sim.held_s[job], self.predicted[job])
        super().ended(job)

    def remaining(self, job: int) -> float:
        ran = self.sim.elapsed(job)
        if ran + 1e-3 < self.predicted[job]:
            return self.predicted[job] - ran
        return self.durations.remaining(job, ran)

    def level(self, job: int) -> int:
        return int(2 * math.log2(max(1.0, self.remaining(job))))

    def next_change(self, job: int) -> float:
        """The next half octave below, or the end of the prediction."""
        left = self.predicted[job] - self.sim.elapsed(job)
        if left > 2:
            return self.sim.now + left - 2 ** (math.ceil(2 * math.log2(left) - 1e-6) / 2 - 0.5) + 1e-3
        return self.sim.now + max(60.0, self.sim.elapsed(job) * 0.4)

    def notes(self) -> tuple[str, ...]:
        return (self.durations.error_text(),)


class ShortestRemainingOracle(ShortestRemaining):
    name: ClassVar[str] = "srtf-oracle"
    summary: ClassVar[str] = "the same, knowing all durations: a bound, no policy for a real cluster"
    is_oracle: ClassVar[bool] = True

    def remaining(self, job: int) -> float:
        sim = self.sim
        return sim.left[job] + sim.pending[job] - (sim.now - sim.started[job]) * (job in sim.running)

    def next_change(self, job: int) -> float:
        left = self.remaining(job)
        return (
            self.sim.now + left - 2 ** (math.ceil(2 * math.log2(left) - 1e-6) / 2 - 0.5) + 1e-3
            if left > 2
            else math.inf
        )

    def notes(self) -> tuple[str, ...]:
        return ("knows how long each job will run",)
