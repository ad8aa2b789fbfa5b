"""The time of a collective on a link whose latency and bandwidth are known, for any number of ranks.

In: what one message costs (`Link`), from a measured collective. Out: seconds. A collective is a number of messages that
follow each other, and the bytes that each rank sends: those of a ring, as NCCL and gloo send large data. Trees, several
links of a node and SHARP are not modelled; a fit to measured collectives includes what they bring at its own number of
ranks.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """What it costs one rank to send: `latency_s` a message, and its bytes at `bytes_per_s`."""

    latency_s: float
    bytes_per_s: float


def num_messages(operation: Operation, num_ranks: int) -> int:
    """Return how many messages follow each other."""
    rounds = 2 if operation == "all_reduce" else 1
    return rounds * max(num_ranks - 1, 0)


def bytes_sent(operation: Operation, num_bytes: float, num_ranks: int) -> float:
    """Return the bytes that each rank sends. `num_bytes` is the larger of its input and output."""
    rounds = 2 if operation == "all_reduce" else 1
    return rounds * num_bytes * max(num_ranks - 1, 0) / max(num_ranks, 1)


def collective_s(link: Link, operation: Operation, num_bytes: float, num_ranks: int) -> float:
    transfer_s = bytes_sent(operation, num_bytes, num_ranks) / link.bytes_per_s
    return num_messages(operation, num_ranks) * link.latency_s + transfer_s


def link_of(operation: Operation, latency_s: float, bytes_per_s: float, num_ranks: int) -> Link:
    """Return the link on which this collective takes `latency_s`, and its bytes at a bus bandwidth of `bytes_per_s`.

    These are the numbers of a `CollectiveFit` of `flatout bench`.
    """
    return Link(latency_s=latency_s / max(num_messages(operation, num_ranks), 1), bytes_per_s=bytes_per_s)
