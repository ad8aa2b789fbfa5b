"""The reservation of backfilling: when and where the first waiting job will fit, and what it leaves free there then.

In: a simulation, the job, and the running jobs by estimated end. Out: a `Reservation`. It takes nothing from the pool.

Shares of a GPU are counted as shares: a GPU becomes free for a job that needs all of it when the last of its shares
ends, and a waiting share fits as soon as one GPU has enough left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from flatout.schedule.pool import WHOLE, Placement, Pool, as_share, is_wide, lowest, mask_of

if TYPE_CHECKING:
    from flatout.schedule.engine import Shape, Simulation

Slot = tuple[int, int]  # node, and number of the shared GPU on it


class EstimatedEnd(NamedTuple):
    """A running job, when it is expected to end, and the GPUs that it frees then."""

    end_s: float
    job: int
    placement: Placement
    gpus: int  # on a placement of one node


class Reservation:
    """The job gets its GPUs at `start_s`; other jobs can run past that on GPUs that the reservation leaves free."""

    def __init__(
        self, job: int, start_s: float, gpus_left: list[int], milli_left: dict[Slot, int], capacity: Sequence[int]
    ) -> None:
        self.job, self.start_s = job, start_s
        self._gpus_left = gpus_left  # whole GPUs, by node
        self._milli_left = milli_left  # of the GPUs that are shared at `start_s`
        self._capacity = capacity
        self._masks: list[int] = []  # computed when needed

    def take_left(self, placement: Placement, gpus: int) -> None:
        """Subtract the GPUs, left free by the reservation, of a job that can run past its start."""
        self._masks = []
        if isinstance(placement, int):
            self._gpus_left[placement] -= gpus
        elif is_wide(placement):
            for node, count in placement:
                self._gpus_left[node] -= count
        else:
            node, slot, milli = as_share(placement)
            if (node, slot) not in self._milli_left:
                self._gpus_left[node] -= 1
                self._milli_left[node, slot] = WHOLE
            self._milli_left[node, slot] -= milli

    def nodes_with_left(self, gpus: int) -> int:
        """Return the mask of nodes with enough GPUs left free; for a job of many nodes, those with all GPUs left."""
        if not self._masks:
            self._masks = self._masks_by_gpus()
        return self._masks[min(gpus, len(self._masks) - 1)]

    def leaves_share(self, node: int, slot: int, milli: int) -> bool:
        """Whether a share can stay on this shared GPU past the start of the reservation."""
        left = self._milli_left.get((node, slot))
        if left is None:  # all shares that are on it now end before
            return self._gpus_left[node] > 0
        return left >= milli

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


def reserve(sim: Simulation, job: int, ends: Iterable[EstimatedEnd]) -> Reservation:
    """Return the reservation for a waiting job, if all running jobs end as estimated."""
    future = _FutureNodes(sim.pool, sim.shapes[sim.shape[job]])
    start_s = future.release_until_it_fits(ends)
    if start_s is None:
        # Only nodes that are down now could hold the job, and their repair times are unknown.
        return Reservation(job, sim.now, [0] * len(future.free), {}, sim.pool.capacity)
    future.take()
    return Reservation(job, start_s, future.free, future.milli_free, sim.pool.capacity)


class _FutureNodes:
    """The free GPUs of the nodes as running jobs end one after the other, for one waiting job."""

    def __init__(self, pool: Pool, shape: Shape) -> None:
        self.free = list(pool.free)
        self.milli_free = dict(pool.slots)  # of the shared GPUs
        self._emptied: list[Slot] = []  # GPUs that are shared now, but free after the jobs released so far
        self._gpus, self._milli = shape.gpus, shape.milli
        self._capacity, self._groups = pool.capacity, pool.groups
        self._usable = shape.allowed & ~pool.down
        self._is_share = shape.milli != WHOLE
        self._is_wide = shape.gpus > pool.width
        self._empty = 0  # mask of nodes on which all GPUs are free; for a wide job
        # A node with fewer free GPUs makes no difference unless it is empty: a wide job fits only once a node is
        # empty, or once a node has enough for the remainder after whole nodes.
        self._least_relevant: float = shape.gpus
        if self._is_wide:
            for _, capacity, mask in pool.types:
                self._empty |= mask & pool.by_free[capacity]
            has_rest = any(shape.gpus % capacity for _, capacity, _ in pool.types)
            self._least_relevant = 1 if has_rest else math.inf

    def release_until_it_fits(self, ends: Iterable[EstimatedEnd]) -> float | None:
        """Release the GPUs of running jobs in order of their ends; return the time when the job fits, or None if never.

        The GPUs of all jobs that end at that time are released too.
        """
        start_s: float | None = None
        for end_s, _, placement, gpus in ends:
            if start_s is not None and end_s > start_s:
                break
            fits = self._release(placement, gpus)
            if fits and start_s is None:
                start_s = end_s
        return start_s

    def _release(self, placement: Placement, gpus: int) -> bool:
        """Release the GPUs of a running job; return whether the waiting job fits now because of them."""
        if isinstance(placement, int):
            return self._release_on(placement, gpus)
        if is_wide(placement):
            fits = False
            for node, count in placement:
                fits = self._release_on(node, count) or fits
            return fits
        return self._release_share(*as_share(placement))

    def _release_share(self, node: int, slot: int, milli: int) -> bool:
        free_milli = self.milli_free[node, slot] + milli
        if free_milli == WHOLE:
            del self.milli_free[node, slot]
            self._emptied.append((node, slot))
            return self._release_on(node, 1)
        self.milli_free[node, slot] = free_milli
        return self._is_share and free_milli >= self._milli and bool(self._usable >> node & 1)

    def _release_on(self, node: int, gpus: int) -> bool:
        """Release whole GPUs of a node; return whether the waiting job fits now because of them."""
        free_now = self.free[node] + gpus
        self.free[node] = free_now
        if free_now == self._capacity[node]:
            self._empty |= 1 << node
        elif free_now < self._least_relevant:
            return False
        if self._is_wide:
            return self._whole_nodes() is not None
        return free_now >= self._gpus and bool(self._usable >> node & 1)

    def take(self) -> None:
        """Take the GPUs that the pool would choose for the job, which must fit."""
        if self._is_share:
            self._take_share()
            return
        if not self._is_wide:
            self.free[self._best_fit(self._gpus, self._usable)] -= self._gpus
            return
        pieces = self._whole_nodes()
        assert pieces is not None
        for node, count in pieces:
            self.free[node] -= count

    def _take_share(self) -> None:
        """Take the share from the shared GPU with the least sufficient space, or else from an unused GPU."""
        options = [
            (free_milli, node, slot)
            for (node, slot), free_milli in self.milli_free.items()
            if free_milli >= self._milli and self._usable >> node & 1
        ]
        if options:
            _, node, slot = min(options)
            self.milli_free[node, slot] -= self._milli
            return
        node = self._best_fit(1, self._usable)
        self.free[node] -= 1
        on_node = [(other, slot) for other, slot in self._emptied if other == node]
        if on_node:  # a small share can stay on it next to the job
            self.milli_free[min(on_node)] = WHOLE - self._milli

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
