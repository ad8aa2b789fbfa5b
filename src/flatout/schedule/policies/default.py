"""Flatout's own policy: the Gittins index of each job's history and its GPUs, with restart costs, turns and reclaim.

Rule: a job's level is the octave of its index times GPUs ** 0.75. The index is the least GPU holding time per ended
job, among jobs of the same user, team and size that ran as long as this job did. Better octaves are first. A running
job is stopped only for a job that is `margin` octaves better, not in the first minutes after its start, and, unless the
other has waited for as long, not if it would lose more than `largest_loss_s` of work: then at its next checkpoint. Of
the jobs that could be stopped, the job that loses least is chosen. A job that has waited for `ageing_s` has a turn: it
is served before all others, keeps its GPUs for `quantum_s` and until its next checkpoint, and then gives them back, so
that nothing starves and overload does not turn the order into FIFO. GPUs that a job leaves idle for `idle_s` are taken
back until it has work again. Source: the proven parts of SRPT with unknown sizes (Gittins; Aalto et al. 2009), QSSF (Hu
et al., SC'21), Tiresias (NSDI'19: no durations needed; a job without history is served by its attained service) and
Slurm's age factor; the numbers are chosen on fifteen histories (`benchmarks/schedule_sweep.py`). When wrong: if few
long jobs of equal length are all there is, because the history then does not imply an order and `las` lets them end one
after the other; if stopping a job costs more than stated (`restart_s`, `checkpoint_s`). If a deadline or a contract
decides, use `priority`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from flatout.schedule.durations import NUM_BUCKETS, Durations, bucket_of, edge
from flatout.schedule.levels import MultilevelPolicy

if TYPE_CHECKING:
    from flatout.schedule.engine import Simulation

_SHORTEST_S = 64.0  # shorter jobs are all treated alike
_MAX_BUCKETS_AHEAD = 4


class Default(MultilevelPolicy):
    name: ClassVar[str] = "flatout"
    summary: ClassVar[str] = "by Gittins index and GPUs; counts restart costs, ages waiting jobs, reclaims idle GPUs"
    margin: ClassVar[int] = 2
    protected_s: ClassVar[float] = 300.0
    largest_loss_s: ClassVar[float] = 600.0
    width_exponent: ClassVar[float] = 0.75
    ageing_s: ClassVar[float] = 7 * 86_400.0
    quantum_s: ClassVar[float] = 3600.0
    idle_s: ClassVar[float] = 900.0

    def attach(self, sim: Simulation) -> None:
        super().attach(sim)
        self.durations = Durations(sim.jobs)
        self.predicted: list[float] = [0.0] * len(sim.jobs)
        self._idle: dict[int, None] = {}  # in the order in which they became idle

    def submitted(self, job: int) -> None:
        if not self.predicted[job]:
            self.predicted[job] = self.durations.expected(job)
        super().submitted(job)

    def ended(self, job: int) -> None:
        self.durations.ended(job, self.sim.held_s[job], self.predicted[job])
        self._idle.pop(job, None)
        super().ended(job)

    def _level_at(self, job: int, bucket: int) -> int:
        """Return the level of a job that has reached this half octave."""
        width: float = self.sim.requested_gpus[job] ** self.width_exponent
        return int(math.log2(self.durations.index(job, bucket) * width))

    def level(self, job: int) -> int:
        return self._level_at(job, bucket_of(max(_SHORTEST_S, self.sim.elapsed(job))))

    def next_change(self, job: int) -> float:
        """Return the time at which the job reaches a half octave with another level, looking at most four ahead."""
        elapsed = self.sim.elapsed(job)
        level = self.levels[job]
        present = bucket_of(max(_SHORTEST_S, elapsed))
        last = min(NUM_BUCKETS - 1, present + _MAX_BUCKETS_AHEAD)
        if present == last:  # the last half octave has no end
            return math.inf
        changed = (bucket for bucket in range(present + 1, last) if self._level_at(job, bucket) != level)
        change_s = edge(next(changed, last))
        return self.sim.now + max(1.0, change_s - elapsed + 1e-3)

    def phase_changed(self, job: int) -> None:
        self._idle.pop(job, None)
        if self.sim.idle_since[job] is not None:
            self._idle[job] = None
            self.sim.wake(self.sim.now + self.idle_s)

    def decide(self) -> None:
        if self._idle:
            self._reclaim_idle()
        super().decide()

    def _reclaim_idle(self) -> None:
        """Take the GPUs from jobs that have left them idle for `idle_s`."""
        sim = self.sim
        while self._idle:
            job = next(iter(self._idle))
            since = sim.idle_since[job]
            if since is not None and sim.now < since + self.idle_s - 1e-6:
                return
            del self._idle[job]
            if since is not None:
                self._remove_running(job)
                sim.reclaim(job)

    def notes(self) -> tuple[str, ...]:
        return (self.durations.error_text(),)
