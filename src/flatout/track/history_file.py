"""The history: a file of JSON lines to which results are only ever added.

Each line is one `TrackedResult`. All lines of a call are added by one write under a lock, so several writers can share
the file. A truncated line is skipped, and the next writer begins a new one. A file with other content is refused
and left as it is.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from flatout.errors import InputError, OutputError
from flatout.input_files import decode_json, read_lines
from flatout.records.tracking import TrackedResult

SCHEMA, VERSION = "flatout/track", 1
_BEGINS = b'{"schema":"flatout/track",'
_HEAD_BYTES = 4096
_HINT = "pass a file that `flatout track add` wrote"


class ResultHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a file, in the order in which they were added."""

    results: tuple[TrackedResult, ...]
    num_damaged: int = 0  # lines that could not be read
    num_newer: int = 0  # lines of a later version


class _Line(msgspec.Struct):
    schema: str
    version: int


def read_history(path: Path) -> ResultHistory:
    """Read a history. Raise InputError if the file is missing, unreadable or not a history."""
    results: list[TrackedResult] = []
    num_damaged = num_newer = 0
    is_first = True
    try:
        for line in read_lines(path):
            if not line.strip(b"\0\n\r "):
                continue
            if is_first and not _is_ours(line):
                raise InputError(f"`{path}` is not a history of results", hint=_HINT)
            is_first = False
            try:
                is_newer = decode_json(line, type=_Line).version > VERSION
                if is_newer:
                    num_newer += 1
                    continue
                results.append(decode_json(line, type=TrackedResult))
            except msgspec.DecodeError:
                num_damaged += 1
    except OSError as error:
        raise InputError(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}", hint=_HINT) from error
    return ResultHistory(results=tuple(results), num_damaged=num_damaged, num_newer=num_newer)


def append_results(path: Path, results: Sequence[TrackedResult]) -> list[TrackedResult]:
    """Add results that the file does not have yet, all or none of them, and return those that were added.

    Raise OutputError if the file cannot be written or is not a history.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # A new file is for its owner alone, because commands are in it.
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _output_error(path, error) from error
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OutputError(f"`{path}` is not a regular file", hint="name a file for the history")
        with suppress(OSError):  # a file system without locks: one write adds all lines
            fcntl.flock(file, fcntl.LOCK_EX)
        size = os.fstat(file).st_size
        if size and not _is_ours(os.pread(file, _HEAD_BYTES, 0)):
            raise OutputError(f"`{path}` exists and is not a history: nothing is added to it", hint="name another file")
        known = {result.digest for result in read_history(path).results} if size else set()
        added = [result for result in results if result.digest not in known]
        _append(file, size, b"".join(msgspec.json.encode(result) + b"\n" for result in added))
    except OSError as error:
        raise _output_error(path, error) from error
    finally:
        os.close(file)
    return added


def _append(file: int, size: int, lines: bytes) -> None:
    """Write the lines at once, on a new line if the last one was truncated. If not all can be written, none is."""
    is_cut = size > 0 and bool(lines) and os.pread(file, 1, size - 1) != b"\n"
    data = b"\n" + lines if is_cut else lines
    try:
        if os.write(file, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        with suppress(OSError):
            os.ftruncate(file, size)
        raise


def _is_ours(head: bytes) -> bool:
    """Return whether a text begins like a history, even if its first line was truncated or written by another tool."""
    line = head.lstrip(b"\0\n\r ").partition(b"\n")[0]
    compact = line[: 2 * len(_BEGINS)].replace(b" ", b"")
    return compact.startswith(_BEGINS) or _BEGINS.startswith(compact)


def _output_error(path: Path, error: OSError) -> OutputError:
    reason = (error.strerror or str(error)).lower()
    return OutputError(f"`{path}` cannot be written: {reason}", hint="name a file that you can write to")
