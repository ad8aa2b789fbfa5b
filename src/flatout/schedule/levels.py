"""Policies that serve jobs by level: lower levels first, within a level by an order, a blocked job lets others pass.

A subclass says at which level a job stands (`level`), when that changes while it runs (`next_change`), and its order
within a level (`order`). With `preempts`, a waiting job stops running ones that stand at least `margin` levels worse,
the worst first, and of those the ones that lose the fewest GPU-seconds; never one that is starting again, or has run
for less than `protected_s`. A job that waited for `ageing_s` at a stretch is urgent: before all levels, and it then
keeps its GPUs for `quantum_s`.

Waiting jobs are kept by level and shape, so that a decision looks at one job of each, not at the queue.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING, ClassVar

from flatout.schedule.engine import RUNNING, WAITING
from flatout.schedule.policy import Policy
from flatout.schedule.pool import WHOLE, Placement, is_wide, nodes_of, share

if TYPE_CHECKING:
    from flatout.schedule.engine import Simulation

URGENT = -1_000_000


class MultilevelPolicy(Policy):
    preempts: ClassVar[bool] = True
    margin: ClassVar[int] = 1
    protected_s: ClassVar[float] = 0.0
    ageing_s: ClassVar[float] = math.inf
    quantum_s: ClassVar[float] = 4 * 3600.0
    retry_s: ClassVar[float] = 60.0  # between attempts to make room for jobs of one shape and level

    def level(self, job: int) -> int:
        """Where the job stands now; lower is better."""
        raise NotImplementedError

    def next_change(self, job: int) -> float | None:
        """The time at which the level of a running job changes; None: never."""
        return None

    def order(self, job: int) -> float:
        return self.sim.submit[job]

    def attach(self, sim: Simulation) -> None:
        super().attach(sim)
        count = len(sim.jobs)
        self.waiting: dict[int, dict[int, list[tuple[float, int, int]]]] = {}
        self.levels = [0] * count  # as queued, or as running
        self.since = [0.0] * count  # waiting since
        self._stamp = [0] * count
        self._by_level: dict[int, dict[int, None]] = {}
        self._held: dict[int, float] = {}
        self._changes: list[tuple[float, int, int]] = []
        self._ageing: deque[tuple[float, int, int]] = deque()
        # Whole GPUs without which a shape can't start; a share may find room on a GPU that is in use.
        self._least = [shape.gpus if shape.milli == WHOLE else 0 for shape in sim.shapes]
        self._failed_until: dict[tuple[int, int], float] = {}

    def submitted(self, job: int) -> None:
        self._queue(job, self.level(job))
        self.since[job] = self.sim.now
        if self.ageing_s < math.inf:
            self._ageing.append((self.sim.now + self.ageing_s, job, self._stamp[job]))
            self.sim.wake(self.sim.now + self.ageing_s)

    def stopped(self, job: int) -> None:
        self._forget(job)
        self.submitted(job)

    def ended(self, job: int) -> None:
        self._stamp[job] += 1
        self._forget(job)

    def decide(self) -> None:
        now = self.sim.now
        changes = self._changes
        while changes and changes[0][0] <= now:
            _, job, stamp = heappop(changes)
            if self._stamp[job] == stamp and self.sim.status[job] == RUNNING:
                self._forget(job)
                self._remember(job, self.level(job))
        ageing = self._ageing
        while ageing and ageing[0][0] <= now:
            _, job, stamp = ageing.popleft()
            if self._stamp[job] == stamp and self.sim.status[job] == WAITING:
                self._queue(job, URGENT)
        if self.waiting:
            self._serve()

    def _serve(self) -> None:
        pool, blocked = self.sim.pool, set[int]()
        worst = self._worst_running()
        for level in sorted(self.waiting):
            while level in self.waiting:
                may_preempt = worst >= level + self.margin
                if not may_preempt and not pool.num_free and not pool.partial:
                    return
                head = self._head(level, blocked, math.inf if may_preempt else pool.num_free)
                if head is None:
                    break
                _, job, shape = head
                if self._begin(job):
                    continue
                if may_preempt and self._make_room(job, level, shape):
                    blocked.clear()
                    started = self._begin(job)
                    assert started
                    worst = self._worst_running()
                    continue
                blocked.add(shape)
                if self.keeps_order(level):
                    return

    def keeps_order(self, level: int) -> bool:
        """Whether a blocked job of this level keeps those behind it waiting."""
        return False

    def _head(self, level: int, blocked: set[int], room: float) -> tuple[float, int, int] | None:
        """The first job at a level, of the shapes that aren't blocked and ask for no more whole GPUs than `room`."""
        shapes, stamps, first, emptied = self.waiting[level], self._stamp, None, []
        for shape, heap in shapes.items():
            while heap and stamps[heap[0][1]] != heap[0][2]:
                heappop(heap)
            if not heap:
                emptied.append(shape)
            elif shape not in blocked and (self._least[shape] <= room or self.keeps_order(level)):
                found = (heap[0][0], heap[0][1], shape)
                if first is None or found < first:
                    first = found
        for shape in emptied:
            del shapes[shape]
        if not shapes:
            del self.waiting[level]
        return first

    def find(self, job: int) -> Placement | None:
        return self.sim.find(job)

    def start_found(self, job: int, place: Placement) -> None:
        self.sim.start_at(job, place)

    def _begin(self, job: int) -> bool:
        place = self.find(job)
        if place is None:
            return False
        self.start_found(job, place)
        self._stamp[job] += 1
        self._remember(job, self.levels[job])
        return True

    def _queue(self, job: int, level: int) -> None:
        self._stamp[job] += 1
        self.levels[job] = level
        shapes = self.waiting.setdefault(level, {})
        heappush(shapes.setdefault(self.sim.shape[job], []), (self.order(job), job, self._stamp[job]))

    def _remember(self, job: int, level: int) -> None:
        """Note a running job's level, and when it changes."""
        self.levels[job] = level
        self._by_level.setdefault(level, {})[job] = None
        self._held[level] = self._held.get(level, 0.0) + self.sim.size[job]
        change = self.sim.ready[job] + self.quantum_s if level == URGENT else self.next_change(job)
        if change is not None and change < math.inf:
            change = max(change, self.sim.now + 1e-3)
            heappush(self._changes, (change, job, self._stamp[job]))
            self.sim.wake(change)

    def _forget(self, job: int) -> None:
        level = self.levels[job]
        jobs = self._by_level.get(level)
        if jobs is not None and job in jobs:
            del jobs[job]
            self._held[level] -= self.sim.size[job]
            if not jobs:
                del self._by_level[level], self._held[level]

    def _worst_running(self) -> float:
        return max(self._by_level) if self.preempts and self._by_level else -math.inf

    # Preemption.

    def _make_room(self, job: int, level: int, shape: int) -> bool:
        """Stop running jobs so that this one fits, or stop none."""
        sim = self.sim
        if self._failed_until.get((shape, level), -math.inf) > sim.now:
            return False
        worse = sorted((other for other in self._by_level if other >= level + self.margin), reverse=True)
        gpus = sim.shapes[shape].gpus
        # A share that is alone on its GPU frees all of it.
        if sim.pool.num_free + len(sim.pool.partial) + sum(self._held[other] for other in worse) < gpus:
            return False
        victims = self._victims(worse, sim.shapes[shape].allowed, gpus)
        if not victims:
            self._failed_until[shape, level] = sim.now + self.retry_s
            return False
        for victim in victims:
            self._forget(victim)
            sim.preempt(victim)
            self.submitted(victim)
        return True

    def cost_of_stopping(self, job: int) -> float:
        """GPU-seconds that stopping a running job wastes."""
        return (self.sim.loss_if_stopped(job) + self.sim.restart[job]) * self.sim.size[job]

    def may_stop(self, job: int) -> bool:
        return self.sim.now - self.sim.ready[job] >= self.protected_s

    def _candidates(self, worse: list[int]) -> Iterator[int]:
        for level in worse:
            jobs = [(self.cost_of_stopping(job), job) for job in self._by_level[level] if self.may_stop(job)]
            jobs.sort()
            yield from (job for _, job in jobs)

    def _victims(self, worse: list[int], allowed: int, gpus: int) -> list[int]:
        """Running jobs whose GPUs, with the free ones, hold a job of that size: on one node, or whole nodes."""
        pool = self.sim.pool
        gained: dict[int, int] = {}
        freed: dict[tuple[int, int], int] = {}
        on_node: dict[int, list[int]] = {}
        usable = allowed & ~pool.down
        groups = [] if gpus <= pool.width else pool.groups
        for job in self._candidates(worse):
            for node, count in self._whole_gpus(job, freed):
                if not usable >> node & 1:
                    continue
                gained[node] = gained.get(node, 0) + count
                on_node.setdefault(node, []).append(job)
                if not groups and pool.free[node] + gained[node] >= gpus:
                    return self._fewest(on_node[node], node, gpus)
            for _, capacity, mask in groups:
                if found := self._whole_nodes(gpus, capacity, mask & usable, gained, on_node):
                    return found
        return []

    def _whole_gpus(self, job: int, freed: dict[tuple[int, int], int]) -> list[tuple[int, int]]:
        """By node, the whole GPUs that come free if this job stops after those whose shares are in `freed`."""
        place = self.sim.place[job]
        if isinstance(place, int) or is_wide(place):
            return [(node, int(count)) for node, count in nodes_of(place, self.sim.size[job])]
        node, slot, milli = share(place)
        freed[node, slot] = freed.get((node, slot), self.sim.pool.slots[node, slot]) + milli
        return [(node, int(freed[node, slot] == WHOLE))]

    def _fewest(self, jobs: list[int], node: int, gpus: int) -> list[int]:
        """Of the jobs on a node, worst first, those that are needed."""
        kept = list(jobs)
        for job in reversed(jobs[:-1]):
            fewer = [other for other in kept if other != job]
            if self._room(fewer, node) >= gpus:
                kept = fewer
        return kept

    def _room(self, jobs: list[int], node: int) -> int:
        """Whole GPUs free on a node without these jobs."""
        freed: dict[tuple[int, int], int] = {}
        gained = sum(count for job in jobs for n, count in self._whole_gpus(job, freed) if n == node)
        return self.sim.pool.free[node] + gained

    def _whole_nodes(
        self, gpus: int, capacity: int, mask: int, gained: dict[int, int], on_node: dict[int, list[int]]
    ) -> list[int]:
        pool = self.sim.pool
        needed = -(-gpus // capacity)
        free = pool.by_free[capacity] & mask
        short = needed - free.bit_count()
        emptied = [node for node, count in gained.items() if mask >> node & 1 and pool.free[node] + count >= capacity]
        if len(emptied) < short:
            return []
        victims: dict[int, None] = {}
        for node in emptied[: max(0, short)]:
            victims.update(dict.fromkeys(on_node[node]))
        return list(victims)
