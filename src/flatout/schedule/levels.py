"""Policies that serve jobs by level: lower levels first, and in a given order within a level.

A blocked job lets others pass. A subclass states the level of a job (`level`), when that changes while it runs
(`next_change`), and its order within a level (`order`). With `preempts`, a waiting job stops running ones that are at
least `margin` levels worse, the worst first, and among equal levels those that lose the fewest GPU-seconds; it never
stops a job that is restarting, has worked for less than `protection_s`, or would lose more work than `largest_loss_s`
plus the time that the waiting job has waited; the waiting job then waits for the other's next checkpoint. With
`spares_wider`, jobs with more GPUs than the waiting one are stopped only if no others suffice. A job that has
waited for `ageing_s` without interruption is urgent: it comes before all levels, and then keeps its GPUs for its turn,
`quantum_s` and until its next checkpoint. After that any waiting job of its level may have them.

Waiting jobs are kept by level and shape, so a decision examines one job per level and shape, not the whole queue.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING, ClassVar

from flatout.schedule.engine import RUNNING, WAITING
from flatout.schedule.policy import Policy
from flatout.schedule.pool import WHOLE, Placement
from flatout.schedule.victims import Demand, victims_for

if TYPE_CHECKING:
    from flatout.schedule.engine import Simulation

URGENT = -1_000_000
_ROUNDING_S = 1e-6
_ROUNDING_GPUS = 1e-6  # of the sums of shares
_LONGEST_INTERVAL_S = 86_400.0  # between checkpoints


class MultilevelPolicy(Policy):
    """Base class of the policies that serve jobs by level."""

    preempts: ClassVar[bool] = True
    margin: ClassVar[int] = 1
    protected_s: ClassVar[float] = 0.0
    ageing_s: ClassVar[float] = math.inf
    largest_loss_s: ClassVar[float] = math.inf
    quantum_s: ClassVar[float] = 4 * 3600.0
    spares_wider: ClassVar[bool] = False  # stop jobs with more GPUs than the waiting one only if no others suffice
    retry_s: ClassVar[float] = 60.0  # minimum time between attempts to preempt for jobs of one shape and level

    def level(self, job: int) -> int:
        """Return the job's current level; lower is better."""
        raise NotImplementedError

    def next_change(self, job: int) -> float | None:
        """Return the time at which the level of a running job changes; None if it never does."""
        return None

    def order(self, job: int) -> float:
        return self.sim.submit_s[job]

    def attach(self, sim: Simulation) -> None:
        super().attach(sim)
        count = len(sim.jobs)
        # Level -> shape -> heap of (order, job, stamp). An entry whose stamp is not the job's is outdated.
        self.waiting: dict[int, dict[int, list[tuple[float, int, int]]]] = {}
        self.levels = [0] * count  # the level under which the job is queued or running
        self._stamp = [0] * count
        self._running_at: dict[int, dict[int, None]] = {}  # level -> running jobs
        self._gpus_at: dict[int, float] = {}  # level -> GPUs that these jobs hold
        self._level_changes: list[tuple[float, int, int]] = []
        self._ageing: deque[tuple[float, int, float]] = deque()  # when it becomes urgent, job, since when it waits
        # Free whole GPUs that each shape needs to start; none for a share, which can fit on a GPU in use.
        self._needed_free = [shape.gpus if shape.milli == WHOLE else 0 for shape in sim.shapes]
        self._no_preemption_until: dict[tuple[int, int], float] = {}  # by shape and level
        self._waiting_since = list(sim.submit_s)  # when a waiting job was last queued or became urgent
        self._wakes: set[float] = set()
        self._worst = -math.inf  # level of a running job, while jobs are served
        self._has_stopped = False  # a job, since levels were last listed
        self._next_stoppable_s = math.inf
        self._had_turn = [False] * count  # since a job last waited

    def submitted(self, job: int) -> None:
        self._waiting_since[job] = self.sim.now
        self._had_turn[job] = False
        self._queue(job, self.level(job))
        if self.ageing_s < math.inf:
            urgent_at = self.sim.now + self.ageing_s
            self._ageing.append((urgent_at, job, self.sim.now))
            self.sim.wake(urgent_at)

    def stopped(self, job: int) -> None:
        self._remove_running(job)
        self.submitted(job)

    def ended(self, job: int) -> None:
        self._stamp[job] += 1
        self._remove_running(job)

    def decide(self) -> None:
        if self._level_changes:
            self._update_running_levels()
        if self._ageing:
            self._promote_aged_jobs()
        if self.waiting:
            self._serve()

    def _update_running_levels(self) -> None:
        changes, now = self._level_changes, self.sim.now
        while changes and changes[0][0] <= now:
            _, job, stamp = heappop(changes)
            if self._stamp[job] == stamp and self.sim.status[job] == RUNNING:
                if self.levels[job] == URGENT:
                    self._had_turn[job] = True
                self._remove_running(job)
                self._add_running(job, self._running_level(job))

    def _running_level(self, job: int) -> int:
        """Return the level of a running job; after its turn a waiting job of its level may stop it."""
        level = self.level(job)
        return level + self.margin if self._had_turn[job] else level

    def turn_s(self, job: int) -> float:
        """Return how long an urgent job keeps its GPUs: until a checkpoint, unless it writes hardly any."""
        interval = self.sim.checkpoint_s[job]
        if interval > _LONGEST_INTERVAL_S:
            return self.quantum_s
        return math.ceil(self.quantum_s / interval - _ROUNDING_S) * interval

    def _promote_aged_jobs(self) -> None:
        ageing, now = self._ageing, self.sim.now
        while ageing and ageing[0][0] <= now:
            _, job, since = ageing.popleft()
            if self._waiting_since[job] == since and self.sim.status[job] == WAITING:
                self._waiting_since[job] = now
                self._queue(job, URGENT)

    def update_levels(self, jobs: Iterable[int]) -> None:
        """Give the jobs without a turn the levels that they have by now, whether they wait or run."""
        levels, had_turn, level_of = self.levels, self._had_turn, self.level
        for job in jobs:
            old = levels[job]
            if old == URGENT or had_turn[job]:
                continue
            level = level_of(job)
            if level != old:
                self._change_level(job, level)

    def _change_level(self, job: int, level: int) -> None:
        if self.sim.status[job] == WAITING:
            self._queue(job, level)
        elif self.sim.status[job] == RUNNING:
            self._stamp[job] += 1
            self._remove_running(job)
            self._add_running(job, level)

    def _serve(self) -> None:
        """Start waiting jobs, level by level, until nothing more can start."""
        blocked = set[int]()
        self._worst = self._worst_running()
        self._has_stopped = False
        levels = sorted(self.waiting, reverse=True)
        while levels:
            level = levels.pop()
            if not self._serve_level(level, blocked):
                return
            if self._has_stopped:  # a stopped job can add a level
                self._has_stopped = False
                levels = sorted((other for other in self.waiting if other > level), reverse=True)

    def _serve_level(self, level: int, blocked: set[int]) -> bool:
        """Start waiting jobs of a level until all of its shapes are blocked; return False if later levels must wait."""
        pool = self.sim.pool
        while level in self.waiting:
            may_preempt = self._worst >= level + self.margin
            if not may_preempt and not pool.num_free and not pool.partial:
                return False
            for _, job, shape in self._heads(level, blocked, math.inf if may_preempt else pool.num_free):
                can_fit = self._needed_free[shape] <= pool.num_free
                if can_fit and self._start(job):
                    break
                if may_preempt and self._preempt_for(job, level):
                    blocked.clear()
                    has_started = self._start(job)
                    assert has_started
                    self._worst = self._worst_running()
                    self._has_stopped = True
                    break
                blocked.add(shape)
                if self.keeps_order(level):
                    return False
            else:
                return True
        return True

    def keeps_order(self, level: int) -> bool:
        """Whether a blocked job at this level also blocks the jobs behind it."""
        return False

    def _heads(self, level: int, blocked: set[int], max_gpus: float) -> list[tuple[float, int, int]]:
        """Return the order, job and shape of the first job of each shape at a level, in order.

        Shapes that are blocked, or need more than `max_gpus` free GPUs, are skipped. Outdated entries are removed.
        """
        heaps, stamps, needed_free = self.waiting[level], self._stamp, self._needed_free
        if self.keeps_order(level):
            max_gpus = math.inf
        heads = []
        empty_shapes = []
        for shape, heap in heaps.items():
            while heap and stamps[heap[0][1]] != heap[0][2]:
                heappop(heap)
            if not heap:
                empty_shapes.append(shape)
            elif shape not in blocked and needed_free[shape] <= max_gpus:
                order, job, _ = heap[0]
                heads.append((order, job, shape))
        for shape in empty_shapes:
            del heaps[shape]
        if not heaps:
            del self.waiting[level]
        if len(heads) > 1:
            heads.sort()
        return heads

    def allocate(self, job: int) -> Placement | None:
        """Take GPUs for a waiting job, or return None if it does not fit; a subclass can place jobs in its own way."""
        return self.sim.allocate(job)

    def start_at(self, job: int, placement: Placement) -> None:
        """Start a job on the GPUs that `allocate` took."""
        self.sim.start_at(job, placement)

    def _start(self, job: int) -> bool:
        placement = self.allocate(job)
        if placement is None:
            return False
        self.start_at(job, placement)
        self._stamp[job] += 1
        self._add_running(job, self.levels[job])
        return True

    def _queue(self, job: int, level: int) -> None:
        self._stamp[job] += 1
        self.levels[job] = level
        heaps = self.waiting.setdefault(level, {})
        heap = heaps.setdefault(self.sim.shape[job], [])
        order = self._waiting_since[job] if level == URGENT else self.order(job)
        heappush(heap, (order, job, self._stamp[job]))

    def _add_running(self, job: int, level: int) -> None:
        """Record a running job's level, and when that changes."""
        sim = self.sim
        self.levels[job] = level
        self._running_at.setdefault(level, {})[job] = None
        self._gpus_at[level] = self._gpus_at.get(level, 0.0) + sim.held_gpus[job]
        change = sim.ready_s[job] + self.turn_s(job) if level == URGENT else self.next_change(job)
        if change is not None and change < math.inf:
            change = max(change, sim.now + 1e-3)
            heappush(self._level_changes, (change, job, self._stamp[job]))
            sim.wake(change)

    def _remove_running(self, job: int) -> None:
        level = self.levels[job]
        jobs = self._running_at.get(level)
        if jobs is None or job not in jobs:
            return
        del jobs[job]
        self._gpus_at[level] -= self.sim.held_gpus[job]
        if not jobs:
            del self._running_at[level], self._gpus_at[level]

    def _worst_running(self) -> float:
        if not self.preempts or not self._running_at:
            return -math.inf
        return max(self._running_at)

    # Preemption.

    def _preempt_for(self, job: int, level: int) -> bool:
        """Stop running jobs so that a waiting job of this level fits.

        If that is impossible, stop none and return False.
        """
        sim = self.sim
        shape = sim.shape[job]
        if self._no_preemption_until.get((shape, level), -math.inf) > sim.now:
            return False
        worse_levels = sorted((other for other in self._running_at if other >= level + self.margin), reverse=True)
        gpus = sim.shapes[shape].gpus
        # Stopping a share that is alone on its GPU frees the whole GPU.
        most_free = sim.pool.num_free + len(sim.pool.partial) + sum(self._gpus_at[other] for other in worse_levels)
        if most_free < gpus - _ROUNDING_GPUS:
            return False
        demand = Demand(level, gpus, sim.shapes[shape].allowed, self._waiting_since[job])
        victims = victims_for(demand, self._candidates(worse_levels, demand), sim)
        if not victims:
            self._no_preemption_until[shape, level] = sim.now + self.retry_s
            self._wake_when_one_more_may_be_stopped()
            return False
        for victim in victims:
            self._remove_running(victim)
            sim.preempt(victim)
            self.submitted(victim)
        return True

    def cost_of_stopping(self, job: int) -> float:
        """Return the GPU-seconds that stopping a running job wastes."""
        return (self.sim.loss_if_stopped(job) + self.sim.restart_s[job]) * self.sim.held_gpus[job]

    def protection_s(self, job: int) -> float:
        """Return how long a job that works again may not be stopped."""
        return self.protected_s

    def worthwhile_loss_s(self, job: int, demand: Demand) -> float:
        """Return how much work a running job may lose so that stopping it gains more than it costs; negative: none."""
        return math.inf

    def stoppable_at(self, job: int, demand: Demand) -> float:
        """Return when a running job may be stopped for a waiting one: now, later, or never.

        The work that would be lost and the waiting time grow alike, so if too much would be lost now, it is too much
        until the next checkpoint.
        """
        worthwhile_loss_s = self.worthwhile_loss_s(job, demand)
        if worthwhile_loss_s < 0:
            return math.inf
        sim = self.sim
        ready = sim.ready_s[job]
        time = ready + self.protection_s(job)
        if time < sim.now:
            time = sim.now
        interval = sim.checkpoint_s[job]
        loss = (time - ready) % interval
        is_too_much = loss > self.largest_loss_s + (time - demand.since) + _ROUNDING_S
        if not is_too_much and loss <= worthwhile_loss_s:
            return time
        return time + interval - loss

    def _wake_when_one_more_may_be_stopped(self) -> None:
        """Decide again, but not before the next attempt, when one more of the candidates may be stopped."""
        now, earliest = self.sim.now, self._next_stoppable_s
        if earliest == math.inf:
            return
        if self.retry_s:  # few different times, so that few events are added
            earliest = math.ceil(max(earliest, now + self.retry_s) / self.retry_s) * self.retry_s
        if earliest not in self._wakes:
            self._wakes.add(earliest)
            self.sim.wake(earliest)

    def _candidates(self, levels: list[int], demand: Demand) -> Iterator[int]:
        """Yield the jobs that may be stopped for a waiting one, the worst level and then the cheapest first.

        In the end, `_next_stoppable_s` is when the first of the others may be stopped.
        """
        spared = []
        now = self.sim.now + _ROUNDING_S
        self._next_stoppable_s = math.inf
        for level in levels:
            jobs = []
            for job in self._running_at[level]:
                time = self.stoppable_at(job, demand)
                if time <= now:
                    jobs.append((self.cost_of_stopping(job), job))
                elif time < self._next_stoppable_s:
                    self._next_stoppable_s = time
            for _, job in sorted(jobs):
                if self.spares_wider and self.sim.held_gpus[job] > demand.gpus:
                    spared.append(job)
                else:
                    yield job
        yield from spared
