"""Fragmentation by the jobs that are likely to come (FGD), and a pool that places jobs so that it grows least.

A node's fragments, for one job, are its free GPUs that the job could not use: all of them if it doesn't fit at all,
else those GPUs with too little room for its share (for whole GPUs, all partly used ones). The mean over the jobs seen
so far, weighted by their number, is the node's fragmentation. Weng et al., Beware of Fragmentation, ATC'23. Its CPU and
memory parts are left out, as the pool has GPUs only.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from flatout.schedule.cluster import Node
from flatout.schedule.pool import WHOLE, Placement, Pool, is_wide, share

State = tuple[int, tuple[int, ...]]  # free whole GPUs, and the room of each partly used one, sorted
MOST_TASKS = 24
RENEWED_EVERY = 500  # jobs


class Tasks:
    """The sizes of the jobs seen so far, as (GPUs, thousandths) with weights."""

    def __init__(self) -> None:
        self.counts: dict[tuple[int, int], int] = {}
        self.num = 0
        self.weights: list[tuple[int, int, float]] = [(1, WHOLE, 1.0)]
        self._memo: dict[State, float] = {}

    def see(self, gpus: int, milli: int) -> None:
        self.counts[gpus, milli] = self.counts.get((gpus, milli), 0) + 1
        self.num += 1
        if self.num in (10, 50, 100) or self.num % RENEWED_EVERY == 0:
            common = sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))[:MOST_TASKS]
            total = sum(count for _, count in common)
            self.weights = [(gpus, milli, count / total) for (gpus, milli), count in common]
            self._memo.clear()

    def fragments(self, state: State) -> float:
        """GPUs of a node in that state that the typical job can't use, in thousandths."""
        found = self._memo.get(state)
        if found is None:
            whole, rooms = state
            rest = sum(rooms)
            found = 0.0
            for gpus, milli, weight in self.weights:
                if milli == WHOLE:
                    lost = rest if whole >= gpus else whole * WHOLE + rest
                elif whole or (rooms and rooms[-1] >= milli):
                    lost = sum(room for room in rooms if room < milli)
                else:
                    lost = rest
                found += weight * lost
            self._memo[state] = found
        return found


class FragmentPool(Pool):
    """Best of all places by the growth of fragmentation; equal ones by best fit and the node's number."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        super().__init__(nodes)
        self.tasks = Tasks()
        self.rooms: list[list[int]] = [[] for _ in nodes]  # of partly used GPUs with room, sorted
        self.states: dict[State, int] = {}  # state -> mask of nodes
        self._state: list[State] = []
        for number, node in enumerate(nodes):
            state: State = (node.num_gpus, ())
            self._state.append(state)
            self.states[state] = self.states.get(state, 0) | 1 << number

    def take(self, gpus: int, allowed: int = -1) -> Placement | None:
        if gpus > self.width:
            found = super().take(gpus, allowed)
            if found is not None and is_wide(found):
                for node, _ in found:
                    self._changed(node)
            return found
        best: tuple[float, int, int] | None = None
        for state, mask in self.states.items():
            usable = mask & allowed & ~self.down
            if state[0] < gpus or not usable:
                continue
            growth = self.tasks.fragments((state[0] - gpus, state[1])) - self.tasks.fragments(state)
            offer = (growth, state[0], (usable & -usable).bit_length() - 1)
            if best is None or offer < best:
                best = offer
        if best is None:
            return None
        self._hold(best[2], gpus)
        self._changed(best[2])
        return best[2]

    def take_share(self, milli: int, allowed: int = -1) -> tuple[int, int, int] | None:
        # Growth, whether the GPU is a new one, the node's free GPUs, its number, the room of the GPU (0: a new one).
        best: tuple[float, bool, int, int, int] | None = None
        for state, mask in self.states.items():
            usable = mask & allowed & ~self.down
            if not usable:
                continue
            whole, rooms = state
            before, node = self.tasks.fragments(state), (usable & -usable).bit_length() - 1
            options = [room for room in dict.fromkeys(rooms) if room >= milli]
            for room in [*options, *([0] if whole else [])]:
                after = _with(rooms, room, (room or WHOLE) - milli)
                growth = self.tasks.fragments((whole - (not room), after)) - before
                offer = (growth, not room, whole, node, room)
                if best is None or offer < best:
                    best = offer
        if best is None:
            return None
        _, _, _, node, room = best
        if room:
            place = next(p for p, (r, n, _) in enumerate(self.partial) if r == room and n == node)
            slot = self.partial.pop(place)[2]
        else:
            self._hold(node, 1)
            slot, room = self._next_slot[node], WHOLE
            self._next_slot[node] += 1
        self._keep(node, slot, room - milli)
        self._changed(node)
        return (node, slot, milli)

    def give(self, place: Placement, gpus: int) -> None:
        super().give(place, gpus)
        if isinstance(place, int):
            self._changed(place)
        elif is_wide(place):
            for node, _ in place:
                self._changed(node)
        else:
            self._changed(share(place)[0])

    def _changed(self, node: int) -> None:
        old, bit = self._state[node], 1 << node
        left = self.states[old] ^ bit
        if left:
            self.states[old] = left
        else:
            del self.states[old]
        rooms: list[int] = []
        for room, n, _ in self.partial:
            if n == node:
                insort(rooms, room)
        new: State = (self.free[node], tuple(rooms))
        self._state[node] = new
        self.states[new] = self.states.get(new, 0) | bit

    def fragmentation(self) -> float:
        """GPUs of the cluster that the typical job can't use."""
        return sum(self.tasks.fragments(state) * mask.bit_count() for state, mask in self.states.items()) / WHOLE


def _with(rooms: tuple[int, ...], old: int, new: int) -> tuple[int, ...]:
    """The rooms with one of `old` (0: none) replaced by `new` (0: no room is left)."""
    found = list(rooms)
    if old:
        found.remove(old)
    if new:
        insort(found, new)
    return tuple(found)
