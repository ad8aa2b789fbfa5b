"""The GPUs of a cluster as the simulator hands them out: whole GPUs by bit masks of nodes, shares of a GPU by size.

Nodes with `f` free GPUs are the bits of `by_free[f]`, so that best fit, a GPU type, a team's own nodes and failed nodes
are a few operations on integers, whatever the number of nodes. A job of at most a node's GPUs gets one node; a wider
one gets whole nodes of one type (and the rest on one more), within one topology domain where one has room.

A place is the number of a node; or `((node, gpus), ...)` for a wide job; or `(node, slot, milli)` for a share of a GPU.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import TypeGuard

from flatout.schedule.cluster import Node

Placement = int | tuple[tuple[int, int], ...] | tuple[int, int, int]
Group = tuple[str, int, int]  # GPU type, GPUs a node, mask of the nodes
WHOLE = 1000  # a GPU in thousandths


class Pool:
    """Free GPUs. `take` changes nothing where it returns None."""

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
        """Whole GPUs: on the fullest node with room (the first one, under first fit), or on whole nodes."""
        by_free = self.by_free
        if gpus <= self.width:
            if self.is_first_fit:
                node = self._first(gpus, allowed)
                return None if node < 0 else self._hold(node, gpus)
            for count in range(gpus, self.width + 1):
                if found := by_free[count] & allowed:
                    bit = found & -found
                    by_free[count] ^= bit
                    by_free[count - gpus] |= bit
                    node = bit.bit_length() - 1
                    self.free[node] = count - gpus
                    self.num_free -= gpus
                    return node
            return None
        pieces = self.wide(gpus, allowed)
        if pieces is None:
            return None
        for node, count in pieces:
            self._hold(node, count)
        return pieces

    def fits(self, gpus: int, allowed: int = -1) -> bool:
        """Whether `take` would find a place."""
        if gpus > self.num_free:
            return False
        if gpus <= self.width:
            return any(self.by_free[count] & allowed for count in range(gpus, self.width + 1))
        return self.wide(gpus, allowed) is not None

    def wide(self, gpus: int, allowed: int = -1) -> tuple[tuple[int, int], ...] | None:
        """Whole nodes for a job wider than a node, in the smallest group (a domain, then a type) that has room."""
        for _, capacity, mask in self.groups:
            whole, rest = divmod(gpus, capacity)
            free = self.by_free[capacity] & mask & allowed
            if free.bit_count() < whole:
                continue
            nodes = lowest(free, whole)
            pieces = [(node, capacity) for node in nodes]
            if rest:
                others = mask & allowed
                for node in nodes:
                    others &= ~(1 << node)
                last = next(
                    (found for count in range(rest, capacity + 1) if (found := self.by_free[count] & others)), 0
                )
                if not last:
                    continue
                pieces.append(((last & -last).bit_length() - 1, rest))
            return tuple(pieces)
        return None

    def take_share(self, milli: int, allowed: int = -1) -> tuple[int, int, int] | None:
        """A share of one GPU: the partly used GPU with the least room that is enough, or a new one by best fit."""
        for place in range(bisect_left(self.partial, (milli, -1, -1)), len(self.partial)):
            room, node, slot = self.partial[place]
            if allowed >> node & 1 and not self.down >> node & 1:
                del self.partial[place]
                self._keep(node, slot, room - milli)
                return (node, slot, milli)
        found = self.take(1, allowed)
        if found is None:
            return None
        assert isinstance(found, int)
        slot = self._next_slot[found]
        self._next_slot[found] += 1
        self._keep(found, slot, WHOLE - milli)
        return (found, slot, milli)

    def _keep(self, node: int, slot: int, room: int) -> None:
        self.slots[node, slot] = room
        if room:
            insort(self.partial, (room, node, slot))

    def give(self, place: Placement, gpus: int) -> None:
        """Take back what `take` or `take_share` handed out."""
        if isinstance(place, int):
            self._release(place, gpus)
        elif is_wide(place):
            for node, count in place:
                self._release(node, count)
        else:
            node, slot, milli = share(place)
            room = self.slots.pop((node, slot))
            if room:
                del self.partial[bisect_left(self.partial, (room, node, slot))]
            if room + milli == WHOLE:
                self._release(node, 1)
            else:
                self._keep(node, slot, room + milli)

    def fail(self, node: int) -> None:
        """The node is gone until `repair`; its jobs were stopped before, so all of its GPUs are free."""
        assert self.free[node] == self.capacity[node]
        self.by_free[self.free[node]] &= ~(1 << node)
        self.num_free -= self.capacity[node]
        self.down |= 1 << node

    def repair(self, node: int) -> None:
        self.by_free[self.free[node]] |= 1 << node
        self.num_free += self.capacity[node]
        self.down &= ~(1 << node)

    def _hold(self, node: int, gpus: int) -> int:
        count, bit = self.free[node], 1 << node
        self.by_free[count] ^= bit
        self.by_free[count - gpus] |= bit
        self.free[node] = count - gpus
        self.num_free -= gpus
        return node

    def _release(self, node: int, gpus: int) -> None:
        count, bit = self.free[node], 1 << node
        self.by_free[count] ^= bit
        self.by_free[count + gpus] |= bit
        self.free[node] = count + gpus
        self.num_free += gpus

    def _first(self, gpus: int, allowed: int) -> int:
        found = 0
        for count in range(gpus, self.width + 1):
            found |= self.by_free[count]
        found &= allowed
        return (found & -found).bit_length() - 1


def is_wide(place: Placement) -> TypeGuard[tuple[tuple[int, int], ...]]:
    """Whether a place has pieces on several nodes."""
    return not isinstance(place, int) and isinstance(place[0], tuple)


def share(place: Placement) -> tuple[int, int, int]:
    """Node, slot and thousandths of a place that is a share of a GPU."""
    return place  # type: ignore[return-value]


def nodes_of(place: Placement, gpus: float) -> list[tuple[int, float]]:
    """The nodes of a place and the GPUs (or the share of one) held on each."""
    if isinstance(place, int):
        return [(place, gpus)]
    if is_wide(place):
        return [(node, float(count)) for node, count in place]
    node, _, milli = share(place)
    return [(node, milli / WHOLE)]


def _groups(nodes: Sequence[Node]) -> tuple[list[Group], list[Group]]:
    """Nodes that a wide job may span, domains first, the smallest first, then types; and the types alone."""
    domains: dict[tuple[str, int, str], int] = {}
    types: dict[tuple[str, int], int] = {}
    for number, node in enumerate(nodes):
        key = (node.gpu_type, node.num_gpus)
        domains[*key, node.domain] = domains.get((*key, node.domain), 0) | 1 << number
        types[key] = types.get(key, 0) | 1 << number
    found = [(kind, gpus, mask) for (kind, gpus, _), mask in domains.items() if mask != types[kind, gpus]]
    found.sort(key=lambda group: (group[2].bit_count(), group[2]))
    whole = [(kind, gpus, mask) for (kind, gpus), mask in types.items()]
    return found + whole, whole


def lowest(mask: int, count: int) -> list[int]:
    """The numbers of the lowest bits of a mask."""
    found = []
    for _ in range(count):
        bit = mask & -mask
        found.append(bit.bit_length() - 1)
        mask ^= bit
    return found
