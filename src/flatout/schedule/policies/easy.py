"""EASY backfill: in order, but a job may pass the one that waits first if that doesn't delay it.

Rule: the first waiting job gets a reservation, at the time and on the nodes where it will fit if all running jobs end
as estimated. Another may start now if it ends before that by its estimate, or uses GPUs that the reservation leaves
free. Estimates are the users' time limits, or else what nine in ten of the same users' or teams' jobs of that size
stayed within; a job that outlives its estimate is expected to run as long again. `easy-oracle` knows all durations.
Source: Lifka 1995; Mu'alem and Feitelson, TPDS 2001.
When wrong: with limits that are the maximum of the partition nothing fits before a reservation; with predictions that
are too short the first job is delayed after all. Shares of a GPU count as a whole one in reservations.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from typing import TYPE_CHECKING, ClassVar

from flatout.schedule.durations import Durations
from flatout.schedule.engine import WAITING
from flatout.schedule.estimate_queue import EstimateQueue
from flatout.schedule.policy import Policy
from flatout.schedule.pool import WHOLE, Placement, lowest, nodes_of

if TYPE_CHECKING:
    from flatout.schedule.engine import Simulation

_QUANTILE = 0.9
_ANY = 1e300  # an estimate that every job stays within


class Easy(Policy):
    name: ClassVar[str] = "easy"
    summary: ClassVar[str] = "in order, others may pass where they don't delay the first (EASY backfill)"

    def attach(self, sim: Simulation) -> None:
        super().attach(sim)
        self.durations = Durations(sim.jobs)
        self.order: deque[int] = deque()
        self.queues = [EstimateQueue() for _ in sim.shapes]
        self.estimate = [0.0] * len(sim.jobs)
        # Running jobs by estimated end, with their whole GPUs by node.
        self.ends: list[tuple[float, int, tuple[tuple[int, int], ...]]] = []
        self.end_of: dict[int, float] = {}
        self._position = 0
        self._reserved_for = -1
        self._shadow = 0.0
        self._extra: list[int] = []
        self._beside_masks: list[int] = []
        # Each node once, by the GPUs that it has.
        self._types = sim.pool.types

    def estimated(self, job: int) -> float:
        limit = self.sim.jobs[job].limit_s
        return limit if limit is not None else self.durations.quantile(job, _QUANTILE)

    def submitted(self, job: int) -> None:
        self.estimate[job] = self.estimated(job)
        self.order.append(job)
        self._position += 1
        self.queues[self.sim.shape[job]].append(job, self._position, self.estimate[job])

    def stopped(self, job: int) -> None:
        self._forget(job)
        self.submitted(job)
        # Ahead of all: it had its turn. Its position in the search for backfilling is the last.
        self.order.pop()
        self.order.appendleft(job)
        self._reserved_for = -1

    def ended(self, job: int) -> None:
        self.durations.ended(job, self.sim.held_s[job], self.estimate[job])
        self._forget(job)

    def _forget(self, job: int) -> None:
        end = self.end_of.pop(job)
        del self.ends[bisect_left(self.ends, (end, job))]
        if end > self.sim.now + 1e-6:
            self._reserved_for = -1  # it left earlier than the reservation counts on

    def _started(self, job: int) -> None:
        self.queues[self.sim.shape[job]].remove(job)
        end = self.sim.ready[job] + self.estimate[job]
        self.end_of[job] = end
        pieces = tuple((node, math.ceil(count)) for node, count in nodes_of(self.sim.place[job], self.sim.size[job]))
        insort(self.ends, (end, job, pieces))

    def decide(self) -> None:
        sim, order = self.sim, self.order
        while order:
            first = order[0]
            if sim.status[first] == WAITING:
                if not sim.start(first):
                    break
                self._started(first)
            order.popleft()
        if order and (sim.pool.num_free or sim.pool.partial):
            self._backfill(order[0])

    def _backfill(self, first: int) -> None:
        sim = self.sim
        if self._reserved_for != first or sim.now >= self._shadow:
            self._reserve(first)
        blocked: set[int] = set()
        while sim.pool.num_free or sim.pool.partial:
            found = self._candidate(blocked)
            if found is None:
                return
            _, job, place, is_beside = found
            sim.start_at(job, place)
            self._started(job)
            if is_beside:
                for node, count in nodes_of(place, sim.size[job]):
                    self._extra[node] -= math.ceil(count)
                self._beside_masks = []

    def _candidate(self, blocked: set[int]) -> tuple[int, int, Placement, bool] | None:
        """The earliest waiting job that may start now, with GPUs taken for it."""
        sim, pool = self.sim, self.sim.pool
        window, free, shapes = self._shadow - sim.now, pool.num_free, sim.shapes
        best: tuple[int, int, int, bool] | None = None
        for number, queue in enumerate(self.queues):
            if not queue.size or number in blocked:
                continue
            gpus, milli, allowed, _ = shapes[number]
            if milli != WHOLE:
                place = queue.find(window)
                if place >= 0 and (best is None or queue.positions[place] < best[0]):
                    best = (queue.positions[place], queue.jobs[place], number, False)
                continue
            if gpus > free or not pool.fits(gpus, allowed):
                blocked.add(number)
                continue
            # Before the reservation there is room for short ones, beside it for any.
            place = queue.find(window)
            if place >= 0 and (best is None or queue.positions[place] < best[0]):
                best = (queue.positions[place], queue.jobs[place], number, False)
            earliest = queue.find(_ANY)
            if (best is None or queue.positions[earliest] < best[0]) and pool.fits(gpus, allowed & self._beside(gpus)):
                best = (queue.positions[earliest], queue.jobs[earliest], number, True)
        if best is None:
            return None
        position, job, number, is_beside = best
        gpus, milli, allowed, _ = sim.shapes[number]
        if milli != WHOLE:
            taken: Placement | None = pool.take_share(milli, allowed)
        else:
            taken = pool.take(gpus, allowed & self._beside(gpus) if is_beside else allowed)
        if taken is None:  # a share for which no GPU has room
            blocked.add(number)
            return self._candidate(blocked)
        return position, job, taken, is_beside

    def _beside(self, gpus: int) -> int:
        """The mask of nodes on which the reservation leaves that many GPUs, or all of them for a job of many nodes."""
        if not self._beside_masks:
            self._beside_masks = masks = [0] * (self.sim.pool.width + 2)
            for node, extra in enumerate(self._extra):
                if extra:
                    masks[extra] |= 1 << node
                    if extra == self.sim.pool.capacity[node]:
                        masks[-1] |= 1 << node
            for count in range(len(masks) - 3, 0, -1):
                masks[count] |= masks[count + 1]
        return self._beside_masks[min(gpus, len(self._beside_masks) - 1)]

    def _reserve(self, first: int) -> None:
        """When and where the first job will fit, if estimates hold; what is left of each node then."""
        sim, pool = self.sim, self.sim.pool
        gpus, _, allowed, _ = sim.shapes[sim.shape[first]]
        usable = allowed & ~pool.down
        free, capacity, is_wide = list(pool.free), pool.capacity, gpus > pool.width
        self._beside_masks = []
        self._reserved_for = first
        self._extend_overdue()
        empty = sum(mask & pool.by_free[gpus_a_node] for _, gpus_a_node, mask in self._types) if is_wide else 0
        # A wide job fits anew only where a node got empty, or has room for what is left over of whole nodes.
        least = gpus if not is_wide else 1 if any(gpus % size for _, size, _ in self._types) else math.inf
        last_end = math.inf
        for end, _, pieces in self.ends:
            if end > last_end:
                break  # all that ends together with the last one needed is free then
            for node, count in pieces:
                room = free[node] = free[node] + count
                if room < least and room != capacity[node]:
                    continue
                if room == capacity[node]:
                    empty |= 1 << node
                if last_end < math.inf:
                    continue
                if self._whole_nodes(gpus, usable, empty, free) if is_wide else usable >> node & 1 and room >= gpus:
                    last_end = end
        if last_end == math.inf:
            # Only nodes that are down now could hold it: nothing is known of when.
            self._shadow, self._extra = sim.now, [0] * len(free)
            return
        self._shadow, self._extra = last_end, free
        if is_wide:
            nodes = self._whole_nodes(gpus, usable, empty, free)
            assert nodes is not None
        else:
            nodes = [
                (min((room, node) for node, room in enumerate(free) if room >= gpus and usable >> node & 1)[1], gpus)
            ]
        for node, count in nodes:
            free[node] -= count

    def _whole_nodes(self, gpus: int, usable: int, empty: int, free: list[int]) -> list[tuple[int, int]] | None:
        """Whole nodes for a wide job, and one with room for the rest, as the pool would choose them."""
        for _, capacity, mask in self.sim.pool.groups:
            whole, rest = divmod(gpus, capacity)
            members = empty & mask & usable
            if members.bit_count() < whole:
                continue
            chosen = lowest(members, whole)
            found = [(node, capacity) for node in chosen]
            if rest:
                others = (mask & usable) & ~sum(1 << node for node in chosen)
                rooms = [(room, node) for node, room in enumerate(free) if room >= rest and others >> node & 1]
                if not rooms:
                    continue
                found.append((min(rooms)[1], rest))
            return found
        return None

    def _extend_overdue(self) -> None:
        now = self.sim.now
        while self.ends and self.ends[0][0] <= now:
            end, job, pieces = self.ends.pop(0)
            end = now + max(60.0, now - self.sim.started[job])
            self.end_of[job] = end
            insort(self.ends, (end, job, pieces))

    def notes(self) -> tuple[str, ...]:
        if all(job.limit_s is not None for job in self.sim.jobs):
            return ("estimates are the users' time limits",)
        return (self.durations.error_text() + " (as an estimate that nine in ten jobs should stay within)",)


class EasyOracle(Easy):
    name: ClassVar[str] = "easy-oracle"
    summary: ClassVar[str] = "the same, knowing all durations"
    is_oracle: ClassVar[bool] = True

    def estimated(self, job: int) -> float:
        return self.sim.left[job]

    def notes(self) -> tuple[str, ...]:
        return ("knows how long each job will run",)
