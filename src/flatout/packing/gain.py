"""Say what packing will bring, from the file system of the source and the time of opening its files.

In: a `Listing`. Out: a `PackingGain`. Packing saves the requests for metadata that opening a file costs, on storage
that is reached over a network; on a local disk it brings nothing. The factor is an upper limit for a script that reads
samples in random order: (open + read) / read, of one thread, on files whose pages were first dropped from the cache.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from flatout.packing.sources import Listing
from flatout.probe.mounts import MountPoint, is_network, kind_of, read_mounts
from flatout.records.packing import FileContent, OpenTimes, PackingGain

LEAST_OPEN_SHARE = 0.2  # below this share of a file's time, there is nothing worth saving
NUM_FILES = 200
_MAX_S = 10.0


class GainCause:
    """The values of `PackingGain.cause`."""

    LOCAL = "local"
    FEW_METADATA = "few-metadata"  # opening is a small share of reading
    METADATA = "metadata"
    ONE_FILE = "one-file"  # the source is already one file
    UNKNOWN = "unknown"


def packing_gain(listing: Listing, mounts: Sequence[MountPoint] | None = None) -> PackingGain:
    """Return what packing these files will bring; opens and reads up to `NUM_FILES` of them."""
    paths = [sample.content.path for sample in listing.samples if isinstance(sample.content, FileContent)]
    kind = kind_of(listing.root, mounts if mounts is not None else read_mounts())
    if not paths:
        return PackingGain(cause=GainCause.ONE_FILE, file_system=kind, times=None)
    spacing = max(1, len(paths) // NUM_FILES)
    times = open_times(paths[::spacing][:NUM_FILES])
    return judged(kind, times)


def judged(kind: str, times: OpenTimes | None) -> PackingGain:
    """Return the gain for a kind of file system and the times that were measured on it."""
    if times is None or not kind:
        return PackingGain(cause=GainCause.UNKNOWN, file_system=kind, times=times)
    if not is_network(kind):
        return PackingGain(cause=GainCause.LOCAL, file_system=kind, times=times)
    share = times.open_s / (times.open_s + times.read_s)
    if share < LEAST_OPEN_SHARE:
        return PackingGain(cause=GainCause.FEW_METADATA, file_system=kind, times=times)
    factor = (times.open_s + times.read_s) / max(times.read_s, 1e-9)
    return PackingGain(cause=GainCause.METADATA, file_system=kind, times=times, factor=factor)


def open_times(paths: Sequence[str]) -> OpenTimes | None:
    """Return the mean times of opening and of reading these files; None if none can be read."""
    opening_s = reading_s = 0.0
    num_files = num_bytes = 0
    deadline = time.monotonic() + _MAX_S
    for path in paths:
        if time.monotonic() > deadline:
            break
        with suppress(OSError):
            _drop_pages(path)
            before = time.perf_counter()
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                size = os.fstat(descriptor).st_size
                opened = time.perf_counter()
                num_bytes += len(os.read(descriptor, size))
                read = time.perf_counter()
            finally:
                os.close(descriptor)
            opening_s += opened - before
            reading_s += read - opened
            num_files += 1
    if not num_files:
        return None
    return OpenTimes(
        num_files=num_files,
        open_s=opening_s / num_files,
        read_s=reading_s / num_files,
        mean_bytes=num_bytes / num_files,
    )


def _drop_pages(path: str | Path) -> None:
    """Drop a file's pages from the page cache of this machine, so that reading it reaches the storage."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
