"""The records passed between the command and its workers: settings, and every repetition as measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class BenchSettings(msgspec.Struct, frozen=True, kw_only=True):
    time_s: float
    path: str | None = None
    allow_write: bool = False
    folder_prefix: str = ".flatout-bench-"  # prefix of folders in `path` that the command removes if a worker cannot
    uses_gpu: bool = False
    meeting_file: str | None = None  # where the ranks of one host find each other; None: torchrun's address
    only: tuple[str, ...] = ()  # names of measurements
    without: dict[str, str] = {}  # measurements to skip, because a rank was lost in them: key -> reason


def what_of(labels: Mapping[str, Any]) -> str:
    """Describe a measurement by its labels: `bf16 1024 x 1024 x 1024`, `all 4,096 B`."""
    words = [str(labels[name]) for name in ("dtype", "group") if labels.get(name)]
    if labels.get("shape"):
        words.append(" x ".join(map(str, labels["shape"])))
    elif labels.get("size"):
        words.append(f"{labels['size']:,} B")
    return " ".join(words)


def key_of(name: str, labels: Mapping[str, Any]) -> str:
    """Return a measurement's key, equal in every set of ranks: `all_reduce fp32 all 4,096 B`."""
    return f"{name} {what_of(labels)}".strip()


class About(msgspec.Struct, frozen=True, kw_only=True):
    has_torch: bool
    num_gpus: int


class RawBenchmark(msgspec.Struct, kw_only=True):
    """One benchmark as measured by one rank."""

    name: str
    unit: str
    work: float
    checked: str
    labels: dict[str, Any] = {}
    seconds: list[float] = []  # per call, one value per repetition
    queued_seconds: list[float | None] = []  # the same by the device's events; empty: not measured
    wrong: str | None = None

    @property
    def key(self) -> str:
        return key_of(self.name, self.labels)


class Raw(msgspec.Struct, frozen=True, kw_only=True):
    benchmarks: tuple[tuple[RawBenchmark, ...], ...]  # by rank; the same benchmarks in the same order
    devices: tuple[str, ...]
    hosts: tuple[str, ...]
    is_gpu: bool
    backend: str
    software: str
    not_measured: dict[str, str]
