"""Look up prices of a GPU-hour, a kWh and a data centre's overhead, in `prices.toml` or a user's file of that form."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from flatout.catalog.gpus import all_gpu_facts, gpu_facts
from flatout.errors import InputError
from flatout.input_files import read_toml
from flatout.input_records import read_record
from flatout.records.machine import GpuFacts
from flatout.units import MOST_USD_PER_GPU_HOUR, MOST_USD_PER_KWH

_FILE = Path(__file__).with_name("prices.toml")
_EXAMPLE = "docs/how-to/cost.md has an example"

Terms = Literal["on-demand", "reserved", "spot"]
TERMS: tuple[Terms, ...] = ("on-demand", "reserved", "spot")

# Names that people and Slurm's gres types use for a GPU without its form factor -> the one in training clusters.
_SHORT_NAMES = {
    "v100": "V100 SXM2 16GB",
    "v100-32gb": "V100 SXM2 32GB",
    "a100": "A100 SXM 80GB",
    "a100-80gb": "A100 SXM 80GB",
    "a100-40gb": "A100 SXM 40GB",
    "h100": "H100 SXM 80GB",
    "h100-sxm": "H100 SXM 80GB",
    "h100-80gb": "H100 SXM 80GB",
    "h100-pcie": "H100 PCIe 80GB",
    "h200": "H200 SXM 141GB",
    "b200": "B200 180GB",
    "gb200": "GB200 186GB",
    "b300": "B300 270GB",
    "gb300": "GB300 279GB",
    "mi210": "MI210",
    "mi300x": "MI300X",
    "t4": "T4",
    "a10": "A10",
    "l4": "L4",
    "l40s": "L40S",
    "rtx4090": "RTX 4090",
    "rtx5090": "RTX 5090",
}


_LARGEST: dict[str, float] = {
    "electricity": MOST_USD_PER_KWH,
    "pue": 10.0,
    "host": 10.0,
    "busy_power_share": 1.0,
    "idle_power_share": 1.0,
}
_LEAST = {"pue": 1.0, "host": 1.0}  # each is the whole divided by a part of it
_MIG_SLICE = re.compile(r"-?\b[1-7]g[.-]\d+gb.*$")


class Range(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number that varies between places: `low` <= `typical` <= `high`, with their source."""

    typical: float
    low: float
    high: float
    provenance: Literal["measured", "vendor", "assumed"] = "vendor"
    source: str = ""
    date: str = ""


