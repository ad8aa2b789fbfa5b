"""Priority with preemption: higher priorities first, and they stop lower ones.

Rule: jobs in order of `priority`, then submission; a job that doesn't fit stops running jobs of lower priority, those
that lose least first. Among jobs of equal priority, none overtakes a waiting one.
Source: Slurm's multifactor priority with preemption by QOS; Kubernetes' PriorityClass.
When wrong: if everybody's work is urgent; with a history without priorities it is FIFO.
"""

from __future__ import annotations

from typing import ClassVar

from flatout.schedule.levels import MultilevelPolicy


class Priority(MultilevelPolicy):
    name: ClassVar[str] = "priority"
    summary: ClassVar[str] = "by priority, then by submission; jobs with higher priority stop others"

    def level(self, job: int) -> int:
        return -self.sim.jobs[job].priority

    def keeps_order(self, level: int) -> bool:
        return True
