"""Look up PCIe generations, links between GPUs, and network adapters in `links.toml` and `nics.toml`."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

import msgspec

_FOLDER = Path(__file__).parent


class PcieGeneration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[pcie]]` entry of the file."""

    generation: int
    gt_per_s: float
    lane_gb_per_s: float  # one direction, after line coding
    source: str
    date: str

    def bytes_per_s(self, lanes: int) -> float:
        return self.lane_gb_per_s * 1e9 * lanes


class GpuLink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[gpu_link]]` entry in the file."""

    name: str
    on: tuple[str, ...]  # prefixes of names in gpus.toml
    num_links: int
    link_gb_per_s: float  # one link, one direction
    source: str
    date: str


class Nic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[nic]]` entry of the file."""

    name: str
    vendor: str
    hca_types: tuple[str, ...]
    gbit_per_s: float
    pcie_generation: int | None = None
    pcie_lanes: int | None = None
    note: str = ""
    source: str
    date: str


@cache
def all_pcie() -> tuple[PcieGeneration, ...]:
    return tuple(msgspec.convert(_read("links.toml")["pcie"], list[PcieGeneration]))


@cache
def all_gpu_links() -> tuple[GpuLink, ...]:
    return tuple(msgspec.convert(_read("links.toml")["gpu_link"], list[GpuLink]))


@cache
def all_nics() -> tuple[Nic, ...]:
    return tuple(msgspec.convert(_read("nics.toml")["nic"], list[Nic]))


def nic_by_hca_type(hca_type: str) -> Nic | None:
    """Return the adapter with this `/sys/class/infiniband/*/hca_type`; None if it is unknown."""
    return next((nic for nic in all_nics() if hca_type.strip() in nic.hca_types), None)


def _read(name: str) -> dict[str, object]:
    return tomllib.loads((_FOLDER / name).read_text(encoding="utf-8"))
