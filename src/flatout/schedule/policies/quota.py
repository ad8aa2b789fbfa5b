"""Quotas with borrowing: each team owns a number of GPUs; what it doesn't use others borrow, and give back.

Rule: a team's jobs count against its quota in order of submission, and those within it are served first. Others borrow
free GPUs, in order, and are stopped when an owner's job within its quota needs theirs. Quotas are those of the cluster
file's `[quotas]`, or else proportional to the GPU-hours of the teams' jobs. Quotas are counts of GPUs, not nodes.
Source: Kueue's cohorts (borrowing and reclaim), KAI's over-quota, Volcano's reclaim.
When wrong: a count of GPUs may be free and yet hold no job of that shape (kueue#5243); borrowers are stopped however
little they still need; and a job wider than its team's quota is always borrowed.
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
    summary: ClassVar[str] = "teams own GPUs, others borrow what is free and give it back"

    def __init__(self, proportions: dict[str, float]) -> None:
        """`proportions`: of each team, used where the cluster names no quotas."""
        self._proportions = proportions

    def attach(self, sim: Simulation) -> None:
        super().attach(sim)
        cluster = sim.cluster
        total = sum(self._proportions.values()) or 1.0
        self.quotas: dict[str, float] = dict(cluster.quotas) or {
            team: share / total * cluster.num_gpus for team, share in self._proportions.items()
        }
        self.owned: dict[str, float] = {job.team: 0.0 for job in sim.jobs}
        self._queues: dict[str, deque[int]] = {team: deque() for team in self.owned}
        self._is_owned = [False] * len(sim.jobs)
        self._changed: dict[str, None] = {}

    def _asks(self, job: int) -> float:
        return self.sim.gpus[job] * self.sim.jobs[job].gpu_share

    def level(self, job: int) -> int:
        return OWNED if self._is_owned[job] else BORROWED

    def submitted(self, job: int) -> None:
        """A job that was stopped waits again within the quota it had, or is looked at again."""
        super().submitted(job)
        if not self._is_owned[job]:
            self._queues[self.sim.jobs[job].team].append(job)
            self._changed[self.sim.jobs[job].team] = None

    def ended(self, job: int) -> None:
        team = self.sim.jobs[job].team
        if self._is_owned[job]:
            self.owned[team] -= self._asks(job)
            self._changed[team] = None
        super().ended(job)

    def decide(self) -> None:
        for team in self._changed:
            self._own(team)
        self._changed.clear()
        super().decide()

    def _own(self, team: str) -> None:
        """Count the team's jobs against its quota while it has room, those that wait and those that borrow."""
        queue, sim = self._queues[team], self.sim
        quota = self.quotas.get(team, 0.0)
        while queue:
            job = queue[0]
            if sim.finish_s[job] and job not in sim.running:
                queue.popleft()  # it ended while borrowing
                continue
            if self.owned[team] + self._asks(job) > quota:
                if self._asks(job) > quota:
                    queue.popleft()  # it will always borrow
                    continue
                return
            queue.popleft()
            self._is_owned[job] = True
            self.owned[team] += self._asks(job)
            if job in sim.running:
                self._forget(job)
                self._remember(job, OWNED)
            else:
                self._queue(job, OWNED)

    def notes(self) -> tuple[str, ...]:
        quotas = ", ".join(f"{team or '(no team)'} {quota:.0f}" for team, quota in sorted(self.quotas.items()))
        return (f"quotas in GPUs: {quotas}",)
