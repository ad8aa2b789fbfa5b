"""Policies that serve jobs by level: lower levels first, and in a given order within a level.

A blocked job lets others pass. A subclass states the level of a job (`level`), when that changes while it runs
(`next_change`), and its order within a level (`order`). With `preempts`, a waiting job stops running ones that are at
least `margin` levels worse, the worst first, and among equal levels those that lose the fewest GPU-seconds; it never
stops a job that is restarting, has run for less than `protected_s`, or would lose more work than `largest_loss_s` plus
the time that the waiting job has waited; the waiting job then waits for the other's next checkpoint. A job that has
waited for `ageing_s` without interruption is urgent: it comes before all levels, and then keeps its GPUs for its turn,
`quantum_s` and until its next checkpoint. After that any waiting job of its level may have them.

Waiting jobs are kept by level and shape, so a decision examines one job per level and shape, not the whole queue.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING, ClassVar

from flatout.schedule.engine import RUNNING, WAITING
from flatout.schedule.policy import Policy
from flatout.schedule.pool import WHOLE, Placement, as_share, is_wide, nodes_of

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
        self._ageing: deque[tuple[float, int, int]] = deque()
        # Free whole GPUs that each shape needs to start; none for a share, which can fit on a GPU in use.
        self._needed_free = [shape.gpus if shape.milli == WHOLE else 0 for shape in sim.shapes]
        self._no_preemption_until: dict[tuple[int, int], float] = {}  # by shape and level
        self._waiting_since = list(sim.submit_s)  # when a waiting job was last queued or became urgent
        self._wakes: set[float] = set()
        self._had_turn = [False] * count  # since a job last waited

    def submitted(self, job: int) -> None:
        self._waiting_since[job] = self.sim.now
        self._had_turn[job] = False
        self._queue(job, self.level(job))
        if self.ageing_s < math.inf:
            urgent_at = self.sim.now + self.ageing_s
            self._ageing.append((urgent_at, job, self._stamp[job]))
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
            _, job, stamp = ageing.popleft()
            if self._stamp[job] == stamp and self.sim.status[job] == WAITING:
                self._waiting_since[job] = now
                self._queue(job, URGENT)

    def _serve(self) -> None:
        """Start waiting jobs, level by level, until nothing more can start."""
        pool, blocked = self.sim.pool, set[int]()
        worst = self._worst_running()
        level = URGENT - 1
        while True:
            later_levels = [other for other in self.waiting if other > level]  # a stopped job can add one
            if not later_levels:
                return
            level = min(later_levels)
            while level in self.waiting:
                may_preempt = worst >= level + self.margin
                if not may_preempt and not pool.num_free and not pool.partial:
                    return
                head = self._head(level, blocked, math.inf if may_preempt else pool.num_free)
                if head is None:
                    break
                _, job, shape = head
                if self._start(job):
                    continue
                if may_preempt and self._preempt_for(job, level):
                    blocked.clear()
                    has_started = self._start(job)
                    assert has_started
                    worst = self._worst_running()
                    continue
                blocked.add(shape)
                if self.keeps_order(level):
                    return

    def keeps_order(self, level: int) -> bool:
        """Whether a blocked job at this level also blocks the jobs behind it."""
        return False

    def _head(self, level: int, blocked: set[int], max_gpus: float) -> tuple[float, int, int] | None:
        """Return the order, job and shape of the first job at a level.

        Shapes that are blocked, or need more than `max_gpus` free GPUs, are skipped. Outdated entries are removed.
        """
        heaps, stamps = self.waiting[level], self._stamp
        keeps_order = self.keeps_order(level)
        first: tuple[float, int, int] | None = None
        empty_shapes = []
        for shape, heap in heaps.items():
            while heap and stamps[heap[0][1]] != heap[0][2]:
                heappop(heap)
            if not heap:
                empty_shapes.append(shape)
                continue
            if shape in blocked:
                continue
            if self._needed_free[shape] > max_gpus and not keeps_order:
                continue
            order, job, _ = heap[0]
            head = (order, job, shape)
            if first is None or head < first:
                first = head
        for shape in empty_shapes:
            del heaps[shape]
        if not heaps:
            del self.waiting[level]
        return first

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
        since = self._waiting_since[job]
        victims = self._victims(worse_levels, sim.shapes[shape].allowed, gpus, since)
        if not victims:
            self._no_preemption_until[shape, level] = sim.now + self.retry_s
            self._wake_when_one_more_may_be_stopped(worse_levels, since)
            return False
        for victim in victims:
            self._remove_running(victim)
            sim.preempt(victim)
            self.submitted(victim)
        return True

    def cost_of_stopping(self, job: int) -> float:
        """Return the GPU-seconds that stopping a running job wastes."""
        return (self.sim.loss_if_stopped(job) + self.sim.restart_s[job]) * self.sim.held_gpus[job]

    def stoppable_at(self, job: int, since: float) -> float:
        """Return when a running job may be stopped for a job that waits since this time: now, or a later time.

        The work that would be lost and the waiting time grow alike, so if too much would be lost now, it is too much
        until the next checkpoint.
        """
        sim = self.sim
        ready = sim.ready_s[job]
        time = max(sim.now, ready + self.protected_s)
        if self.largest_loss_s == math.inf:
            return time
        interval = sim.checkpoint_s[job]
        loss = (time - ready) % interval
        if loss > self.largest_loss_s + (time - since) + _ROUNDING_S:
            time += interval - loss
        return time

    def may_stop(self, job: int, since: float) -> bool:
        return self.stoppable_at(job, since) <= self.sim.now + _ROUNDING_S

    def _wake_when_one_more_may_be_stopped(self, levels: list[int], since: float) -> None:
        """Decide again, but not before the next attempt, when one more running job of these levels may be stopped."""
        now = self.sim.now
        earliest = math.inf
        for level in levels:
            for job in self._running_at[level]:
                time = self.stoppable_at(job, since)
                if now + _ROUNDING_S < time < earliest:
                    earliest = time
        if earliest == math.inf:
            return
        if self.retry_s:  # few different times, so that few events are added
            earliest = math.ceil(max(earliest, now + self.retry_s) / self.retry_s) * self.retry_s
        if earliest not in self._wakes:
            self._wakes.add(earliest)
            self.sim.wake(earliest)

    def _candidates(self, levels: list[int], since: float) -> Iterator[int]:
        """Yield the jobs that may be stopped, level by level, the cheapest first within a level."""
        for level in levels:
            jobs = [(self.cost_of_stopping(job), job) for job in self._running_at[level] if self.may_stop(job, since)]
            jobs.sort()
            yield from (job for _, job in jobs)

    def _victims(self, worse_levels: list[int], allowed: int, gpus: int, since: float) -> list[int]:
        """Return running jobs whose GPUs, with the free ones, hold a job of this size on one node or on whole nodes."""
        pool = self.sim.pool
        freed_on: dict[int, int] = {}  # whole GPUs, by node
        jobs_on: dict[int, list[int]] = {}
        freed_milli: dict[tuple[int, int], int] = {}
        usable = allowed & ~pool.down
        groups = [] if gpus <= pool.width else pool.groups
        for job in self._candidates(worse_levels, since):
            for node, count in self._freed_gpus(job, freed_milli):
                if not usable >> node & 1:
                    continue
                freed_on[node] = freed_on.get(node, 0) + count
                jobs_on.setdefault(node, []).append(job)
                if not groups and pool.free[node] + freed_on[node] >= gpus:
                    return self._needed_of(jobs_on[node], node, gpus)
            for _, capacity, mask in groups:
                victims = self._whole_nodes(gpus, capacity, mask & usable, freed_on, jobs_on)
                if victims:
                    return victims
        return []

    def _freed_gpus(self, job: int, freed_milli: dict[tuple[int, int], int]) -> list[tuple[int, int]]:
        """Return, by node, the whole GPUs freed if this job stops after those whose shares are in `freed_milli`."""
        placement = self.sim.placement[job]
        if isinstance(placement, int) or is_wide(placement):
            return [(node, int(count)) for node, count in nodes_of(placement, self.sim.held_gpus[job])]
        node, slot, milli = as_share(placement)
        already_free = freed_milli.get((node, slot), self.sim.pool.slots[node, slot])
        freed_milli[node, slot] = already_free + milli
        is_whole_free = freed_milli[node, slot] == WHOLE
        return [(node, int(is_whole_free))]

    def _needed_of(self, jobs: list[int], node: int, gpus: int) -> list[int]:
        """Return the jobs on a node, worst first, that must be stopped to free this many GPUs."""
        kept = list(jobs)
        for job in reversed(jobs[:-1]):
            fewer = [other for other in kept if other != job]
            if self._free_without(fewer, node) >= gpus:
                kept = fewer
        return kept

    def _free_without(self, jobs: list[int], node: int) -> int:
        """Return the whole GPUs that would be free on a node without these jobs."""
        freed_milli: dict[tuple[int, int], int] = {}
        free = self.sim.pool.free[node]
        for job in jobs:
            for other, count in self._freed_gpus(job, freed_milli):
                if other == node:
                    free += count
        return free

    def _whole_nodes(
        self, gpus: int, capacity: int, mask: int, freed_on: dict[int, int], jobs_on: dict[int, list[int]]
    ) -> list[int]:
        """Return the jobs to stop to empty enough whole nodes of a group; an empty list if that is not possible."""
        pool = self.sim.pool
        num_needed = -(-gpus // capacity)
        num_empty = (pool.by_free[capacity] & mask).bit_count()
        num_missing = max(0, num_needed - num_empty)
        emptied = [node for node, count in freed_on.items() if mask >> node & 1 and pool.free[node] + count >= capacity]
        if len(emptied) < num_missing:
            return []
        victims: dict[int, None] = {}
        for node in emptied[:num_missing]:
            victims.update(dict.fromkeys(jobs_on[node]))
        return list(victims)
