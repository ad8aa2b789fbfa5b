"""Whether the patches of a trial took effect, by the lines that each training process left in the recording."""

from __future__ import annotations

from pathlib import Path

import msgspec

from flatout.inside.protocol import File
from flatout.records.change import ChangeSet


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    patch: str
    pid: int
    applied: bool
    reason: str | None = None


_LINE = msgspec.json.Decoder(_Line)


def unapplied(recording: Path, changes: ChangeSet) -> tuple[str, ...]:
    """One line for each patch that took effect in no process: a trial of it measured something else."""
    last: dict[tuple[str, int], _Line] = {}
    for file in sorted(recording.glob(File.PATCHES.glob)):
        for raw in file.read_bytes().splitlines():
            try:
                line = _LINE.decode(raw)
            except msgspec.DecodeError:
                continue  # cut short by the end of its process
            last[line.patch, line.pid] = line
    found = []
    for patch in changes.patches:
        lines = [line for (name, _), line in last.items() if name == patch.name]
        if not any(line.applied for line in lines):
            reasons = [line.reason for line in lines if line.reason]
            found.append(f"{patch.name}: {reasons[0] if reasons else 'no training process reported it'}")
    return tuple(found)
