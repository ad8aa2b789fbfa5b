"""The folder in which a search keeps its logs and results: opened without losing another search, written in full.

In: the limits of the search and the names that it writes there. Out: the folder, and the files. Raises OutputError.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from flatout.checkpoint.lock import NAME as LOCK
from flatout.errors import OutputError
from flatout.secrets import write_private
from flatout.tune.folder_lock import lock_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchLimits:
    """What limits a search, and where its results go: the options that `compress` and `tune --serve` share."""

    folder: Path
    budget_s: float
    max_trials: int | None = None
    force: bool = False  # replaces the results of another search in the folder


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderNames:
    """The names of what a search writes into its folder."""

    kind: str  # what runs there, for the message of a lock: `compression`
    journal: str  # from which it is resumed; an empty one marks a folder of which nothing can be lost
    results: tuple[str, ...]  # the first one has all that was found
    folders: tuple[str, ...] = ()

    @property
    def every(self) -> tuple[str, ...]:
        return (self.journal, *self.results, *self.folders)


def open_folder(limits: SearchLimits, names: FolderNames, *, resumes: bool) -> None:
    """Create the folder, and lock it until this process ends. With `resumes`, what it has is kept.

    Raises OutputError if it holds other files, or results that only `force` replaces.
    """
    folder = limits.folder
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is not a folder", hint="pass another --out")
    found = {entry.name for entry in folder.iterdir()} - {LOCK} if folder.is_dir() else set()
    is_ours = not found or bool(found & {names.journal, names.results[0]})
    if not is_ours or found - set(names.every):
        raise OutputError(f"{folder} already has other files", hint="pass another --out")
    keeps = resumes and not limits.force
    if not keeps and not limits.force and _has_results(folder, names):
        raise OutputError(f"{folder} already has a result", hint="pass another --out, or --force to replace it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock_folder(folder, names.kind)
        if not keeps:
            _clear(folder, names)
            write_private(folder / names.journal, b"")
        for name in names.folders:
            (folder / name).mkdir(exist_ok=True)
    except OSError as error:
        raise not_written(folder, error) from error


def _has_results(folder: Path, names: FolderNames) -> bool:
    journal = folder / names.journal
    has_trials = journal.is_file() and journal.stat().st_size > 0
    return has_trials or any((folder / name).exists() for name in names.results)


def _clear(folder: Path, names: FolderNames) -> None:
    for name in names.every:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def write_results(folder: Path, contents: Mapping[str, bytes | str]) -> None:
    """Write the files, for the user alone to read."""
    try:
        for name, content in contents.items():
            write_private(folder / name, content)
    except OSError as error:
        raise not_written(folder, error) from error


def not_written(path: Path, error: OSError) -> OutputError:
    """Return the error of a folder or file that cannot be written."""
    reason = (error.strerror or str(error)).lower()
    return OutputError(f"{path} cannot be written to: {reason}", hint="pass another --out")
