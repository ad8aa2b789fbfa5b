"""Look up how the GPUs of a system are connected, by its alias (`h100`, `gb200`), in `systems.toml`."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

import msgspec

_FILE = Path(__file__).with_name("systems.toml")


class System(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[system]]` entry of the file."""

    aliases: tuple[str, ...]
    gpu: str
    gpus_per_node: int
    nvlink_domain: int
    nic_gbit_per_s: float
    host_link_gb_per_s: float
    host_memory_gb_per_s: float
    link_gb_per_s: float | None = None
    matmul_share: dict[str, float] = {}
    assumed_share: dict[str, float] = {}
    source: str
    date: str


@cache
def all_systems() -> dict[str, System]:
    """Return every system by each of its aliases."""
    entries = msgspec.convert(tomllib.loads(_FILE.read_text(encoding="utf-8"))["system"], list[System])
    return {alias: entry for entry in entries for alias in entry.aliases}
