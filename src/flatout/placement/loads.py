"""The bytes that each link carries in a step, for many orders of ranks at once.

In: a network, an exchange, and orders: for each, the slot of each rank. Out: for each order, the bytes of each link and
direction. What this will not do: overlap exchanges, or switch to trees and to switches that reduce (NVLS, SHARP), which
move fewer bytes.

NCCL orders the rings of a collective itself: the ranks of a node follow one another, and the nodes come in the order
of their lowest ranks. A ring that crosses nodes is split over as many adapters as it has ranks in the node with the
fewest, and returns to the adapter by which it entered over NVLink.
"""

from __future__ import annotations

import numpy as np

from flatout.placement.network import Array, Network, Slots
from flatout.records.placement import GroupExchange, Pattern


def link_bytes(network: Network, exchange: GroupExchange, orders: Slots) -> Array:
    """Return the bytes of each link, one row for each order."""
    loads = _Loads(network, len(orders))
    groups = np.array(exchange.groups, dtype=np.int64)
    if groups.size == 0 or groups.shape[1] < 2:
        return loads.total()
    members = orders[:, groups]  # orders x groups x members
    num_bytes = exchange.bytes_to_neighbour
    if exchange.pattern is Pattern.COLLECTIVE_RING:
        _add_collective_ring(loads, members, num_bytes)
    elif exchange.pattern is Pattern.RING:
        loads.add_transfers(members, np.roll(members, -1, axis=2), num_bytes)
    elif exchange.pattern is Pattern.ALL_TO_ALL:
        for distance in range(1, members.shape[2]):
            loads.add_transfers(members, np.roll(members, -distance, axis=2), num_bytes)
    else:
        _add_chain(loads, members, num_bytes, is_closed=exchange.pattern is Pattern.CLOSED_CHAIN)
    return loads.total()


class _Loads:
    """Sums of bytes by order and link."""

    def __init__(self, network: Network, num_orders: int) -> None:
        self.network = network
        self._bytes = np.zeros((num_orders, network.num_links))
        # By dimension and direction: what is added at a node applies to the cables of all nodes behind it in its line.
        self._steps = {
            (axis, direction): np.zeros((num_orders, *network.shape))
            for axis in network.dimensions
            for direction in ("forward", "backward")
        }

    def total(self) -> Array:
        for (axis, direction), steps in self._steps.items():
            along_line = np.cumsum(steps, axis=axis + 1)
            links = self.network.ranges[f"cable_{axis}_{direction}"]
            self._bytes[:, links.numbers] = along_line.reshape(len(steps), -1)
        return self._bytes

    def add_transfers(self, source: Slots, target: Slots, num_bytes: float) -> None:
        """Add a transfer from each source to its target; the first axis of both is that of the orders."""
        order = np.broadcast_to(np.arange(len(source)).reshape(-1, *([1] * (source.ndim - 1))), source.shape).ravel()
        source, target = source.ravel(), target.ravel()
        self.add(order, source, target, np.full(len(order), num_bytes))

    def add(self, order: Slots, source: Slots, target: Slots, num_bytes: Array) -> None:
        """Add transfers within nodes and between them."""
        is_near = self.network.box[source] == self.network.box[target]
        self.add_near(order[is_near], source[is_near], target[is_near], num_bytes[is_near])
        far = ~is_near
        order, source, target, num_bytes = order[far], source[far], target[far], num_bytes[far]
        gateway = self.network.gateways(source, target)
        is_handed = gateway != source
        self._add_pair("nvlink", order[is_handed], source[is_handed], gateway[is_handed], num_bytes[is_handed])
        self.add_far(order, gateway, target, num_bytes)

    def add_near(self, order: Slots, source: Slots, target: Slots, num_bytes: Array) -> None:
        """Add transfers that need no network."""
        has_nvlink = self.network.island[source] == self.network.island[target]
        for kind, chosen in (("nvlink", has_nvlink), ("host", ~has_nvlink)):
            self._add_pair(kind, order[chosen], source[chosen], target[chosen], num_bytes[chosen])

    def add_far(self, order: Slots, source: Slots, target: Slots, num_bytes: Array) -> None:
        """Add transfers between nodes, by the adapters of their ends."""
        if self.network.is_cabled:
            self._add_cables(order, self.network.node[source], self.network.node[target], num_bytes)
            return
        self._add_pair("adapter", order, source, target, num_bytes)
        crosses = self.network.crosses_core(source, target)
        leaf = self.network.leaf
        self._add_pair("core", order[crosses], leaf[source[crosses]], leaf[target[crosses]], num_bytes[crosses])

    def _add_pair(self, kind: str, order: Slots, source: Slots, target: Slots, num_bytes: Array) -> None:
        """Add to the outgoing direction at each source, and to the incoming one at each target."""
        ranges = self.network.ranges
        np.add.at(self._bytes, (order, ranges[f"{kind}_out"].first + source), num_bytes)
        np.add.at(self._bytes, (order, ranges[f"{kind}_in"].first + target), num_bytes)

    def _add_cables(self, order: Slots, source: Slots, target: Slots, num_bytes: Array) -> None:
        """Add transfers along each dimension in turn; two equally long ways share the bytes."""
        at, to = self.network.coordinates[:, source].copy(), self.network.coordinates[:, target]
        for axis in self.network.dimensions:
            size = self.network.shape[axis]
            forward = (to[axis] - at[axis]) % size
            share = np.where(2 * forward == size, 0.5, np.where(2 * forward < size, 1.0, 0.0))
            beyond_source, beyond_target = (at[axis] + 1) % size, (to[axis] + 1) % size
            self._add_steps(axis, "forward", order, at, at[axis], to[axis], share * num_bytes)
            self._add_steps(axis, "backward", order, at, beyond_target, beyond_source, (1.0 - share) * num_bytes)
            at[axis] = to[axis]

    def _add_steps(
        self, axis: int, direction: str, order: Slots, at: Slots, start: Slots, end: Slots, num_bytes: Array
    ) -> None:
        """Add bytes to the cables of the nodes from `start` to before `end` in their line, around its end if needed."""
        steps = self._steps[axis, direction]
        moves = start != end
        zeros = np.zeros_like(start)
        for position, sign, chosen in ((start, 1.0, moves), (end, -1.0, moves), (zeros, 1.0, moves & (end < start))):
            place = at[:, chosen].copy()
            place[axis] = position[chosen]
            np.add.at(steps, (order[chosen], *place), sign * num_bytes[chosen])


