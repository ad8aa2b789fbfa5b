"""Flatout's own: the Gittins index of each job's history times its GPUs, with restart costs, ageing and reclaim.

Rule: a job stands at the octave of its index (how long, at the least, the jobs of its users, teams and size that ran as
long as it did keep a GPU for each that ends) times its GPUs. Better octaves are first. A running job is stopped only
for one that stands `margin` octaves better, not in the first minutes after it started, and of those that could be
stopped the one that loses least: just after a checkpoint. A job that waited for `ageing_s` is served before all
others, in order of submission, and keeps its GPUs for `quantum_s`: nothing starves. GPUs that a job leaves idle for
`idle_s` are taken back until it has work again.
Source: what works of SRPT with unknown sizes (Gittins; Aalto et al. 2009), QSSF (Hu et al., SC'21), Tiresias (NSDI'19:
no durations needed, a job without history is served by what it attained) and Slurm's age factor.
When wrong: where every job is like every other, as then the history orders nothing; where stopping a job costs more
than it says (`restart_s`, `checkpoint_s`); where a deadline or a contract decides, use `priority`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from flatout.schedule.durations import NUM_BUCKETS, Durations, bucket_of, edge
from flatout.schedule.levels import MultilevelPolicy

if TYPE_CHECKING:
    from flatout.schedule.engine import Simulation

_SHORTEST_S = 64.0  # below this all jobs are alike


class Default(MultilevelPolicy):
    name: ClassVar[str] = "flatout"
    summary: ClassVar[str] = "Gittins index of the history times GPUs, restart costs, ageing, idle GPUs reclaimed"
    margin: ClassVar[int] = 2
    protected_s: ClassVar[float] = 300.0
    ageing_s: ClassVar[float] = 3 * 86_400.0
    quantum_s: ClassVar[float] = 12 * 3600.0
    idle_s: ClassVar[float] = 900.0

    def attach(self, sim: Simulation) -> None:
        super().attach(sim)
        self.durations = Durations(sim.jobs)
        self.predicted: list[float] = [0.0] * len(sim.jobs)
        self._idle: dict[int, None] = {}

    def submitted(self, job: int) -> None:
        if not self.predicted[job]:
            self.predicted[job] = self.durations.expected(job)
        super().submitted(job)

    def ended(self, job: int) -> None:
        self.durations.ended(job, self.sim.held_s[job], self.predicted[job])
        self._idle.pop(job, None)
        super().ended(job)

    def _level_at(self, job: int, bucket: int) -> int:
        return int(math.log2(self.durations.index(job, bucket) * self.sim.gpus[job]))

    def level(self, job: int) -> int:
        return self._level_at(job, bucket_of(max(_SHORTEST_S, self.sim.elapsed(job))))

    def next_change(self, job: int) -> float:
        """When it has run for so many half octaves more that it stands elsewhere; at the most four of them."""
        elapsed = self.sim.elapsed(job)
        now = bucket_of(max(_SHORTEST_S, elapsed))
        level, last = self.levels[job], min(NUM_BUCKETS - 1, now + 4)
        ahead = next((bucket for bucket in range(now + 1, last) if self._level_at(job, bucket) != level), last)
        return self.sim.now + max(1.0, edge(ahead) - elapsed + 1e-3)

    def phase_changed(self, job: int) -> None:
        if self.sim.idle_since[job] is None:
            self._idle.pop(job, None)
        else:
            self._idle.pop(job, None)
            self._idle[job] = None
            self.sim.wake(self.sim.now + self.idle_s)

    def decide(self) -> None:
        while self._idle:
            job = next(iter(self._idle))  # in the order in which they got idle
            since = self.sim.idle_since[job]
            if since is not None and self.sim.now < since + self.idle_s - 1e-6:
                break
            del self._idle[job]
            if since is not None:
                self._forget(job)
                self.sim.reclaim(job)
        super().decide()

    def notes(self) -> tuple[str, ...]:
        return (self.durations.error_text(),)
