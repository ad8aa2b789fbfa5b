"""The records of a network between nodes: its parts, its price, and what it does to a step."""

from __future__ import annotations

import msgspec


class NetworkBill(msgspec.Struct, frozen=True, kw_only=True):
    """The switches and links of a network, and what they cost to buy, in USD."""

    num_switches: int
    num_links: int  # with a transceiver at both ends
    low_usd: float
    typical_usd: float
    high_usd: float
    note: str  # why the prices do not fit this network; empty: they do
    sources: tuple[str, ...]
    date: str


class NetworkAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What another network does to the best layout's step, and what it costs: both compared with a full fat-tree."""

    fabric: str  # fat-tree, rail, ring or torus
    oversubscription: float
    leaf_nodes: int | None  # nodes below a leaf switch; null: no switches
    shape: tuple[int, ...]  # nodes in each dimension of a ring or torus
    step_time_s: float
    full_step_time_s: float  # of the best layout on a fat-tree without oversubscription
    bill: NetworkBill
    full_bill: NetworkBill
    # What the GPUs cost in the time by which this network's steps are longer, in a year of training; negative: shorter.
    # Null: no price of this GPU is known.
    slower_usd_per_year: float | None
    usd_per_gpu_hour: float | None
