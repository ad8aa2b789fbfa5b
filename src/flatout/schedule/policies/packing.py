"""Packing: two one-GPU jobs share a GPU if each uses at most half of it.

Rule: in order of submission, but others can pass; a one-GPU job with a known utilization of at most a half gets half a
GPU next to another such job, and runs `INTERFERENCE` times as long, whether or not it has a neighbour. Source: Hu et
al., Lucid, ASPLOS'23; Xiao et al., AntMan, OSDI'20. A measured profile or the user's history gives the utilization;
jobs without one are never packed. When wrong: memory is not modelled, so two jobs might not fit together; jobs that use
the same resource slow each other down more than assumed.
"""

from __future__ import annotations

from typing import ClassVar

from flatout.schedule.levels import MultilevelPolicy
from flatout.schedule.pool import WHOLE, Placement

INTERFERENCE = 1.1
MOST_UTILIZATION = 0.5


class Packing(MultilevelPolicy):
    name: ClassVar[str] = "packing"
    summary: ClassVar[str] = "jobs that use at most half of a GPU share one (Lucid)"
    preempts: ClassVar[bool] = False

    def level(self, job: int) -> int:
        return 0

    def is_light(self, job: int) -> bool:
        """Whether the job is known to use at most half of one GPU."""
        request = self.sim.jobs[job]
        requests_one_gpu = request.num_gpus == 1 and request.gpu_share == 1
        if not requests_one_gpu or request.utilization is None:
            return False
        return request.utilization <= MOST_UTILIZATION

    def allocate(self, job: int) -> Placement | None:
        if not self.is_light(job):
            return self.sim.allocate(job)
        shape = self.sim.shapes[self.sim.shape[job]]
        return self.sim.pool.take_share(WHOLE // 2, shape.allowed)

    def start_at(self, job: int, placement: Placement) -> None:
        if self.is_light(job):
            self.sim.start_at(job, placement, gpus=0.5, slowdown=INTERFERENCE)
        else:
            self.sim.start_at(job, placement)

    def notes(self) -> tuple[str, ...]:
        num_jobs = len(self.sim.jobs)
        num_light = sum(self.is_light(job) for job in range(num_jobs))
        return (f"{num_light:,} of {num_jobs:,} jobs are known to use at most half of one GPU",)
