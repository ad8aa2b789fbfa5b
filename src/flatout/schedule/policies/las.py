"""LAS: least attained service first, in queues by GPU-seconds (Tiresias' discretised 2D-LAS).

Rule: a new job is in the first queue; when it has attained 1, 8, 64 and 512 GPU-hours it moves one queue down. Earlier
queues preempt later ones; within a queue the earlier submission is first, and a running job isn't stopped for another
of the same queue. It needs no durations. Source: Gu et al., Tiresias, NSDI'19.
When wrong: if restarts are expensive, or most jobs are alike, so that stopping them gains nothing; and long jobs wait
for as long as short ones keep coming.
"""

from __future__ import annotations

import math
from typing import ClassVar

from flatout.schedule.jobs import HOUR
from flatout.schedule.levels import MultilevelPolicy

THRESHOLDS_GPU_S = (1 * HOUR, 8 * HOUR, 64 * HOUR, 512 * HOUR)
_ROUNDING_GPU_S = 1e-3


class LeastAttainedService(MultilevelPolicy):
    name: ClassVar[str] = "las"
    summary: ClassVar[str] = "least attained GPU-seconds first, preemptive (Tiresias)"

    def _attained_gpu_s(self, job: int) -> float:
        sim = self.sim
        attained = sim.attained_gpu_s[job]
        if job in sim.running:
            attained += (sim.now - sim.started_s[job]) * sim.held_gpus[job]
        return attained + _ROUNDING_GPU_S

    def level(self, job: int) -> int:
        attained = self._attained_gpu_s(job)
        return sum(attained >= threshold for threshold in THRESHOLDS_GPU_S)

    def next_change(self, job: int) -> float:
        attained = self._attained_gpu_s(job)
        for threshold in THRESHOLDS_GPU_S:
            if threshold > attained:
                return self.sim.now + (threshold - attained) / self.sim.held_gpus[job] + 2e-3
        return math.inf
