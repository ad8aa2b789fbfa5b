"""Fragmentation with respect to the jobs that are likely to come (FGD), and a pool that minimises its growth.

The fragments of a node, for one kind of job, are its free GPUs that the job could not use: all of them if the job does
not fit at all, otherwise the GPUs with too little left for its share (for whole GPUs, all partly used GPUs). The mean
over the jobs seen so far is the node's fragmentation. Source: Weng et al., Beware of Fragmentation, ATC'23. CPUs and
memory, which the paper includes, are not modelled: the pool has GPUs only.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from flatout.schedule.cluster import Node
from flatout.schedule.pool import WHOLE, Placement, Pool, as_share, is_wide, lowest_bit

# Free whole GPUs, and the free thousandths of each partly used one, sorted.
State = tuple[int, tuple[int, ...]]
MOST_TASKS = 24
RENEWED_EVERY = 500  # jobs
_FIRST_RENEWALS = (10, 50, 100)


class Tasks:
    """The sizes of the jobs seen so far, as (GPUs, thousandths) with weights."""

    def __init__(self) -> None:
        self.counts: dict[tuple[int, int], int] = {}
        self.num = 0
        self.weights: list[tuple[int, int, float]] = [(1, WHOLE, 1.0)]
        self._fragments: dict[State, float] = {}  # of each state, under the current weights

    def see(self, gpus: int, milli: int) -> None:
        """Count a job. The weights are renewed every `RENEWED_EVERY` jobs, and more often for the first jobs."""
        self.counts[gpus, milli] = self.counts.get((gpus, milli), 0) + 1
        self.num += 1
        if self.num in _FIRST_RENEWALS or self.num % RENEWED_EVERY == 0:
            common = sorted(self.counts.items(), key=lambda item: (-item[1], item[0]))[:MOST_TASKS]
            total = sum(count for _, count in common)
            self.weights = [(gpus, milli, count / total) for (gpus, milli), count in common]
            self._fragments.clear()

    def fragments(self, state: State) -> float:
        """Return the thousandths of GPUs that the typical job can't use on a node in this state."""
        fragments = self._fragments.get(state)
        if fragments is None:
            fragments = 0.0
            for gpus, milli, weight in self.weights:
                fragments += weight * _unusable(state, gpus, milli)
            self._fragments[state] = fragments
        return fragments


def _unusable(state: State, gpus: int, milli: int) -> int:
    """Return the thousandths of GPUs that jobs of one size can't use on a node in this state."""
    whole, parts = state
    in_parts = sum(parts)
    if milli == WHOLE:
        fits = whole >= gpus
        return in_parts if fits else whole * WHOLE + in_parts
    fits = bool(whole or (parts and parts[-1] >= milli))
    if not fits:
        return in_parts
    return sum(part for part in parts if part < milli)


class _ShareOption(NamedTuple):
    """A way to place a share.

    The best option sorts first: least growth, then a GPU in use, a full node, a low number.
    """

    growth: float
    is_new_gpu: bool
    free_gpus: int
    node: int
    free_milli: int  # of the GPU; 0: an unused GPU


class FragmentPool(Pool):
    """A pool that places jobs where fragmentation grows least; ties are broken by best fit, then node number."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        super().__init__(nodes)
        self.tasks = Tasks()
        self.states: dict[State, int] = {}  # state -> mask of nodes
        self._state: list[State] = []
        for number, node in enumerate(nodes):
            state: State = (node.num_gpus, ())
            self._state.append(state)
            self.states[state] = self.states.get(state, 0) | 1 << number

    def take(self, gpus: int, allowed: int = -1) -> Placement | None:
        if gpus > self.width:
            placement = super().take(gpus, allowed)
            if placement is not None:
                self._update_nodes(placement)
            return placement
        best: tuple[float, int, int] | None = None  # growth, free GPUs, node
        for state, nodes in self._usable_states(allowed):
            free, parts = state
            if free < gpus:
                continue
            growth = self.tasks.fragments((free - gpus, parts)) - self.tasks.fragments(state)
            option = (growth, free, lowest_bit(nodes))
            if best is None or option < best:
                best = option
        if best is None:
            return None
        _, _, node = best
        self._take_on(node, gpus)
        self._update(node)
        return node

    def take_share(self, milli: int, allowed: int = -1) -> tuple[int, int, int] | None:
        options = self._share_options(milli, allowed)
        best = min(options, default=None)
        if best is None:
            return None
        node = best.node
        if best.is_new_gpu:
            self._take_on(node, 1)
            slot, free_milli = self._open_slot(node), WHOLE
        else:
            slot, free_milli = self._pop_partial(node, best.free_milli), best.free_milli
        self._set_slot(node, slot, free_milli - milli)
        self._update(node)
        return (node, slot, milli)

    def _share_options(self, milli: int, allowed: int) -> Iterator[_ShareOption]:
        """Yield, for each state, the ways to place the share on the first node in that state."""
        fragments = self.tasks.fragments
        for state, nodes in self._usable_states(allowed):
            free, parts = state
            before, node = fragments(state), lowest_bit(nodes)
            for part in dict.fromkeys(parts):
                if part >= milli:
                    after = _replaced(parts, part, part - milli)
                    yield _ShareOption(fragments((free, after)) - before, False, free, node, part)
            if free:
                after = _replaced(parts, 0, WHOLE - milli)
                yield _ShareOption(fragments((free - 1, after)) - before, True, free, node, 0)

    def _usable_states(self, allowed: int) -> Iterator[tuple[State, int]]:
        """Yield each state that has allowed nodes, with the mask of those nodes."""
        usable = allowed & ~self.down
        for state, mask in self.states.items():
            nodes = mask & usable
            if nodes:
                yield state, nodes

    def _pop_partial(self, node: int, free_milli: int) -> int:
        """Remove a partly used GPU with this much free from the pool's list, and return its slot."""
        for index, (free, other, slot) in enumerate(self.partial):
            if free == free_milli and other == node:
                del self.partial[index]
                return slot
        raise AssertionError(f"node {node} has no GPU with {free_milli} free thousandths")

    def release(self, placement: Placement, gpus: int) -> None:
        super().release(placement, gpus)
        self._update_nodes(placement)

    def _update_nodes(self, placement: Placement) -> None:
        if isinstance(placement, int):
            self._update(placement)
        elif is_wide(placement):
            for node, _ in placement:
                self._update(node)
        else:
            node, _, _ = as_share(placement)
            self._update(node)

    def _update(self, node: int) -> None:
        """Move a node to its current state."""
        old, bit = self._state[node], 1 << node
        left = self.states[old] ^ bit
        if left:
            self.states[old] = left
        else:
            del self.states[old]
        parts = sorted(free_milli for free_milli, other, _ in self.partial if other == node)
        new: State = (self.free[node], tuple(parts))
        self._state[node] = new
        self.states[new] = self.states.get(new, 0) | bit

    def fragmentation(self) -> float:
        """Return the number of the cluster's GPUs that the typical job can't use."""
        return sum(self.tasks.fragments(state) * mask.bit_count() for state, mask in self.states.items()) / WHOLE


def _replaced(parts: tuple[int, ...], old: int, new: int) -> tuple[int, ...]:
    """Return the free thousandths with one `old` value (0: none) replaced by `new` (0: nothing is left)."""
    after = list(parts)
    if old:
        after.remove(old)
    if new:
        insort(after, new)
    return tuple(after)
