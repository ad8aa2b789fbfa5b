"""The GPUs of a cluster as the simulator allocates them: whole GPUs by bit masks of nodes, shares of a GPU by size.

Nodes with `f` free GPUs are the bits of `by_free[f]`, so that best fit, a GPU type, a team's own nodes and failed nodes
take a few integer operations, regardless of the number of nodes. A job that needs at most one node's GPUs gets one
node; a wider job gets whole nodes of one type (and the rest on one more), within one topology domain if one has enough
free.

A placement is the number of a node; or `((node, gpus), ...)` for a wide job; or `(node, slot, milli)` for a share of a
GPU, where a slot is a GPU that shares were taken from.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from typing import TypeGuard

from flatout.schedule.cluster import Node

Placement = int | tuple[tuple[int, int], ...] | tuple[int, int, int]
Group = tuple[str, int, int]  # GPU type, GPUs per node, mask of the nodes
WHOLE = 1000  # a GPU in thousandths


class Pool:
    """Free GPUs of a cluster. A `take` method that returns None has changed nothing."""

    def __init__(self, nodes: Sequence[Node], *, is_first_fit: bool = False) -> None:
        self.capacity = [node.num_gpus for node in nodes]
        self.free = list(self.capacity)
        self.width = max(self.capacity, default=0)
        self.by_free = [0] * (self.width + 1)
        for number, gpus in enumerate(self.capacity):
            self.by_free[gpus] |= 1 << number
        self.num_free = sum(self.capacity)
        self.down = 0  # mask of failed nodes
        self.is_first_fit = is_first_fit
        self.groups, self.types = _groups(nodes)
        # Partly used GPUs: (free milli, node, slot), sorted, so that best fit is one bisection.
        self.partial: list[tuple[int, int, int]] = []
        self.slots: dict[tuple[int, int], int] = {}
        self._next_slot = [0] * len(self.capacity)

    def take(self, gpus: int, allowed: int = -1) -> Placement | None:
        """Take whole GPUs on the node with the fewest that suffice (first fit: the first node), or on whole nodes."""
        if gpus > self.width:
            return self._take_wide(gpus, allowed)
        if self.is_first_fit:
            return self._take_first(gpus, allowed)
        by_free = self.by_free
        for count in range(gpus, self.width + 1):
            nodes = by_free[count] & allowed
            if nodes:
                bit = nodes & -nodes
                by_free[count] ^= bit
                by_free[count - gpus] |= bit
                node = bit.bit_length() - 1
                self.free[node] = count - gpus
                self.num_free -= gpus
                return node
        return None

    def _take_wide(self, gpus: int, allowed: int) -> Placement | None:
        pieces = self.wide(gpus, allowed)
        if pieces is None:
            return None
        for node, count in pieces:
            self._take_on(node, count)
        return pieces

    def _take_first(self, gpus: int, allowed: int) -> Placement | None:
        nodes = 0
        for count in range(gpus, self.width + 1):
            nodes |= self.by_free[count]
        nodes &= allowed
        if not nodes:
            return None
        node = lowest_bit(nodes)
        self._take_on(node, gpus)
        return node

    def fits(self, gpus: int, allowed: int = -1) -> bool:
        """Whether `take` would succeed."""
        if gpus > self.num_free:
            return False
        if gpus <= self.width:
            return any(self.by_free[count] & allowed for count in range(gpus, self.width + 1))
        return self.wide(gpus, allowed) is not None

    def wide(self, gpus: int, allowed: int = -1) -> tuple[tuple[int, int], ...] | None:
        """Return whole nodes for a job wider than a node, in the smallest group (domain, then type) that has them."""
        for _, capacity, mask in self.groups:
            num_whole, rest = divmod(gpus, capacity)
            members = mask & allowed
            empty = self.by_free[capacity] & members
            if empty.bit_count() < num_whole:
                continue
            nodes = lowest(empty, num_whole)
            pieces = [(node, capacity) for node in nodes]
            if rest:
                last = self._node_for_rest(rest, capacity, members & ~mask_of(nodes))
                if last is None:
                    continue
                pieces.append((last, rest))
            return tuple(pieces)
        return None

    def _node_for_rest(self, rest: int, capacity: int, allowed: int) -> int | None:
        """Return the allowed node with the fewest free GPUs that are at least `rest`."""
        for count in range(rest, capacity + 1):
            nodes = self.by_free[count] & allowed
            if nodes:
                return lowest_bit(nodes)
        return None

    def take_share(self, milli: int, allowed: int = -1) -> tuple[int, int, int] | None:
        """Take a share of one GPU: the partly used GPU with the least sufficient space, or else an unused GPU."""
        return self.take_share_where(milli, allowed, allowed, lambda node, slot: True)

    def take_share_where(
        self, milli: int, allowed: int, allowed_new: int, may_use: Callable[[int, int], bool]
    ) -> tuple[int, int, int] | None:
        """Take a share of a partly used GPU (node and slot) that `may_use` permits, or else of an unused GPU.

        The unused GPU is on a node in the mask `allowed_new`.
        """
        index = self._partial_for(milli, allowed, may_use)
        if index is not None:
            free_milli, node, slot = self.partial.pop(index)
            self._set_slot(node, slot, free_milli - milli)
            return (node, slot, milli)
        new_node = self.take(1, allowed_new)
        if new_node is None:
            return None
        assert isinstance(new_node, int)
        slot = self._open_slot(new_node)
        self._set_slot(new_node, slot, WHOLE - milli)
        return (new_node, slot, milli)

    def fits_share(
        self, milli: int, allowed: int, allowed_new: int, may_use: Callable[[int, int], bool] = lambda node, slot: True
    ) -> bool:
        """Whether `take_share_where` would succeed."""
        return self.fits(1, allowed_new) or self._partial_for(milli, allowed, may_use) is not None

    def _partial_for(self, milli: int, allowed: int, may_use: Callable[[int, int], bool]) -> int | None:
        """Return the index in `partial` of the GPU with the least sufficient space; None if no such GPU may be used."""
        usable = allowed & ~self.down
        first = bisect_left(self.partial, (milli, -1, -1))
        for index in range(first, len(self.partial)):
            _, node, slot = self.partial[index]
            if usable >> node & 1 and may_use(node, slot):
                return index
        return None

    def _open_slot(self, node: int) -> int:
        """Return the number of a new slot on the node, for a GPU that was just taken to be shared."""
        slot = self._next_slot[node]
        self._next_slot[node] += 1
        return slot

    def _set_slot(self, node: int, slot: int, free_milli: int) -> None:
        self.slots[node, slot] = free_milli
        if free_milli:
            insort(self.partial, (free_milli, node, slot))

    def release(self, placement: Placement, gpus: int) -> None:
        """Return to the pool the GPUs that a `take` method handed out."""
        if isinstance(placement, int):
            self._release_on(placement, gpus)
        elif is_wide(placement):
            for node, count in placement:
                self._release_on(node, count)
        else:
            self._release_share(*as_share(placement))

    def _release_share(self, node: int, slot: int, milli: int) -> None:
        free_milli = self.slots.pop((node, slot))
        if free_milli:
            del self.partial[bisect_left(self.partial, (free_milli, node, slot))]
        if free_milli + milli == WHOLE:
            self._release_on(node, 1)
        else:
            self._set_slot(node, slot, free_milli + milli)

    def fail(self, node: int) -> None:
        """Remove the node until `repair`; its jobs must have been stopped, so that all of its GPUs are free."""
        assert self.free[node] == self.capacity[node]
        self.by_free[self.free[node]] &= ~(1 << node)
        self.num_free -= self.capacity[node]
        self.down |= 1 << node

    def repair(self, node: int) -> None:
        self.by_free[self.free[node]] |= 1 << node
        self.num_free += self.capacity[node]
        self.down &= ~(1 << node)

    def _take_on(self, node: int, gpus: int) -> None:
        count, bit = self.free[node], 1 << node
        self.by_free[count] ^= bit
        self.by_free[count - gpus] |= bit
        self.free[node] = count - gpus
        self.num_free -= gpus

    def _release_on(self, node: int, gpus: int) -> None:
        count, bit = self.free[node], 1 << node
        self.by_free[count] ^= bit
        self.by_free[count + gpus] |= bit
        self.free[node] = count + gpus
        self.num_free += gpus


def is_wide(placement: Placement) -> TypeGuard[tuple[tuple[int, int], ...]]:
    """Whether a placement has pieces on several nodes."""
    return not isinstance(placement, int) and isinstance(placement[0], tuple)


def as_share(placement: Placement) -> tuple[int, int, int]:
    """Return the node, slot and thousandths of a placement that is a share of a GPU."""
    return placement  # type: ignore[return-value]


def nodes_of(placement: Placement, gpus: float) -> list[tuple[int, float]]:
    """Return the nodes of a placement, and the GPUs (or the share of one) held on each."""
    if isinstance(placement, int):
        return [(placement, gpus)]
    if is_wide(placement):
        return [(node, float(count)) for node, count in placement]
    node, _, milli = as_share(placement)
    return [(node, milli / WHOLE)]


def _groups(nodes: Sequence[Node]) -> tuple[list[Group], list[Group]]:
    """Return the groups of nodes that a wide job can span (domains, the smallest first, then types), and the types."""
    domains: dict[tuple[str, int, str], int] = {}
    types: dict[tuple[str, int], int] = {}
    for number, node in enumerate(nodes):
        kind = (node.gpu_type, node.num_gpus)
        bit = 1 << number
        domains[*kind, node.domain] = domains.get((*kind, node.domain), 0) | bit
        types[kind] = types.get(kind, 0) | bit
    parts = [(kind, gpus, mask) for (kind, gpus, _), mask in domains.items() if mask != types[kind, gpus]]
    parts.sort(key=lambda group: (group[2].bit_count(), group[2]))
    whole_types = [(kind, gpus, mask) for (kind, gpus), mask in types.items()]
    return parts + whole_types, whole_types


def lowest_bit(mask: int) -> int:
    """Return the number of the lowest bit of a mask."""
    return (mask & -mask).bit_length() - 1


def lowest(mask: int, count: int) -> list[int]:
    """Return the numbers of the lowest bits of a mask."""
    numbers = []
    for _ in range(count):
        bit = mask & -mask
        numbers.append(bit.bit_length() - 1)
        mask ^= bit
    return numbers


def mask_of(numbers: Sequence[int]) -> int:
    """Return the mask with these bits set."""
    mask = 0
    for number in numbers:
        mask |= 1 << number
    return mask
