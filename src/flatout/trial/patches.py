"""Check that the patches of a trial took effect, from the lines that each training process recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from flatout.input_files import decode_json, read_lines
from flatout.inside.protocol import File
from flatout.records.change import ChangeSet


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    patch: str
    pid: int
    applied: bool
    reason: str | None = None


def _read(file: Path) -> Iterator[_Line]:
    for raw in read_lines(file):
        with suppress(msgspec.DecodeError):  # truncated by the end of its process
            yield decode_json(raw, _Line)


def unapplied(recording: Path, changes: ChangeSet) -> tuple[str, ...]:
    """Return one line per patch that did not take effect in any process, so that the trial measured something else."""
    last: dict[tuple[str, int], _Line] = {}
    for file in sorted(recording.glob(File.PATCHES.glob)):
        with suppress(OSError):  # the recorder writes regular files only
            for line in _read(file):
                last[line.patch, line.pid] = line
    problems = []
    for patch in changes.patches:
        lines = [line for (name, _), line in last.items() if name == patch.name]
        if not any(line.applied for line in lines):
            reasons = [line.reason for line in lines if line.reason]
            problems.append(f"{patch.name}: {reasons[0] if reasons else 'no training process reported it'}")
    return tuple(problems)
