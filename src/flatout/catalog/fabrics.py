"""The sizes of networks: how many nodes a leaf switch serves, and what switches and links cost to buy."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

import msgspec

SWITCH_PORTS = 64  # of current InfiniBand and Ethernet switches at the rate of one adapter: QM9700, SN5600
FABRICS = ("fat-tree", "rail", "ring", "torus")
_PRICES = Path(__file__).with_name("network_prices.toml")


class NetworkPart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A switch or a link, with the range of its price in USD."""

    name: str
    gbit_per_s: float
    low: float
    typical: float
    high: float
    source: str
    date: str
    ports: int | None = None  # of a switch


class NetworkPrices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `network_prices.toml`."""

    switch: tuple[NetworkPart, ...]
    link: tuple[NetworkPart, ...]


@cache
def network_prices() -> NetworkPrices:
    return msgspec.convert(tomllib.loads(_PRICES.read_text(encoding="utf-8")), NetworkPrices)


def ports_down(oversubscription: float) -> int:
    """Return the ports of a leaf switch to nodes; the others lead up, `oversubscription` times fewer."""
    return int(SWITCH_PORTS * oversubscription / (1.0 + oversubscription))


def nodes_per_leaf(fabric: str, oversubscription: float, adapters_per_node: int) -> int:
    """Return the nodes below a leaf switch, or with rails below each switch of a group of leaf switches."""
    adapters_per_switch = 1 if fabric == "rail" else adapters_per_node
    return max(ports_down(oversubscription) // adapters_per_switch, 1)
