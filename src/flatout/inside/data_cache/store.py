"""Copies of files on a node-local disk, admitted until the cache is full and never evicted while a job runs.

In: the path of a file that is about to be read. Out: the path of a complete copy of exactly this version of the file,
or None: then the file itself is read. Each epoch reads all files once, in a new order. A cache that evicts loses files
just before they are read again; one that keeps the first files that fit has the hit rate f if it holds the fraction f.

A copy is named after the path, size, time of change and inode of its file, so a file that changes has a new copy. A
copy is written under another name and renamed once it is complete and its file is unchanged. A copy that belongs to an
earlier boot is not used: a crash of the machine can leave a copy whose content was never written. Any failure means
that the file itself is read.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from flatout.inside.protocol import CACHE_COPIES, CACHE_USED, partial_name

_CHUNK_BYTES = 1 << 20
RECENT_S = 2.0  # a file that changed so recently may still be being written
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class Copy(NamedTuple):
    """A complete copy of a file."""

    path: str
    size: int

    def open(self, flags: int) -> int | None:
        """Return a descriptor of the copy; None if it was removed or replaced since it was found."""
        try:
            descriptor = os.open(self.path, flags)
        except OSError:
            return None
        if os.fstat(descriptor).st_size == self.size:
            return descriptor
        os.close(descriptor)
        return None


class CacheStore:
    """The copies in one folder, for the files below `sources`."""

    def __init__(self, folder: Path, max_bytes: int, sources: tuple[str, ...]) -> None:
        self._copies = folder / CACHE_COPIES / boot_id()
        self._used = self._copies / CACHE_USED
        self._max_bytes = max_bytes
        self._prefixes = tuple(source.rstrip("/") + "/" for source in sources)
        self._admits = True
        self.num_hits = self.num_misses = self.num_admitted = 0
        self.hit_bytes = self.missed_bytes = 0

    def covers(self, path: str) -> bool:
        """Whether a file of this absolute path is one of the sources'."""
        return path.startswith(self._prefixes)

    def copy_of(self, path: str) -> Copy | None:
        """Return the copy to read instead of `path`, which may be made now; None: read the file itself."""
        status = os.stat(path)
        copy = self._copy_path(path, status)
        if _has_size(copy, status.st_size):
            self.num_hits += 1
            self.hit_bytes += status.st_size
            return Copy(str(copy), status.st_size)
        self.num_misses += 1
        self.missed_bytes += status.st_size
        if not self._admits or not _is_admissible(status):
            return None
        try:
            return Copy(str(copy), status.st_size) if self._admit(path, status, copy) else None
        except OSError:  # the disk is full or read-only: what is there stays of use
            self._admits = False
            return None

    def _copy_path(self, path: str, status: os.stat_result) -> Path:
        version = f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ino}"
        name = hashlib.sha256(os.fsencode(version)).hexdigest()[:40]
        return self._copies / name[:2] / name

    def _admit(self, path: str, status: os.stat_result, copy: Path) -> bool:
        """Copy the file; return False if it is not admitted. Raise OSError if the copy cannot be written."""
        copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial = copy.with_name(partial_name(copy.name))
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if not _locked(descriptor) or not _is_at(descriptor, partial):
                return False  # another process is making this copy, or has just made it
            if not self._reserve(status.st_size):
                self._admits = False
                partial.unlink()
                return False
            try:
                is_complete = _copied(path, status, descriptor)
                if is_complete:
                    os.fchmod(descriptor, 0o400)
                    os.utime(descriptor, ns=(status.st_atime_ns, status.st_mtime_ns))
                    partial.rename(copy)
                    self.num_admitted += 1
            except BaseException:
                self._discard(partial, status.st_size)
                raise
            if not is_complete:
                self._discard(partial, status.st_size)
            return is_complete
        finally:
            os.close(descriptor)

    def _discard(self, partial: Path, size: int) -> None:
        with suppress(OSError):
            partial.unlink()
        with suppress(OSError):
            self._reserve(-size)

    def _reserve(self, size: int) -> bool:
        """Add to the bytes in use, which all processes of the host share; return False if they would be too many."""
        descriptor = os.open(self._used, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            text = os.pread(descriptor, 32, 0)
            used = int(text) if text.strip().isdigit() else 0
            if size > 0 and used + size > self._max_bytes:
                return False
            os.pwrite(descriptor, b"%-32d" % max(used + size, 0), 0)
            return True
        finally:
            os.close(descriptor)


def boot_id() -> str:
    """Return the name of this boot of the machine."""
    try:
        with open(_BOOT_ID, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "boot"


def _has_size(path: Path, size: int) -> bool:
    try:
        return os.stat(path).st_size == size
    except OSError:
        return False


def _is_admissible(status: os.stat_result) -> bool:
    is_regular = (status.st_mode & 0o170000) == 0o100000
    return is_regular and status.st_size > 0 and time.time() - status.st_mtime >= RECENT_S


def _locked(descriptor: int) -> bool:
    """Lock a partial copy; a process that was killed has left its lock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is still the one of that name: its owner may have renamed it before we locked it."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    return status.st_ino == os.fstat(descriptor).st_ino


def _copied(path: str, status: os.stat_result, target: int) -> bool:
    """Copy a file, over what a killed process has left; return False if it changed since `status` was read."""
    os.ftruncate(target, 0)
    source = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        num_copied = 0
        while chunk := os.read(source, _CHUNK_BYTES):
            view = memoryview(chunk)
            while view:
                view = view[os.write(target, view) :]
            num_copied += len(chunk)
        after = os.fstat(source)
    finally:
        os.close(source)
    is_same = (after.st_size, after.st_mtime_ns, after.st_ino) == (status.st_size, status.st_mtime_ns, status.st_ino)
    return is_same and num_copied == status.st_size
