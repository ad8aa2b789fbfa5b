"""Compare emitted files with those on disk: show a diff, and write only if asked, for the user alone to read."""

from __future__ import annotations

import difflib
import os
from contextlib import suppress
from pathlib import Path

from flatout.errors import OutputError
from flatout.input_files import read_text
from flatout.records.tuning import Emitted
from flatout.secrets import write_private

_HINT = "pass another folder with --out"


def diff(emitted: Emitted, folder: Path) -> str:
    """Return the unified diff from the file on disk, if any; empty if nothing changes. Raise OutputError on failure."""
    path = folder / emitted.path
    is_there = path.exists()
    try:
        old = read_text(path).splitlines(keepends=True) if is_there else []
    except (OSError, UnicodeDecodeError):
        raise OutputError(f"{path} exists and cannot be read as text, so no difference can be shown") from None
    new = emitted.text.splitlines(keepends=True)
    before = str(path) if is_there else "/dev/null"
    lines = difflib.unified_diff(old, new, fromfile=before, tofile=str(path))
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def write(emitted: Emitted, folder: Path, *, force: bool = False) -> Path:
    """Write the file atomically. Raise OutputError if a file with different text exists and `force` is not set."""
    path = folder / emitted.path
    if not force and path.exists() and diff(emitted, folder):
        raise OutputError(f"{path} exists and differs", hint="look at the diff, then add --force to overwrite it")
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(partial, emitted.text)
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"{folder} is a file; {path.name} is written into a folder", hint=_HINT) from None
        raise OutputError(f"{path} cannot be written: {(error.strerror or str(error)).lower()}", hint=_HINT) from None
    return path
