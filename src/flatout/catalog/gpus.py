"""Look up the vendor's facts about a GPU in `gpus.toml`, by the name that PyTorch or a trace reports.

Only exact names match: a slice of a GPU (MIG), a laptop or an export variant has other numbers than the GPU with a
similar name, and a wrong peak is worse than none.
"""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

import msgspec

from flatout.records.machine import GpuFacts

_FILE = Path(__file__).with_name("gpus.toml")


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `[[gpu]]` entry of the file, in the units of the data sheets."""

    name: str
    reported_names: tuple[str, ...]
    vendor: str
    memory_gib: int
    memory_gb_per_s: float | None = None
    peak_tflops: dict[str, float]
    num_sms: int | None = None
    tdp_w: float | None = None
    link_gb_per_s: float | None = None
    note: str = ""
    source: str
    date: str


def gpu_facts(reported_name: str) -> GpuFacts | None:
    """Return the facts of the GPU that reports this name; None if the name is unknown or fits several GPUs."""
    return _by_reported_name().get(_folded(reported_name))


@cache
def all_gpu_facts() -> tuple[GpuFacts, ...]:
    """Return every GPU of the catalogue, in the order of the file."""
    entries = msgspec.convert(tomllib.loads(_FILE.read_text(encoding="utf-8"))["gpu"], list[_Entry])
    return tuple(
        GpuFacts(
            name=entry.name,
            reported_names=entry.reported_names,
            vendor=entry.vendor,
            memory_bytes=entry.memory_gib << 30,
            memory_bytes_per_s=_times(entry.memory_gb_per_s, 1e9),
            peak_flops_per_s={dtype: tflops * 1e12 for dtype, tflops in entry.peak_tflops.items()},
            num_sms=entry.num_sms,
            tdp_w=entry.tdp_w,
            link_bytes_per_s=_times(entry.link_gb_per_s, 1e9),
            note=entry.note,
            source=entry.source,
            date=entry.date,
        )
        for entry in entries
    )


@cache
def _by_reported_name() -> dict[str, GpuFacts]:
    return {_folded(name): facts for facts in all_gpu_facts() for name in facts.reported_names}


def _folded(reported_name: str) -> str:
    """Return the name in lower case without the leading "NVIDIA", which drivers before 2021 omitted."""
    return " ".join(reported_name.casefold().split()).removeprefix("nvidia ")


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
