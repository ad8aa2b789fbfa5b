"""Report at the end of `flatout run` which checkpoint is the newest, and which saves failed.

In: the notes of `flatout.checkpoint` in the job's processes on this host (`checkpoint.notes`). Out: `Saves`, by folder.
If processes on another node lead a job, it has no notes here and is not reported.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from flatout.input_files import decode_json, read_lines
from flatout.inside.protocol import File
from flatout.run.messages import say

_MOST_FAILURES = 3  # maximum number of failed saves that are named


class _Note(msgspec.Struct, frozen=True, kw_only=True):
    event: str
    folder: str
    step: int
    unix_s: float
    is_local: bool = False  # the second, faster folder on each host
    reason: str = ""


class Saves(msgspec.Struct, frozen=True, kw_only=True):
    """The outcomes of the saves to one folder."""

    folder: str
    is_local: bool
    newest: int | None  # step of the newest complete checkpoint that this job saved or resumed from
    failures: dict[int, str]  # step -> why it is not on the disk
    missing: int | None  # step of the last save, if that is not on the disk


def read_saves(state: Path) -> list[Saves]:
    """Return the saves to each folder, in the order of their folders' first notes."""
    notes = sorted(_notes(state), key=lambda note: note.unix_s)
    folders = dict.fromkeys(note.folder for note in notes)
    return [_saves_to(folder, [note for note in notes if note.folder == folder]) for folder in folders]


def _notes(state: Path) -> Iterator[_Note]:
    for path in state.glob(File.SAVES.glob):
        with suppress(OSError):
            for line in read_lines(path):
                with suppress(msgspec.DecodeError):  # a process that was killed can leave half a line
                    yield decode_json(line, type=_Note)


def _saves_to(folder: str, notes: Sequence[_Note]) -> Saves:
    newest: int | None = None
    last: int | None = None  # the step of the last save
    complete: set[int] = set()
    failures: dict[int, str] = {}
    for note in notes:
        if note.event in ("committed", "resumed"):
            newest = note.step
            complete.add(note.step)
            failures.pop(note.step, None)
        else:
            last = note.step
            complete.discard(note.step)
            failures[note.step] = note.reason or "the job ended before it was complete"
    return Saves(
        folder=folder,
        is_local=notes[0].is_local,
        newest=newest,
        failures=failures,
        missing=None if last in complete else last,
    )


def report_saves(saves: Sequence[Saves]) -> bool:
    """Report the outcomes of the saves; return whether the last save is missing.

    A save that is missing in a local folder does not count as missing if the shared folder has it.
    """
    for of_folder in saves:
        newest = "none" if of_folder.newest is None else f"step {of_folder.newest}"
        say(f"newest checkpoint in {of_folder.folder}: {newest}")
        if of_folder.failures:
            say(_failures(of_folder.failures))
    newest_shared = max((one.newest or -1 for one in saves if not one.is_local), default=-1)
    return any(_is_lost(of_folder, newest_shared) for of_folder in saves)


def _is_lost(saves: Saves, newest_shared: int) -> bool:
    if saves.missing is None:
        return False
    return not saves.is_local or saves.missing > newest_shared


def report_file(path: Path, start_unix_s: float) -> None:
    """Say whether the last attempt wrote the file that a script saves itself; nothing, if there is none."""
    try:
        written_unix_s = path.stat().st_mtime
    except OSError:
        return
    if written_unix_s < start_unix_s:
        say(f"newest checkpoint: {path}, from before the last attempt")
    else:
        say(f"newest checkpoint: {path}, written {time.time() - written_unix_s:.0f} s before the end")


def _failures(failures: dict[int, str]) -> str:
    shown = [f"step {step} ({reason})" for step, reason in list(failures.items())[-_MOST_FAILURES:]]
    num_more = len(failures) - len(shown)
    more = f" and {num_more} before" if num_more else ""
    return f"not saved: {', '.join(shown)}{more}"
