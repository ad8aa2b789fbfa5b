"""Check that the patches of a trial took effect, from the lines that each training process recorded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

from flatout.input_files import decode_json, read_lines
from flatout.inside.protocol import File
from flatout.records.change import ChangeSet
from flatout.records.trial import Padding


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    patch: str
    pid: int
    applied: bool
    reason: str | None = None
    details: dict[str, int | str] = {}


def _read(file: Path) -> Iterator[_Line]:
    for raw in read_lines(file):
        with suppress(msgspec.DecodeError):  # truncated by the end of its process
            yield decode_json(raw, _Line)


def unapplied(recording: Path, changes: ChangeSet) -> tuple[str, ...]:
    """Return one line per patch that did not take effect in any process, so that the trial measured something else."""
    last = _last_lines(recording)
    problems = []
    for patch in changes.patches:
        lines = [line for (name, _), line in last.items() if name == patch.name]
        if not any(line.applied for line in lines):
            reasons = [line.reason for line in lines if line.reason]
            problems.append(f"{patch.name}: {reasons[0] if reasons else 'no training process reported it'}")
    return tuple(problems)


def read_padding(recording: Path) -> Padding | None:
    """Return the padding of the batches that were balanced; None if none were, or if it is not in the report."""
    for (name, _), line in _last_lines(recording).items():
        if name == "balanced_batches" and line.applied:
            with suppress(KeyError, ValueError):
                before, after = (float(line.details[f"padding_{when}_percent"]) / 100 for when in ("before", "after"))
                if 0 <= after <= 1 and 0 <= before <= 1:
                    return Padding(before_share=before, after_share=after)
    return None


def _last_lines(recording: Path) -> dict[tuple[str, int], _Line]:
    """Return the last line of each patch in each process, by name and PID."""
    last: dict[tuple[str, int], _Line] = {}
    for file in sorted(recording.glob(File.PATCHES.glob)):
        with suppress(OSError):  # the recorder writes regular files only
            for line in _read(file):
                last[line.patch, line.pid] = line
    return last
