"""Find the files that a trial's script wrote, and remove those that are not below the trial's own folder.

In: a trial's folder. Out: `Outputs`. New files that the hooks in the trial's Python processes reported are removed, and
so are folders that the trial created, with everything that it wrote in them: no later trial and no real job may take
them for its own. Files in the machine's temporary folder are shared by all its processes and stay. What an overlay kept
apart is only listed: it is in the trial's folder.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from flatout.input_files import decode_json, read_lines
from flatout.inside.protocol import UNKNOWN_WRITER, File, OutputKind

_SHOWN = 3


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    kind: str  # an OutputKind
    existed: bool
    writer: str = UNKNOWN_WRITER  # of READ_EARLIER: the trial that wrote the file


class Outputs(msgspec.Struct, frozen=True, kw_only=True):
    """The paths that the script wrote to, without duplicates."""

    overwritten: frozenset[str] = frozenset()  # the user's files that the script would have overwritten
    removed: frozenset[str] = frozenset()  # the user's files that the script would have removed or renamed
    wrote: frozenset[str] = frozenset()  # new files, which do not exist after the trial
    left: frozenset[str] = frozenset()  # files that changed during the trial and still exist
    in_place: frozenset[str] = frozenset()  # the user's files too large to be copied first, which may have changed

    def __or__(self, other: Outputs) -> Outputs:
        return Outputs(
            overwritten=self.overwritten | other.overwritten,
            removed=self.removed | other.removed,
            wrote=self.wrote | other.wrote,
            left=self.left | other.left,
            in_place=self.in_place | other.in_place,
        )


class EarlierRead(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a trial read, although an earlier trial of the same tuning has written it."""

    path: str
    writer: str | None  # the name of that trial; None: unknown


def settle_outputs(
    recording: Path, saved: Path, folders: Collection[str] = (), *, until_ns: int | None = None
) -> Outputs:
    """Remove what the hooks of a trial reported as new, and return the paths that the script wrote.

    Its files were redirected to `saved`. In `folders`, the user's own, new files are removed even if they are in the
    machine's temporary folder. A file that was changed before the trial began or after `until_ns` is kept.
    """
    paths, overwritten = _reported(recording)
    new = [path for path in paths[OutputKind.NEW] if os.path.lexists(path)]
    began_ns = _began_ns(saved)
    if began_ns is not None:
        end_ns = sys.maxsize if until_ns is None else until_ns
        own_files = [path for path in new if not _is_shared(path, folders)]
        own_folders = [path for path in paths[OutputKind.FOLDER] if not _is_shared(path, folders)]
        _clear(own_files, own_folders, range(began_ns, end_ns))
    left = frozenset(path for path in new if os.path.lexists(path))
    return Outputs(
        overwritten=overwritten,
        removed=frozenset(paths[OutputKind.KEPT]),
        wrote=frozenset(new) - left,
        left=left,
        in_place=frozenset(paths[OutputKind.IN_PLACE]),
    )


def _reported(recording: Path) -> tuple[defaultdict[str, dict[str, None]], frozenset[str]]:
    """Return the reported paths by kind, in their order; and those of redirected files that existed before."""
    paths: defaultdict[str, dict[str, None]] = defaultdict(dict)
    overwritten = set()
    for line in _lines(recording):
        paths[line.kind][line.path] = None
        if line.kind == OutputKind.DIVERTED and line.existed:
            overwritten.add(line.path)
    return paths, frozenset(overwritten)


def reads_of_earlier(recording: Path) -> tuple[EarlierRead, ...]:
    """Return the files that the trial read although an earlier trial has written them, each once."""
    reads = {line.path: line.writer for line in _lines(recording) if line.kind == OutputKind.READ_EARLIER}
    return tuple(
        EarlierRead(path=path, writer=None if writer == UNKNOWN_WRITER else writer)
        for path, writer in sorted(reads.items())
    )


def ran_outside(recording: Path) -> bool:
    """Whether a process of the trial did not see the overlay that its files should have been kept apart by."""
    return any(line.kind == OutputKind.OUTSIDE for line in _lines(recording))


def _lines(recording: Path) -> Iterable[_Line]:
    for file in sorted(recording.glob(File.DIVERTED.glob)):
        with suppress(OSError):  # a hook writes regular files only
            for raw in read_lines(file):
                with suppress(msgspec.DecodeError):  # truncated by the end of its process
                    yield decode_json(raw, _Line)


def _began_ns(saved: Path) -> int | None:
    """Return when the trial began, in the time of the file system; None if no hook was loaded."""
    with suppress(OSError):
        return (saved / File.TRIAL_BEGAN).stat().st_ctime_ns
    return None


def _is_shared(path: str, folders: Collection[str]) -> bool:
    """Whether a path is in the machine's temporary folder, and not in a folder of the user's there."""
    temporary = os.path.realpath(tempfile.gettempdir()) + os.sep
    is_users = any(path == folder or path.startswith(folder.rstrip(os.sep) + os.sep) for folder in folders)
    return path.startswith(temporary) and not is_users


def overlaid_outputs(layers: Mapping[str, Path]) -> Outputs:
    """Return what a trial wrote in overlaid folders, whatever wrote it. `layers` are its files, by overlaid folder."""
    overwritten, removed, wrote = set(), set(), set()
    for folder, layer in layers.items():
        for root, folders, names in os.walk(layer):
            below = os.path.join(folder, os.path.relpath(root, layer))
            for name in [*names, *(name for name in folders if os.path.islink(os.path.join(root, name)))]:
                status = os.lstat(os.path.join(root, name))
                path = os.path.normpath(os.path.join(below, name))
                is_whiteout = stat.S_ISCHR(status.st_mode) and status.st_rdev == 0
                if is_whiteout:
                    removed.add(path)
                elif os.path.lexists(path):
                    overwritten.add(path)
                else:
                    wrote.add(path)
    return Outputs(overwritten=frozenset(overwritten), removed=frozenset(removed), wrote=frozenset(wrote))


def output_notes(outputs: Outputs) -> tuple[str, ...]:
    """Return the notes about these paths for the tuning report."""
    notes = []
    # A file that one trial left exists when the next trial starts.
    kept = (outputs.overwritten | outputs.removed) - outputs.wrote - outputs.left
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
        notes.append(f"the trials wrote {files}, kept apart and then removed: {_shown(outputs.wrote)}")
    if outputs.left:
        files = "1 file" if len(outputs.left) == 1 else f"{len(outputs.left)} files"
        notes.append(f"{files} changed during the trials and could not be kept apart: {_shown(outputs.left)}")
    return tuple(notes)


def _shown(paths: Iterable[str]) -> str:
    ordered = sorted(paths)
    return ", ".join(ordered[:_SHOWN]) + (f" and {len(ordered) - _SHOWN} more" if len(ordered) > _SHOWN else "")


def _clear(new: Collection[str], new_folders: Collection[str], times_ns: range) -> None:
    """Remove new files, and new folders with what was written in them during the trial."""
    for folder in new_folders:
        for root, _, names in os.walk(folder):
            _remove_new((os.path.join(root, name) for name in names), times_ns)
    _remove_new(new, times_ns)
    for folder in sorted(new_folders, reverse=True):  # inner folders first
        for root, _, _ in os.walk(folder, topdown=False):
            with suppress(OSError):
                os.rmdir(root)


def _remove_new(paths: Iterable[str], times_ns: range) -> None:
    for path in paths:
        with suppress(OSError):
            if os.lstat(path).st_ctime_ns in times_ns:
                os.unlink(path)
