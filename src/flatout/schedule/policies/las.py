"""LAS: least attained service first, in queues by GPU-seconds (Tiresias' discretised 2D-LAS).

Rule: a new job stands in the first queue; when it has attained 1, 8, 64 and 512 GPU-hours it moves one queue down.
Earlier queues preempt later ones; within a queue the earlier submission is first, and a job that ran isn't stopped for
its like. Source: Gu et al., Tiresias, NSDI'19. Needs no durations.
When wrong: where restarts are expensive, or most jobs are alike, so that each is stopped for nothing; and long jobs
wait for as long as short ones keep coming.
"""

from __future__ import annotations

import math
from typing import ClassVar

from flatout.schedule.jobs import HOUR
from flatout.schedule.levels import MultilevelPolicy

THRESHOLDS_GPU_S = (1 * HOUR, 8 * HOUR, 64 * HOUR, 512 * HOUR)


class LeastAttainedService(MultilevelPolicy):
    name: ClassVar[str] = "las"
    summary: ClassVar[str] = "least attained GPU-seconds first, preemptive (Tiresias)"

    def _attained(self, job: int) -> float:
        sim = self.sim
        return sim.attained[job] + (sim.now - sim.started[job]) * sim.size[job] * (job in sim.running)

    def level(self, job: int) -> int:
        attained = self._attained(job) + 1e-3
        return sum(attained >= threshold for threshold in THRESHOLDS_GPU_S)

    def next_change(self, job: int) -> float:
        attained = self._attained(job) + 1e-3
        further = [threshold for threshold in THRESHOLDS_GPU_S if threshold > attained]
        return self.sim.now + (further[0] - attained) / self.sim.size[job] + 2e-3 if further else math.inf
