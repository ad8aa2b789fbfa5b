"""The time of a step's exchanges in an order of ranks, and which of two orders is better.

An exchange takes as long as its busiest link; the exchanges of a step follow one another. Of two orders that take as
long, the better one moves fewer bytes over the links that jobs share: first those above leaf switches and the cables,
then adapters, PCIe and NVLink.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flatout.placement.loads import link_bytes
from flatout.placement.network import Array, Network, Slots
from flatout.records.placement import GroupExchange, LinkKind

_AT_ONCE = 1 << 22  # numbers of links of all orders in memory at once
_WEIGHTS = {
    LinkKind.CORE: 1.0,
    LinkKind.CABLE: 1.0,
    LinkKind.ADAPTER: 1e-2,
    LinkKind.HOST: 1e-4,
    LinkKind.NVLINK: 1e-6,
}
SAME = 1e-9  # relative difference below which two sums of the same numbers are equal


class OrderCosts:
    """The cost of each of several orders."""

    def __init__(self, seconds: Array, shared_bytes: Array) -> None:
        self.seconds = seconds
        self.shared_bytes = shared_bytes  # weighted by how widely a link is shared

    def best(self) -> int:
        """Return the first of the best orders."""
        is_fast = self.seconds <= self.seconds.min() * (1 + SAME)
        shared = np.where(is_fast, self.shared_bytes, np.inf)
        return int(np.flatnonzero(shared <= shared.min() * (1 + SAME))[0])


def costs(network: Network, exchanges: Sequence[GroupExchange], orders: Slots) -> OrderCosts:
    """Return the costs of the orders; each gives the slot of each rank."""
    weights = np.zeros(network.num_links)
    for links in network.ranges.values():
        weights[links.numbers] = _WEIGHTS[links.kind]
    at_once = max(_AT_ONCE // (network.num_links + orders.shape[1]), 1)
    seconds, shared = [], []
    for start in range(0, len(orders), at_once):
        chunk = orders[start : start + at_once]
        of_exchanges = [link_bytes(network, exchange, chunk) for exchange in exchanges]
        seconds.append(np.sum([(loads / network.rates).max(axis=1) for loads in of_exchanges], axis=0))
        shared.append(np.sum([loads @ weights for loads in of_exchanges], axis=0))
    return OrderCosts(np.concatenate(seconds), np.concatenate(shared))
