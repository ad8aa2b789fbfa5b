"""Give each run of a command the user's standard input from its beginning, as if the user had started only that run.

In: our own standard input. Out: a file descriptor for each run. A file is opened again for each run. Data from a pipe
are read only as far as a run needs them, are kept in a temporary file, and are given to each later run from the
beginning. A terminal is not given to runs, because several runs cannot ask the user the same questions: `missing` says
so. Nothing here waits for a pipe that is open and silent.
"""

from __future__ import annotations

import os
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_CHUNK = 1 << 16
_POLL_S = 0.2


class StandardInput:
    """The user's standard input, for any number of runs, one after another."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._replay: _Replay | None = None
        self._offset = 0
        self.missing: str | None = None  # why runs have no standard input; None: they get the user's
        try:
            mode = os.fstat(descriptor).st_mode
        except OSError:
            self.missing = "it is closed"
            return
        if os.isatty(descriptor):
            self.missing = "it is a terminal, and runs do not ask the user for input"
        elif stat.S_ISREG(mode):
            self._offset = os.lseek(descriptor, 0, os.SEEK_CUR)
        elif stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            self._replay = _Replay(descriptor)

    @contextmanager
    def for_run(self) -> Iterator[int]:
        """Yield the descriptor to start a run with; it is closed afterwards."""
        if self._replay is not None:
            with self._replay.for_run() as descriptor:
                yield descriptor
            return
        descriptor = self._opened()
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _opened(self) -> int:
        if self.missing is not None:
            return os.open(os.devnull, os.O_RDONLY)
        try:
            descriptor = os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDONLY)
        except OSError:
            return os.open(os.devnull, os.O_RDONLY)
        if self._offset:
            os.lseek(descriptor, self._offset, os.SEEK_SET)
        return descriptor


class _Replay:
    """A pipe whose content is kept, so that each run can read it from its beginning."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._kept = _nameless_file()
        self._size = 0
        self._is_over = False
        self._changed = threading.Condition()
        self._is_wanted = threading.Event()
        self._reader: threading.Thread | None = None

    @contextmanager
    def for_run(self) -> Iterator[int]:
        """Yield the reading end of a pipe into which a thread writes the content."""
        reading, writing = os.pipe()
        has_ended = threading.Event()
        feeder = threading.Thread(target=self._feed, args=(writing, has_ended), daemon=True)
        feeder.start()
        try:
            yield reading
        finally:
            has_ended.set()
            os.close(reading)  # a feeder that waits for a reader gets an error now

    def _feed(self, writing: int, has_ended: threading.Event) -> None:
        offset = 0
        try:
            while not has_ended.is_set():
                data = self._read_at(offset, has_ended)
                if not data:
                    return
                offset += os.write(writing, data)
        except OSError:
            return  # the run has ended, or reads no further
        finally:
            with suppress(OSError):
                os.close(writing)

    def _read_at(self, offset: int, has_ended: threading.Event) -> bytes:
        """Return some bytes from there; b"" at the end of the input, or once the run has ended."""
        with self._changed:
            while offset >= self._size and not self._is_over:
                self._want_more()
                self._changed.wait(_POLL_S)
                if has_ended.is_set():
                    return b""
            return os.pread(self._kept, min(_CHUNK, max(self._size - offset, 0)), offset)

    def _want_more(self) -> None:
        self._is_wanted.set()
        if self._reader is None:
            self._reader = threading.Thread(target=self._read, daemon=True)
            self._reader.start()

    def _read(self) -> None:
        """Read the pipe, one piece each time that a run needs more."""
        while True:
            self._is_wanted.wait()
            self._is_wanted.clear()
            try:
                data = os.read(self._descriptor, _CHUNK)
            except OSError:
                data = b""
            with self._changed:
                if data:
                    os.pwrite(self._kept, data, self._size)
                    self._size += len(data)
                self._is_over = not data
                self._changed.notify_all()
            if not data:
                return


def _nameless_file() -> int:
    """Return the descriptor of a temporary file that is gone when this process ends."""
    descriptor, path = tempfile.mkstemp()
    os.unlink(path)
    return descriptor
