"""Files whose reads are timed as a separate stage, down to the system call.

In: a call of `open`. Out: the same kind of file object as Python's own `open` returns, if the file is opened for
reading by its path, while a batch is timed; anything else is left to Python's `open`. What is read, and in which
pieces, is the same: only the raw file below Python's buffer takes the time.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from functools import wraps
from typing import Any

from flatout.inside.loader_stages.mounts_read import READ_PATHS
from flatout.inside.loader_stages.stopwatch import STOPWATCH
from flatout.inside.protocol import LoaderStage

_READING = {"rb", "br", "r", "rt", "tr"}
_TEXT_OPTIONS = {"encoding", "errors", "newline"}


class _TimedFile(io.FileIO):
    """A raw file whose reads on the timed thread are the stage READ."""

    def readinto(self, buffer: Any, /) -> int | None:
        if not STOPWATCH.runs_here():
            return super().readinto(buffer)
        STOPWATCH.enter(LoaderStage.READ)
        try:
            return super().readinto(buffer)
        finally:
            STOPWATCH.leave()

    def readall(self) -> bytes:
        if not STOPWATCH.runs_here():
            return super().readall()
        STOPWATCH.enter(LoaderStage.READ)
        try:
            return super().readall()
        finally:
            STOPWATCH.leave()


def timed_open(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return `open`, which on the timed thread is the stage OPEN and returns files whose reads are the stage READ."""

    @wraps(original)
    def open_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if not STOPWATCH.runs_here():
            return original(file, mode, *args, **kwargs)
        STOPWATCH.enter(LoaderStage.OPEN)
        try:
            READ_PATHS.note(file)
            if args or not _is_plain(file, mode, kwargs):
                return original(file, mode, *args, **kwargs)
            return _opened(file, mode, kwargs)
        finally:
            STOPWATCH.leave()

    return open_file


def _is_plain(file: Any, mode: str, options: dict[str, Any]) -> bool:
    """Whether a file is opened by its path to be read, with no more options than those of its text."""
    is_path = isinstance(file, (str, bytes, os.PathLike))
    return is_path and mode in _READING and options.keys() <= (_TEXT_OPTIONS if "b" not in mode else set())


def _opened(file: Any, mode: str, options: dict[str, Any]) -> Any:
    """Return the buffered file, or the text, that Python's own `open` returns."""
    raw = _TimedFile(os.fspath(file), "r")
    try:
        buffered = io.BufferedReader(raw, _buffer_size(raw))
        if "b" in mode:
            return buffered
        text = io.TextIOWrapper(buffered, **options)
    except BaseException:
        raw.close()
        raise
    text.mode = mode  # type: ignore[misc]  # as Python's own `open` does
    return text


def _buffer_size(raw: io.FileIO) -> int:
    """Return the size of the buffer that Python's own `open` chooses."""
    size = os.fstat(raw.fileno()).st_blksize
    return size if size > 1 else io.DEFAULT_BUFFER_SIZE