class Price(Range, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """USD per hour of one GPU on these terms."""

    gpu: str
    terms: Terms


class _UserRange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A range in a user's file: a `typical` alone is its own range, and not a seller's list price."""

    typical: float
    low: float | None = None
    high: float | None = None
    provenance: Literal["measured", "vendor", "assumed"] = "measured"
    source: str = ""
    date: str = ""

    def bounds(self) -> dict[str, Any]:
        """Return the fields of `Range`."""
        return {
            "typical": self.typical,
            "low": self.typical if self.low is None else self.low,
            "high": self.typical if self.high is None else self.high,
            "provenance": self.provenance,
            "source": self.source,
            "date": self.date,
        }


class _UserPrice(_UserRange, frozen=True, kw_only=True, forbid_unknown_fields=True):
    gpu: str
    terms: Terms


class _UserFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A user's file of prices: every table is optional, and a number stands for a range of that number alone."""

    price: tuple[_UserPrice, ...] = ()
    electricity: float | _UserRange | None = None
    pue: float | _UserRange | None = None
    host: float | _UserRange | None = None
    busy_power_share: float | _UserRange | None = None
    idle_power_share: float | _UserRange | None = None


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """The prices of the user first, then those of the catalogue."""

    gpus: tuple[Price, ...]
    electricity: Range  # USD per kWh
    pue: Range
    host: Range  # energy of a GPU server divided by that of its GPUs
    busy_power_share: Range  # power of a busy GPU as a share of the vendor's power limit
    idle_power_share: Range

    def gpu(self, name: str, terms: Terms = "on-demand") -> Price | None:
        """Return the USD per hour of this GPU; None if the GPU, or its price on these terms, is unknown."""
        facts = gpu_named(name)
        wanted = facts.name if facts is not None else name
        return next((price for price in self.gpus if price.gpu == wanted and price.terms == terms), None)


def gpu_named(name: str) -> GpuFacts | None:
    """Return the GPU with this name in the catalogue, a driver or Slurm, e.g. `h100` or `nvidia_h100_80gb_hbm3`."""
    folded = name.strip().casefold()
    by_name = {facts.name.casefold(): facts for facts in all_gpu_facts()}
    if folded in by_name:
        return by_name[folded]
    short = re.sub(r"[\s_]+", "-", folded).removeprefix("nvidia-").removeprefix("amd-").removeprefix("instinct-")
    short = _MIG_SLICE.sub("", short)  # a slice costs its share of the GPU's price
    known = _SHORT_NAMES.get(short) or _SHORT_NAMES.get(short.replace("-", ""))
    if known is not None:
        return by_name.get(known.casefold())
    return gpu_facts(name) or _by_gres_type().get(short)


@cache
def _by_gres_type() -> dict[str, GpuFacts]:
    """Return the GPUs by the names that slurmd detects: the driver's in lower case, with `_` for spaces."""
    return {
        re.sub(r"[\s_]+", "-", reported.casefold()).removeprefix("nvidia-").removeprefix("amd-"): facts
        for facts in all_gpu_facts()
        for reported in facts.reported_names
    }


@cache
def all_prices() -> Prices:
    """Return the prices of the catalogue."""
    return msgspec.convert(_renamed(read_toml(_FILE)), Prices)


def read_prices(path: Path) -> Prices:
    """Read a user's TOML of the same form; every table is optional. Raise InputError (one line) if the form differs."""
    file = read_record(path, _UserFile, hint=_EXAMPLE)
    own = [Price(gpu=price.gpu, terms=price.terms, **price.bounds()) for price in file.price]
    changed = dict(_changed_ranges(file))
    for price in own:
        _check_bounds(path, f"the price of {price.gpu}", price, 0.0, MOST_USD_PER_GPU_HOUR)
    for name, bounds in changed.items():
        _check_bounds(path, name, bounds, _LEAST.get(name, 0.0), _LARGEST[name])
    named = tuple(_with_catalogue_name(price) for price in own)
    shipped = all_prices()
    return msgspec.structs.replace(shipped, gpus=(*named, *shipped.gpus), **changed)


def _changed_ranges(file: _UserFile) -> Iterator[tuple[str, Range]]:
    """Yield the ranges that the file gives, by their names."""
    for name in _LARGEST:
        amount = getattr(file, name)
        if isinstance(amount, _UserRange):
            yield name, Range(**amount.bounds())
        elif amount is not None:
            yield name, exactly(amount, "")


def _check_bounds(path: Path, name: str, bounds: Range, least: float, most: float) -> None:
    if not bounds.low <= bounds.typical <= bounds.high:  # also false for nan
        raise InputError(
            f"`{path}`: {name} must have low <= typical <= high, but has {bounds.low:g}, {bounds.typical:g} and "
            f"{bounds.high:g}",
            hint=_EXAMPLE,
        )
    is_possible = least <= bounds.low <= bounds.high <= most
    if not is_possible:
        outside = bounds.low if bounds.low < least else bounds.high
        raise InputError(
            f"`{path}`: {name} must be from {least:g} to {most:,g}, but is {outside:,g}",
            hint="prices are in USD per hour of one GPU, and per kWh",
        )


def _with_catalogue_name(price: Price) -> Price:
    facts = gpu_named(price.gpu)
    return price if facts is None else msgspec.structs.replace(price, gpu=facts.name)


def exactly(value: float, source: str) -> Range:
    """Return a number from the user as a range of that number alone."""
    return Range(low=value, typical=value, high=value, provenance="measured", source=source)


def _renamed(found: dict[str, object]) -> dict[str, object]:
    return {("gpus" if name == "price" else name): value for name, value in found.items()}
