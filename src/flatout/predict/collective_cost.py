"""Fit the cost of a collective to its size, alpha + beta * bytes, from the transfers in the trace.

If all collectives of an operation have the same size, alpha is a prior for the transport.
"""

from __future__ import annotations

import msgspec
import numpy as np

from flatout.predict.collective_time import Link, Operation, bytes_sent, link_of
from flatout.predict.situation import Situation

# The fixed cost of one collective in ns, if the trace does not show it (nccl-tests, small messages; gloo by its
# sockets).
ALPHA_NS = {"nvlink": 20e3, "shared_memory": 30e3, "pcie": 30e3, "infiniband": 40e3, "socket": 150e3}
DEFAULT_ALPHA_NS = 50e3
MIN_NS_PER_BYTE = 1e-6  # 1,000 TB/s: faster than any link


class CollectiveCost(msgspec.Struct, frozen=True, kw_only=True):
    alpha_ns: float
    beta_ns_per_byte: float
    num_seen: int

    def transfer_ns(self, num_bytes: float) -> float:
        return self.alpha_ns + self.beta_ns_per_byte * num_bytes

    def link(self, operation: Operation, num_ranks: int) -> Link:
        """Return what one message between two ranks costs, given that this is the cost of one such collective."""
        per_byte_s = max(self.beta_ns_per_byte, MIN_NS_PER_BYTE) * 1e-9
        bus_bytes_per_s = bytes_sent(operation, 1.0, num_ranks) / per_byte_s
        return link_of(operation, self.alpha_ns * 1e-9, bus_bytes_per_s, num_ranks)


def fitted(situation: Situation, *operations: str) -> CollectiveCost | None:
    """Fit the transfers of all ranks; None if no size is known.

    Only the transfers are fitted, without the waits for ranks that arrive late.
    """
    sizes, transfers = [], []
    seen = situation.edits()
    for rank in situation.tracks:
        for row, call in situation.calls(rank, *operations):
            if call.num_bytes and seen[rank].duration_ns[row] > 0:
                sizes.append(float(call.num_bytes))
                transfers.append(float(seen[rank].duration_ns[row]))
    if not sizes:
        return None
    x, y = np.array(sizes), np.array(transfers)
    prior = min(ALPHA_NS.get(situation.facts.transport or "", DEFAULT_ALPHA_NS), float(y.min()))
    alpha, beta = prior, float(((y - prior).sum()) / x.sum())
    if len(np.unique(x)) >= 3 and x.max() >= 4 * x.min():
        # Minimize relative errors, so that small messages determine alpha.
        weights = 1 / y
        design = np.stack((weights, x * weights), axis=1)
        (free_alpha, free_beta), *_ = np.linalg.lstsq(design, np.ones(len(y)), rcond=None)
        if free_alpha >= 0 and free_beta >= 0:
            alpha, beta = float(free_alpha), float(free_beta)
    return CollectiveCost(alpha_ns=alpha, beta_ns_per_byte=max(beta, 0.0), num_seen=len(sizes))
