"""FIFO: strictly in order of submission.

Rule: the job that has waited longest starts as soon as it fits; no job passes it.
Source: the baseline of every study; Slurm's `sched/builtin`.
When wrong: nearly always. A wide job that waits for whole nodes keeps all other jobs off the free GPUs.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, ClassVar

from flatout.schedule.policy import Policy

if TYPE_CHECKING:
    from flatout.schedule.engine import Simulation


class Fifo(Policy):
    name: ClassVar[str] = "fifo"
    summary: ClassVar[str] = "in order of submission; no job overtakes a waiting job"

    def attach(self, sim: Simulation) -> None:
        super().attach(sim)
        self.queue: deque[int] = deque()

    def submitted(self, job: int) -> None:
        self.queue.append(job)

    def stopped(self, job: int) -> None:
        self.queue.appendleft(job)

    def decide(self) -> None:
        queue, start = self.queue, self.sim.start
        while queue and start(queue[0]):
            queue.popleft()
