"""Files that are read past the kernel's page cache, by this process or by several that are started once.

In: paths. Out: their bytes, and what the cache may have answered nevertheless. Nothing is written.
"""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from flatout.probe.ceilings.benchmark import CannotMeasureError
from flatout.probe.ceilings.reader import message

BLOCK = 1 << 20
THREADS = 8
ALIGN = 4096
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)


def opened(path: Path) -> UncachedFile | None:
    """Open a file; None if it was deleted meanwhile or cannot be read."""
    try:
        return UncachedFile(path)
    except OSError:
        return None


class UncachedFile:
    """One file, read past the page cache if possible."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size
        self.is_direct = True
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
            os.preadv(self.fd, [mmap.mmap(-1, ALIGN)], 0)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
            self.is_direct = False
            self.fd = os.open(path, os.O_RDONLY)

    def read(self, buffer: mmap.mmap, offset: int) -> int:
        return os.preadv(self.fd, [buffer], offset)

    def drop_cache(self) -> None:
        if not self.is_direct:
            with suppress(OSError):
                os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def cached_share(self) -> float | None:
        """Return the share of offsets, spread over the file, that the cache answers at once; None if it is unknown."""
        if not _NOWAIT:
            return None
        fd = os.open(self.path, os.O_RDONLY)
        try:
            found = 0
            places = range(0, self.size, max(ALIGN, self.size // 64))
            for offset in places:
                try:
                    found += os.preadv(fd, [bytearray(1)], offset, _NOWAIT) > 0
                except BlockingIOError:
                    continue
                except OSError:
                    return None
            return found / len(places)
        finally:
            os.close(fd)


def cache_note(readers: list[UncachedFile]) -> str:
    """Say how much the page cache can affect the numbers, as determined before the first call."""
    if all(reader.is_direct for reader in readers):
        return "bypassing the page cache (O_DIRECT)"
    for reader in readers:
        reader.drop_cache()
    shares = [share for reader in readers if (share := reader.cached_share()) is not None]
    if not shares:
        return "the page cache was asked to drop the files; whether it did is unknown"
    if max(shares) < 0.02:
        return "the page cache was emptied of the files before each repetition"
    return (
        f"the page cache kept up to {max(shares):.0%} of a file although asked to drop it: partly the speed of memory"
    )


def same_twice(reader: UncachedFile) -> str | None:
    """Check that a foreign file reads the same twice, past the cache and through it; its content is unknown."""
    fd = os.open(reader.path, os.O_RDONLY)
    buffer = mmap.mmap(-1, BLOCK)
    try:
        for offset in range(0, min(reader.size, 8 * BLOCK) // BLOCK * BLOCK, BLOCK):
            reader.read(buffer, offset)
            if zlib.crc32(buffer) != zlib.crc32(os.pread(fd, BLOCK, offset)):
                return (
                    f"{reader.path.name} reads differently a second time at {offset}; or it was changed in the meantime"
                )
        return None
    finally:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def dropping(readers: list[UncachedFile]) -> Callable[[], None]:
    def drop() -> None:
        for reader in readers:
            reader.drop_cache()

    return drop


class ReaderPool:
    """Processes that read records, started when first needed."""

    def __init__(self, readers: list[UncachedFile]) -> None:
        self._files = [f"{'d' if reader.is_direct else 'c'}{reader.path}" for reader in readers]
        self._pool: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        if not self._pool:
            command = [sys.executable, "-m", "flatout.probe.ceilings.reader", *self._files]
            self._pool = [
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
                for _ in range(THREADS)
            ]

    def read(self, size: int, places: list[tuple[int, int]]) -> None:
        for number, process in enumerate(self._pool):
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # reported below
                process.stdin.write(message(size, places[number::THREADS]))
        for process in self._pool:
            assert process.stdout is not None
            if process.stdout.read(1) != b".":
                raise CannotMeasureError("a file became shorter while it was read, or can no longer be read")

    def end(self) -> None:
        for process in self._pool:
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()
            process.wait()
