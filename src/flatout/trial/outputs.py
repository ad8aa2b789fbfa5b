"""Find the files that a trial's script wrote, from the records of its processes, and remove partial checkpoints.

In: a trial's folder. Out: `Outputs`. A folder that the trial made for a checkpoint holds only half of it, because the
other half was redirected: that folder is removed with what the trial wrote there, so that no later run takes it for a
complete one. Folders that the trial made and left empty are removed too. All other new files are kept and reported.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from flatout.input_files import decode_json, read_lines
from flatout.inside.protocol import File, OutputKind

_SHOWN = 3


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    kind: str  # an OutputKind
    existed: bool


class Outputs(msgspec.Struct, frozen=True, kw_only=True):
    """The paths that the script wrote to, without duplicates."""

    overwritten: frozenset[str] = frozenset()  # the user's files that the script would have overwritten
    removed: frozenset[str] = frozenset()  # the user's files that the script would have removed or renamed
    wrote: frozenset[str] = frozenset()  # new files that still exist
    in_place: frozenset[str] = frozenset()  # the user's files too large to be copied first, which may have changed

    def __or__(self, other: Outputs) -> Outputs:
        return Outputs(
            overwritten=self.overwritten | other.overwritten,
            removed=self.removed | other.removed,
            wrote=self.wrote | other.wrote,
            in_place=self.in_place | other.in_place,
        )


def settle_outputs(recording: Path, saved: Path) -> Outputs:
    """Remove partial checkpoints, and return the paths that the script wrote. Its files were redirected to `saved`."""
    paths: dict[str, dict[str, bool]] = {}
    for file in sorted(recording.glob(File.DIVERTED.glob)):
        for raw in read_lines(file):
            with suppress(msgspec.DecodeError):  # truncated by the end of its process
                line = decode_json(raw, _Line)
                of_kind = paths.setdefault(line.kind, {})
                of_kind[line.path] = of_kind.get(line.path, False) or line.existed
    diverted = paths.get(OutputKind.DIVERTED, {})
    with suppress(OSError):
        _clear(set(paths.get(OutputKind.FOLDER, ())), diverted, (saved / File.TRIAL_BEGAN).stat().st_ctime_ns)
    return Outputs(
        overwritten=frozenset(path for path, existed in diverted.items() if existed),
        removed=frozenset(paths.get(OutputKind.KEPT, ())),
        wrote=frozenset(path for path in paths.get(OutputKind.NEW, ()) if os.path.islink(path) or os.path.isfile(path)),
        in_place=frozenset(paths.get(OutputKind.IN_PLACE, ())),
    )


def output_notes(outputs: Outputs) -> tuple[str, ...]:
    """Return the notes about these paths for the tuning report."""
    notes = []
    # A file written by one trial already exists when the next trial starts.
    kept = (outputs.overwritten | outputs.removed) - outputs.wrote
    if kept:
        notes.append(
            f"the trials would have overwritten or removed {len(kept)} of your files, which are unchanged: "
            + _shown(kept)
        )
    if outputs.in_place:
        notes.append(
            "trials opened these files to change them; they are too large to be copied first, so check them: "
            + _shown(outputs.in_place)
        )
    if outputs.wrote:
        files = "1 new file" if len(outputs.wrote) == 1 else f"{len(outputs.wrote)} new files"
        notes.append(f"the trials also wrote {files}: {_shown(outputs.wrote)}")
    return tuple(notes)


def _shown(paths: Iterable[str]) -> str:
    ordered = sorted(paths)
    return ", ".join(ordered[:_SHOWN]) + (f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else "")


def _clear(new_folders: set[str], redirected: Iterable[str], began_ns: int) -> None:
    checkpoints = new_folders & {os.path.dirname(path) for path in redirected}
    for folder in checkpoints:
        for root, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(root, name)
                with suppress(OSError):
                    if os.lstat(path).st_ctime_ns >= began_ns:
                        os.unlink(path)
    for folder in sorted(new_folders, reverse=True):  # inner folders first
        with suppress(OSError):
            os.rmdir(folder)
