"""Read what `inside/compression` reported: whether a variant was applied, to which modules, and the memory in use.

In: a folder of reports, which is a recording or that of an evaluation. Out: a `ModelReport`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from flatout.input_files import decode_json, read_bytes
from flatout.inside.protocol import File
from flatout.records.compression import MemoryKind

_MAX_BYTES = 16 << 20


class ModelReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one process did to its model."""

    variant: str
    applied: bool
    reason: str | None = None
    names: tuple[str, ...] = ()
    num_modules: int = 0
    bytes_before: int | None = None
    bytes_after: int | None = None
    convert_s: float | None = None
    memory_bytes: int | None = None
    memory_kind: MemoryKind | None = None
    device: str | None = None
    notes: tuple[str, ...] = ()


def read_report(folder: Path) -> ModelReport | None:
    """Return the report of the process that has a model; with several, the one with the largest. None if none has."""
    reports = list(_reports(folder.glob(File.COMPRESSION.glob)))
    return max(reports, key=lambda report: report.bytes_before or 0, default=None)


def _reports(paths: Iterable[Path]) -> Iterable[ModelReport]:
    for path in sorted(paths):
        with suppress(OSError, msgspec.DecodeError):
            yield decode_json(read_bytes(path, max_bytes=_MAX_BYTES), ModelReport)
