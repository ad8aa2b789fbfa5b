"""Packing: two jobs of one GPU share one where each uses at most half of it.

Rule: in order of submission, others may pass; a job of one GPU with a known utilization of at most a half gets half a
GPU beside another such job, and runs `INTERFERENCE` times as long, charged whether or not a neighbour is there.
Source: Hu et al., Lucid, ASPLOS'23; Xiao et al., AntMan, OSDI'20. A measured profile or the user's history gives the
utilization; jobs without are never packed.
When wrong: memory is not modelled, and two jobs may not fit together; jobs that use the same resource slow each other
down more than is assumed.
"""

from __future__ import annotations

from typing import ClassVar

from flatout.schedule.levels import MultilevelPolicy
from flatout.schedule.pool import WHOLE, Placement

INTERFERENCE = 1.1


class Packing(MultilevelPolicy):
    name: ClassVar[str] = "packing"
    summary: ClassVar[str] = "jobs that use at most half of a GPU share one (Lucid)"
    preempts: ClassVar[bool] = False

    def level(self, job: int) -> int:
        return 0

    def is_light(self, job: int) -> bool:
        given = self.sim.jobs[job]
        return (
            given.num_gpus == 1 and given.gpu_share == 1 and given.utilization is not None and given.utilization <= 0.5
        )

    def find(self, job: int) -> Placement | None:
        if not self.is_light(job):
            return self.sim.find(job)
        return self.sim.pool.take_share(WHOLE // 2, self.sim.shapes[self.sim.shape[job]].allowed)

    def start_found(self, job: int, place: Placement) -> None:
        if self.is_light(job):
            self.sim.start_at(job, place, gpus=0.5, slowdown=INTERFERENCE)
        else:
            self.sim.start_at(job, place)

    def notes(self) -> tuple[str, ...]:
        light = sum(self.is_light(job) for job in range(len(self.sim.jobs)))
        return (f"{light:,} of {len(self.sim.jobs):,} jobs use at most half of one GPU, as far as is known",)
