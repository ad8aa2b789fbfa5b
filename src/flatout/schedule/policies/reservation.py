"""The reservation of backfilling: when and where the first waiting job will fit, and the GPUs left on each node then.

In: a simulation, the job, and the running jobs by estimated end. Out: a `Reservation`. It takes nothing from the pool.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from flatout.schedule.pool import Pool, lowest, mask_of

if TYPE_CHECKING:
    from flatout.schedule.engine import Simulation

Pieces = Sequence[tuple[int, int]]  # node, GPUs


class Reservation:
    """The job gets its GPUs at `start_s`; other jobs can run past that on GPUs that the reservation leaves free."""

    def __init__(self, job: int, start_s: float, gpus_left: list[int], capacity: Sequence[int]) -> None:
        self.job, self.start_s = job, start_s
        self._gpus_left = gpus_left  # by node
        self._capacity = capacity
        self._masks: list[int] = []  # computed when needed

    def take_left(self, pieces: Pieces) -> None:
        """Subtract GPUs, left free by the reservation, that were taken by a job which can run past its start."""
        for node, count in pieces:
            self._gpus_left[node] -= count
        self._masks = []

    def nodes_with_left(self, gpus: int) -> int:
        """Return the mask of nodes with enough GPUs left free; for a job of many nodes, those with all GPUs left."""
        if not self._masks:
            self._masks = self._masks_by_gpus()
        return self._masks[min(gpus, len(self._masks) - 1)]

    def _masks_by_gpus(self) -> list[int]:
        """Return for each number of GPUs the nodes with that number or more left, and last the nodes with all left."""
        width = max(self._capacity, default=0)
        masks = [0] * (width + 2)
        for node, gpus in enumerate(self._gpus_left):
            if gpus:
                masks[gpus] |= 1 << node
                if gpus == self._capacity[node]:
                    masks[-1] |= 1 << node
        for gpus in range(width - 1, 0, -1):
            masks[gpus] |= masks[gpus + 1]
        return masks


def reserve(sim: Simulation, job: int, ends: Iterable[tuple[float, int, Pieces]]) -> Reservation:
    """Return the reservation for a waiting job, if all running jobs end as estimated."""
    gpus, _, allowed, _ = sim.shapes[sim.shape[job]]
    future = _FutureNodes(sim.pool, gpus, allowed)
    start_s = future.release_until_it_fits(ends)
    if start_s is None:
        # Only nodes that are down now could hold the job, and their repair times are unknown.
        return Reservation(job, sim.now, [0] * len(future.free), sim.pool.capacity)
    for node, count in future.nodes():
        future.free[node] -= count
    return Reservation(job, start_s, future.free, sim.pool.capacity)


class _FutureNodes:
    """The free GPUs of the nodes as running jobs end one after the other, for one waiting job."""

    def __init__(self, pool: Pool, gpus: int, allowed: int) -> None:
        self.free = list(pool.free)
        self._gpus, self._capacity, self._groups = gpus, pool.capacity, pool.groups
        self._usable = allowed & ~pool.down
        self._is_wide = gpus > pool.width
        self._empty = 0  # mask of nodes on which all GPUs are free; for a wide job
        # A node with fewer free GPUs makes no difference unless it is empty: a wide job fits only once a node is
        # empty, or once a node has enough for the remainder after whole nodes.
        self._least_relevant: float = gpus
        if self._is_wide:
            for _, capacity, mask in pool.types:
                self._empty |= mask & pool.by_free[capacity]
            has_rest = any(gpus % capacity for _, capacity, _ in pool.types)
            self._least_relevant = 1 if has_rest else math.inf

    def release_until_it_fits(self, ends: Iterable[tuple[float, int, Pieces]]) -> float | None:
        """Release the GPUs of running jobs in order of their ends; return the time when the job fits, or None if never.

        The GPUs of all jobs that end at that time are released too.
        """
        free, capacity, least_relevant = self.free, self._capacity, self._least_relevant
        start_s: float | None = None
        for end, _, pieces in ends:
            if start_s is not None and end > start_s:
                break
            for node, count in pieces:
                free_now = free[node] + count
                free[node] = free_now
                is_empty = free_now == capacity[node]
                if is_empty:
                    self._empty |= 1 << node
                elif free_now < least_relevant:
                    continue
                if start_s is None and self._fits_with(node):
                    start_s = end
        return start_s

    def _fits_with(self, node: int) -> bool:
        """Whether the job fits now that GPUs of this node have become free."""
        if self._is_wide:
            return self._whole_nodes() is not None
        return self.free[node] >= self._gpus and bool(self._usable >> node & 1)

    def nodes(self) -> Pieces:
        """Return the nodes that the pool would choose for the job, which must fit."""
        if not self._is_wide:
            return [(self._best_fit(self._gpus, self._usable), self._gpus)]
        nodes = self._whole_nodes()
        assert nodes is not None
        return nodes

    def _whole_nodes(self) -> list[tuple[int, int]] | None:
        """Return whole nodes for a wide job, and a node with enough for the rest; None if there are too few."""
        for _, capacity, mask in self._groups:
            num_whole, rest = divmod(self._gpus, capacity)
            members = mask & self._usable
            empty = self._empty & members
            if empty.bit_count() < num_whole:
                continue
            whole_nodes = lowest(empty, num_whole)
            pieces = [(node, capacity) for node in whole_nodes]
            if rest:
                last = self._best_fit(rest, members & ~mask_of(whole_nodes))
                if last < 0:
                    continue
                pieces.append((last, rest))
            return pieces
        return None

    def _best_fit(self, gpus: int, allowed: int) -> int:
        """Return the allowed node with the fewest sufficient free GPUs; -1 if there is none."""
        options = [(free, node) for node, free in enumerate(self.free) if free >= gpus and allowed >> node & 1]
        if not options:
            return -1
        _, node = min(options)
        return node
