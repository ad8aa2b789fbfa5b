"""Published rates of interruptions, and what one costs, from `interruptions.toml`."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

import msgspec

_FILE = Path(__file__).with_name("interruptions.toml")


class InterruptionRate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rate of interruptions that one cluster published."""

    name: str
    per_1000_node_days: float
    source: str
    date: str
    typical: bool = False


class Seconds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A duration that differs from site to site."""

    low: float
    typical: float
    high: float
    source: str


class Interruptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file."""

    rate: tuple[InterruptionRate, ...]
    restart_s: Seconds
    checkpoint_s: Seconds

    @property
    def typical(self) -> InterruptionRate:
        return next(rate for rate in self.rate if rate.typical)

    @property
    def lowest(self) -> InterruptionRate:
        return min(self.rate, key=lambda rate: rate.per_1000_node_days)

    @property
    def highest(self) -> InterruptionRate:
        return max(self.rate, key=lambda rate: rate.per_1000_node_days)


@cache
def interruptions() -> Interruptions:
    """Return the rates of the catalogue."""
    return msgspec.convert(tomllib.loads(_FILE.read_text(encoding="utf-8")), Interruptions)
