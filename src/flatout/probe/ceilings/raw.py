"""What passes between the command and its workers: settings, and every repetition as it was measured."""

from __future__ import annotations

from typing import Any

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    time_s: float
    path: str | None = None
    allow_write: bool = False
    folder_prefix: str = ".flatout-bench-"  # of what is written there, for the command to remove if a worker cannot
    uses_gpu: bool = False
    meeting_file: str | None = None  # where the ranks of one host find each other; None: as torchrun says
    only: tuple[str, ...] = ()  # names of measurements


class About(msgspec.Struct, frozen=True, kw_only=True):
    has_torch: bool
    num_gpus: int


class RawCase(msgspec.Struct, kw_only=True):
    """One case as one rank saw it."""

    name: str
    unit: str
    work: float
    checked: str
    labels: dict[str, Any] = {}
    seconds: list[float] = []  # of a call, each repetition
    queued_seconds: list[float | None] = []  # by the device's events, of the same repetitions; empty: not asked for
    wrong: str | None = None


class Raw(msgspec.Struct, frozen=True, kw_only=True):
    cases: tuple[tuple[RawCase, ...], ...]  # by rank; the same cases in the same order
    devices: tuple[str, ...]
    hosts: tuple[str, ...]
    is_gpu: bool
    backend: str
    software: str
    not_measured: dict[str, str]
