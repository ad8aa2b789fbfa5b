"""Write files atomically, for the user alone to read, and never overwrite one without permission.

In: a path and bytes. Out: the file. Missing parent folders are created. Every failure is a one-line `OutputError`.
Devices and pipes (`/dev/stdout`, `/dev/null`) are written to directly.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from flatout.errors import OutputError
from flatout.secrets import open_private

_WRITABLE = "pass a path that you can write to"


def write_new(path: str | Path, data: bytes | str, *, force: bool = False) -> None:
    """Write `data` (text as UTF-8) to `path`; an existing file is replaced only with `force`."""
    with open_new(path, force=force) as file:
        file.write(data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data)


def check_new(path: str | Path, *, force: bool = False) -> None:
    """Raise OutputError if `write_new` would refuse the path: a check before minutes of work."""
    if os.path.isdir(path):  # returns False for a name that is too long, where pathlib raises
        raise OutputError(f"`{path}` is a folder, but the output must be a file", hint="pass the name of a file in it")
    if os.path.isfile(path) and not force:
        raise OutputError(
            f"`{path}` already exists",
            hint="pass another name, or `--force` to replace it",
        )
    if not os.path.exists(path) or os.path.isfile(path):
        above = os.path.dirname(os.path.realpath(path))
        while not os.path.exists(above):
            above = os.path.dirname(above)
        if os.path.isdir(above) and not os.access(above, os.W_OK | os.X_OK):
            reason = "read-only file system" if _is_read_only(above) else "permission denied"
            raise OutputError(f"`{path}` cannot be written: {reason}", hint=_WRITABLE)


@contextmanager
def open_new(path: str | Path, *, force: bool = False) -> Iterator[BinaryIO]:
    """Open a binary file for writing. It gets its name when the block ends; if the block fails, it is deleted."""
    check_new(path, force=force)
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            with target.open("wb") as file:
                yield file
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name[:200]}.{os.getpid()}.part")
        try:
            with open_private(partial, "xb") as file:
                yield file
            _give_name(partial, target, force=force)
        finally:
            with suppress(FileNotFoundError):
                partial.unlink()
    except OSError as error:
        if isinstance(error, FileExistsError) and target.is_file():
            check_new(path)
        raise _output_error(path, error) from error


def _give_name(partial: Path, target: Path, *, force: bool) -> None:
    if force:
        partial.replace(target)
        return
    try:
        os.link(partial, target)  # a link fails if the name was taken meanwhile; a rename would overwrite it
    except OSError as error:
        if error.errno == errno.EEXIST or target.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        partial.replace(target)  # a file system without hard links


def _is_read_only(folder: str) -> bool:
    with suppress(OSError):
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    return False


def _output_error(path: str | Path, error: OSError) -> OutputError:
    is_disk_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    hint = "free some space, or write to another disk" if is_disk_full else _WRITABLE
    reason = (error.strerror or str(error)).lower()
    return OutputError(f"`{path}` cannot be written: {reason}", hint=hint)
