"""SRTF: shortest remaining time first, by predicted durations; `srtf-oracle`, a bound, knows the durations.

Rule: the job with the shortest predicted remaining time, in half octaves, preempts longer ones. A job that outlives its
prediction is predicted again, from similar jobs that ran longer.
Source: Schrage 1968 (optimal for the mean on one machine); with predictions, Hu et al., SC'21.
When wrong: with poor predictions, such as from a history without users; for wide jobs, because it counts time, not GPUs
(see qssf); and long jobs wait for as long as short ones keep coming.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from flatout.schedule.durations import Durations
from flatout.schedule.levels import MultilevelPolicy

if TYPE_CHECKING:
    from flatout.schedule.engine import Simulation

_LEAST_S = 2.0  # a shorter remaining time does not change level


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
        """Return the time when the remaining time falls to the next half octave, or the prediction ends."""
        elapsed = self.sim.elapsed(job)
        left = self.predicted[job] - elapsed
        if left > _LEAST_S:
            return self.sim.now + left - _half_octave_below(left) + 1e-3
        return self.sim.now + max(60.0, elapsed * 0.4)

    def notes(self) -> tuple[str, ...]:
        return (self.durations.error_text(),)


def _half_octave_below(time_s: float) -> float:
    """Return the largest remaining time whose level is lower than that of `time_s`."""
    half_octave = math.ceil(2 * math.log2(time_s) - 1e-6) / 2
    return float(2 ** (half_octave - 0.5))


class ShortestRemainingOracle(ShortestRemaining):
    name: ClassVar[str] = "srtf-oracle"
    summary: ClassVar[str] = "the same, with all durations known: a bound, not a policy for a real cluster"
    is_oracle: ClassVar[bool] = True

    def remaining(self, job: int) -> float:
        sim = self.sim
        until_done = sim.work_left_s[job] + sim.start_overhead_s[job]
        if job in sim.running:
            until_done -= sim.now - sim.started_s[job]
        return until_done

    def next_change(self, job: int) -> float:
        left = self.remaining(job)
        if left <= _LEAST_S:
            return math.inf
        return self.sim.now + left - _half_octave_below(left) + 1e-3

    def notes(self) -> tuple[str, ...]:
        return ("knows how long each job will run",)