def _add_chain(loads: _Loads, members: Slots, num_bytes: float, *, is_closed: bool) -> None:
    """Add what neighbours send to each other in both directions."""
    ahead = np.roll(members, -1, axis=2) if is_closed else members[:, :, 1:]
    behind = members if is_closed else members[:, :, :-1]
    loads.add_transfers(behind, ahead, num_bytes)
    loads.add_transfers(ahead, behind, num_bytes)


def _add_collective_ring(loads: _Loads, members: Slots, num_bytes: float) -> None:
    """Add the rings of collectives, one for each order and group."""
    num_orders, num_groups, size = members.shape
    order = np.repeat(np.arange(num_orders), num_groups)
    ring = _ring_order(loads.network, members.reshape(-1, size))
    box = loads.network.box[ring]
    is_first = np.ones_like(box, dtype=bool)
    is_first[:, 1:] = box[:, 1:] != box[:, :-1]
    row, start = np.nonzero(is_first)  # one entry for each stay of a ring in a box
    num_here = np.diff(np.append(row * size + start, len(ring) * size))
    _add_within_boxes(loads, order, ring, is_first, num_bytes)
    stays = np.bincount(row, minlength=len(ring))
    fewest = np.full(len(ring), size)
    np.minimum.at(fewest, row, num_here)
    # The stay after each one of the same ring; after the last comes the first.
    following = np.arange(1, len(row) + 1)
    is_last = np.append(row[1:] != row[:-1], True)
    first_stay = np.concatenate([[0], np.cumsum(stays)[:-1]])
    following[is_last] = first_stay[row[is_last]]
    for channel in range(int(fewest.max())):
        chosen = np.flatnonzero((stays[row] > 1) & (fewest[row] > channel))
        leaving = start + channel * num_here // fewest[row]
        source = ring[row[chosen], leaving[chosen]]
        target = ring[row[chosen], leaving[following[chosen]]]
        loads.add_far(order[row[chosen]], source, target, num_bytes / fewest[row[chosen]])


def _add_within_boxes(loads: _Loads, order: Slots, ring: Slots, is_first: np.ndarray, num_bytes: float) -> None:
    """Add what each rank sends to the next one of its box; the last one sends to the first, or to its adapter."""
    size = ring.shape[1]
    position = np.broadcast_to(np.arange(size), ring.shape)
    start = np.maximum.accumulate(np.where(is_first, position, 0), axis=1)
    has_next = np.ones_like(is_first)
    has_next[:, :-1] = ~is_first[:, 1:]
    has_next[:, -1] = False
    after = np.where(has_next, position + 1, start)
    row, at = np.nonzero(after != position)
    source, target = ring[row, at], ring[row, after[row, at]]
    loads.add_near(order[row], source, target, np.full(len(row), num_bytes))


def _ring_order(network: Network, members: Slots) -> Slots:
    """Return the members of each row in the order of NCCL's ring."""
    num_rows, size = members.shape
    box, rows = network.box[members], np.arange(num_rows)
    first = np.full((num_rows, int(network.box.max()) + 1), size)
    for position in reversed(range(size)):
        first[rows, box[:, position]] = position
    islands_per_box = network.box_gpus // network.fabric.nvlink_gpus + 1
    island = network.island[members] % islands_per_box
    key = (first[rows[:, None], box] * islands_per_box + island) * size + np.arange(size)
    return np.take_along_axis(members, np.argsort(key, axis=1), axis=1)
