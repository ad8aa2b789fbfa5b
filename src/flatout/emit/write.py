"""Emitted files against what is on disk: a diff to show, and writing only where asked."""

from __future__ import annotations

import difflib
import os
from contextlib import suppress
from pathlib import Path

from flatout.errors import OutputError
from flatout.records.tuning import Emitted

_HINT = "give another folder with --out"


def diff(emitted: Emitted, folder: Path) -> str:
    """The unified diff from what is there (nothing, where the file does not exist); empty where nothing changes."""
    path = folder / emitted.path
    try:
        old = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    except (OSError, UnicodeDecodeError):
        raise OutputError(f"{path} is there and is no text that can be read, so no difference can be shown") from None
    new = emitted.text.splitlines(keepends=True)
    before = str(path) if old or path.exists() else "/dev/null"
    lines = difflib.unified_diff(old, new, fromfile=before, tofile=str(path))
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def write(emitted: Emitted, folder: Path, *, force: bool = False) -> Path:
    """OutputError where a file of other text is there and `force` is not given. Written whole or not at all."""
    path = folder / emitted.path
    if not force and path.exists() and diff(emitted, folder):
        raise OutputError(f"{path} exists and differs", hint="look at the diff, then add --force to overwrite it")
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(emitted.text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        with suppress(OSError):
            beside.unlink()
        if folder.exists() and not folder.is_dir():
            raise OutputError(f"{folder} is a file; {path.name} is written into a folder", hint=_HINT) from None
        raise OutputError(f"{path} cannot be written: {(error.strerror or str(error)).lower()}", hint=_HINT) from None
    return path
