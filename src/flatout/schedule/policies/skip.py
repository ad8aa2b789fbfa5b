"""Skip: in order of submission, but any job that fits can pass one that doesn't.

Rule: of the waiting jobs that fit, the earliest starts.
Source: the usual list scheduling; Kubernetes without gang quotas.
When wrong: a wide job can wait forever behind small ones, because no GPUs are kept free for it.
"""

from __future__ import annotations

from typing import ClassVar

from flatout.schedule.levels import MultilevelPolicy


class Skip(MultilevelPolicy):
    name: ClassVar[str] = "skip"
    summary: ClassVar[str] = "in order of submission; a job that fits can overtake one that does not"
    preempts: ClassVar[bool] = False

    def level(self, job: int) -> int:
        return 0
