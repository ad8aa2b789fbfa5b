"""Flatout's own policy: the Gittins index of each job's history and its GPUs, with restart costs, turns and reclaim.

Rule: a job's level is the octave of its index times GPUs ** 0.75. The index is the least GPU holding time per ended
job, among jobs like it that ran as long as this job did; it counts those that have not ended, and leans on the jobs of
the same team, and of all, where those of the same user and size are few (`schedule/hazards.py`). Better octaves are
first, and levels are computed again every `update_s`. The index of a waiting job counts what a start costs: a restart,
and the work that a stop loses on average. A running job is stopped only for a job that is `margin` octaves better, and
still one if the running job's index is reduced by what the stop costs: the work since its last checkpoint, and its
restart. It is not stopped before it has worked for as long as its restart takes, and, unless the other has waited for
as long, not if it would lose more than `largest_loss_s` of work: then at its next checkpoint. Of the jobs that could be
stopped, those with no more GPUs than the waiting job are first, and of equal octaves the one that loses least. A job
that has waited for `ageing_s` has a turn: it is served before all others, keeps its GPUs for `quantum_s` and until its
next checkpoint, and then gives them back, so that nothing starves and overload does not turn the order into FIFO. GPUs
that a job leaves idle for `idle_s` are taken back until it has work again. Source: the proven parts of SRPT with
unknown sizes (Gittins; Aalto et al. 2009), with costs of switching (Asawa and Teneketzis 1996), QSSF (Hu et al.,
SC'21), Tiresias (NSDI'19: no durations needed; a job without history is served by its attained service) and Slurm's age
factor; the rules are chosen on forty-five histories and tried on thirty others (`benchmarks/schedule_sweep.py`). When
wrong: in the first hours of users whose new jobs are unlike their earlier ones; if stopping a job costs more than
stated (`restart_s`, `checkpoint_s`). If a deadline or a contract decides, use `priority`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

from flatout.schedule.durations import NUM_BUCKETS, Durations, edge
from flatout.schedule.engine import RUNNING
from flatout.schedule.hazards import SHORTEST, Hazards
from flatout.schedule.levels import URGENT, MultilevelPolicy

if TYPE_CHECKING:
    from flatout.schedule.engine import Simulation
    from flatout.schedule.pool import Placement
    from flatout.schedule.victims import Demand

_MAX_BUCKETS_AHEAD = 4
_MIDDLES = [2 ** (level + 0.5) for level in range(128)]  # of octaves
_MAX_UPDATES = 20_000  # of levels until now; in histories of years they become rarer


class Default(MultilevelPolicy):
    name: ClassVar[str] = "flatout"
    summary: ClassVar[str] = "by Gittins index and GPUs; counts restart costs, ages waiting jobs, reclaims idle GPUs"
    margin: ClassVar[int] = 2
    spares_wider: ClassVar[bool] = True
    largest_loss_s: ClassVar[float] = 600.0
    width_exponent: ClassVar[float] = 0.75
    ageing_s: ClassVar[float] = 7 * 86_400.0
    quantum_s: ClassVar[float] = 3600.0
    idle_s: ClassVar[float] = 900.0
    update_s: ClassVar[float] = 900.0

    def attach(self, sim: Simulation) -> None:
        super().attach(sim)
        self.durations = Durations(sim.jobs)
        self.hazards = Hazards(sim.jobs, sim.elapsed, width_exponent=self.width_exponent)
        self.predicted: list[float] = [0.0] * len(sim.jobs)
        self._width: list[float] = [gpus**self.width_exponent for gpus in sim.requested_gpus]
        self._start_cost_s: list[float] = [self._cost_of_starting_s(job) for job in range(len(sim.jobs))]
        self._idle: dict[int, None] = {}  # in the order in which they became idle
        self._in_system: dict[int, None] = {}
        self._next_update_s = math.inf

    def submitted(self, job: int) -> None:
        if not self.predicted[job]:
            self.predicted[job] = self.durations.expected(job)
        if not self._in_system:
            self._plan_update()
        self._in_system[job] = None
        super().submitted(job)

    def start_at(self, job: int, placement: Placement) -> None:
        self.hazards.started(job)
        super().start_at(job, placement)
        if self.levels[job] != URGENT:
            self.levels[job] = self.level(job)

    def ended(self, job: int) -> None:
        self.hazards.ended(job, self.sim.held_s[job])
        self.durations.ended(job, self.sim.held_s[job], self.predicted[job])
        self._idle.pop(job, None)
        del self._in_system[job]
        super().ended(job)

    def protection_s(self, job: int) -> float:
        """Return the time that a restart takes, so that a start does at least as much work as a restart costs."""
        return self.sim.restart_s[job]

    def worthwhile_loss_s(self, job: int, demand: Demand) -> float:
        """Return the loss with which the waiting job's index is just an octave better than the running job's.

        The running job's is reduced by what it pays for the stop: the loss and its restart.
        """
        if demand.level == URGENT or self._had_turn[job]:
            return math.inf
        advantage = _MIDDLES[self.levels[job]] - 2 * _MIDDLES[demand.level]
        return advantage / self._width[job] - self.sim.restart_s[job]

    def level(self, job: int) -> int:
        if self.sim.status[job] == RUNNING:
            return self.hazards.level(job, self.sim.now)
        return self.hazards.level_to_start(job, self.sim.now, self._start_cost_s[job])

    def _cost_of_starting_s(self, job: int) -> float:
        """Return what it costs to stop a job like this one: its restart, and the work lost on average."""
        largest_loss_s = min(self.largest_loss_s, self.sim.checkpoint_s[job])
        return self.sim.restart_s[job] + largest_loss_s / 2

    def next_change(self, job: int) -> float:
        """Return the time at which the job reaches a half octave with another level, looking at most four ahead."""
        now = self.sim.now
        present = max(SHORTEST, self.hazards.bucket(job, now))
        last = min(NUM_BUCKETS - 1, present + _MAX_BUCKETS_AHEAD)
        if present == last:  # the last half octave has no end
            return math.inf
        next_bucket = self.hazards.next_level(job, self.levels[job], range(present + 1, last), now)
        return now + max(1.0, edge(next_bucket) - self.sim.elapsed(job) + 1e-3)

    def phase_changed(self, job: int) -> None:
        self._idle.pop(job, None)
        if self.sim.idle_since[job] is not None:
            self._idle[job] = None
            self.sim.wake(self.sim.now + self.idle_s)

    def decide(self) -> None:
        if self._idle:
            self._reclaim_idle()
        if self.sim.now >= self._next_update_s:
            self._update_levels()
        super().decide()

    def _update_levels(self) -> None:
        """Give all jobs the levels that the history of by now implies."""
        self.update_levels(self._in_system)
        if self._in_system:
            self._plan_update()

    def _plan_update(self) -> None:
        elapsed_s = self.sim.now - self.sim.submit_s[0]
        num_steps = max(1, int(elapsed_s / _MAX_UPDATES / self.update_s))
        self._next_update_s = (self.sim.now // self.update_s + num_steps) * self.update_s
        self.sim.wake(self._next_update_s)

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
