"""Quotas with borrowing: each team owns a number of GPUs; others borrow those it doesn't use, and give them back.

Rule: a team's jobs count against its quota in order of submission, and jobs within it are served first. Others borrow
free GPUs, in order, and are stopped when an owner's job within its quota needs them. Quotas are those of the cluster
file's `[quotas]`, or else proportional to the GPU-hours of the teams' jobs. Quotas are counts of GPUs, not nodes.
Source: Kueue's cohorts (borrowing and reclaim), KAI's over-quota, Volcano's reclaim. When wrong: enough GPUs can be
free although a job of that shape does not fit (kueue#5243); borrowers are stopped however little time they still need;
and a job wider than its team's quota always borrows.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, ClassVar

from flatout.schedule.levels import MultilevelPolicy

if TYPE_CHECKING:
    from flatout.schedule.engine import Simulation

OWNED, BORROWED = 0, 1


class Quota(MultilevelPolicy):
    name: ClassVar[str] = "quota"
    summary: ClassVar[str] = "teams own GPUs; others borrow free GPUs and give them back"

    def __init__(self, proportions: dict[str, float]) -> None:
        """Store the teams' `proportions`, which are used if the cluster names no quotas."""
        self._proportions = proportions

    def attach(self, sim: Simulation) -> None:
        super().attach(sim)
        cluster = sim.cluster
        self.quotas: dict[str, float] = dict(cluster.quotas)
        if not self.quotas:
            total = sum(self._proportions.values()) or 1.0
            self.quotas = {team: share / total * cluster.num_gpus for team, share in self._proportions.items()}
        self.owned: dict[str, float] = {job.team: 0.0 for job in sim.jobs}
        self._queues: dict[str, deque[int]] = {team: deque() for team in self.owned}
        self._is_owned = [False] * len(sim.jobs)
        self._changed: dict[str, None] = {}

    def _requested(self, job: int) -> float:
        return self.sim.requested_gpus[job] * self.sim.jobs[job].gpu_share

    def level(self, job: int) -> int:
        return OWNED if self._is_owned[job] else BORROWED

    def submitted(self, job: int) -> None:
        """Queue a job. A stopped job waits again within the quota that it had; a borrower is considered again."""
        super().submitted(job)
        if not self._is_owned[job]:
            team = self.sim.jobs[job].team
            self._queues[team].append(job)
            self._changed[team] = None

    def ended(self, job: int) -> None:
        team = self.sim.jobs[job].team
        if self._is_owned[job]:
            self.owned[team] -= self._requested(job)
            self._changed[team] = None
        super().ended(job)

    def decide(self) -> None:
        for team in self._changed:
            self._fill_quota(team)
        self._changed.clear()
        super().decide()

    def _fill_quota(self, team: str) -> None:
        """Count the team's waiting and borrowing jobs against its quota for as long as they fit in it."""
        queue, sim = self._queues[team], self.sim
        quota = self.quotas.get(team, 0.0)
        while queue:
            job = queue[0]
            requested = self._requested(job)
            ended_while_borrowing = bool(sim.finish_s[job]) and job not in sim.running
            always_borrows = requested > quota
            if ended_while_borrowing or always_borrows:
                queue.popleft()
                continue
            if self.owned[team] + requested > quota:
                return
            queue.popleft()
            self._own(job, team)

    def _own(self, job: int, team: str) -> None:
        """Count a job against its team's quota."""
        self._is_owned[job] = True
        self.owned[team] += self._requested(job)
        if job in self.sim.running:
            self._remove_running(job)
            self._add_running(job, OWNED)
        else:
            self._queue(job, OWNED)

    def notes(self) -> tuple[str, ...]:
        quotas = ", ".join(f"{team or '(no team)'} {quota:.0f}" for team, quota in sorted(self.quotas.items()))
        return (f"quotas in GPUs: {quotas}",)
