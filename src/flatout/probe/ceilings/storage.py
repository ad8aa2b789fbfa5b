"""Measure reads from the user's own path: sequential shards, random records, many small files; writes only if allowed.

Read-only by default: existing files are read, never written. The kernel's page cache would answer instead of the
device, so reads bypass it (O_DIRECT) if the file system supports that; otherwise the cache is asked to drop the file
(POSIX_FADV_DONTNEED), and RWF_NOWAIT shows how much of it stayed, which the note reports. Caches of a file server or of
a virtual machine's host cannot be emptied from here, and the note does not cover them.

With `allow_write`, a folder with files of known content is created there and removed at the end; a write ends when
fsync reports that the data are on the device.
"""

from __future__ import annotations

import mmap
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from flatout.probe.ceilings.benchmark import Benchmark, CannotMeasureError
from flatout.probe.ceilings.uncached_files import (
    ALIGN,
    BLOCK,
    THREADS,
    ReaderPool,
    UncachedFile,
    cache_note,
    dropping,
    opened,
    same_twice,
)

NAMES = (
    *("storage_sequential_read", "storage_random_read", "storage_small_files"),
    "storage_sequential_write",
)
SHARD_BYTES = 128 << 20  # size of each file that we write
MIN_SHARD_BYTES = 64 << 20  # smallest file of the user that is read as a shard
SMALL_FILE_BYTES = 256 << 10
RECORDS = (4 << 10, 128 << 10)
_BYTES_A_CALL = 64 << 20
_RECORDS_A_CALL = 1024
_FILES_A_CALL = 128
_MAX_LOOKED_AT = 20_000


@contextmanager
def storage_benchmarks(
    folder: Path, *, allow_write: bool, prefix: str
) -> Iterator[tuple[list[Benchmark], dict[str, str]]]:
    """Yield the measurements, and why others are missing; files that we wrote are removed afterwards."""
    if not allow_write:
        shards, small = _files_of_the_user(folder)
        with _read_benchmarks(shards, small, is_ours=False) as found:
            yield found
        return
    try:
        ours = Path(tempfile.mkdtemp(prefix=prefix, dir=folder))
    except OSError as error:
        yield [], {"storage": f"a folder cannot be created there: {(error.strerror or str(error)).lower()}"}
        return
    try:
        free = shutil.disk_usage(ours).free
        shard_bytes = min(SHARD_BYTES, free // 16 // BLOCK * BLOCK)
        if shard_bytes < 4 * BLOCK:
            yield [], {"storage": f"only {free >> 20} MiB are free there"}
            return
        shards = [ours / f"shard-{number}" for number in range(2)]
        for number, path in enumerate(shards):
            _write(path, shard_bytes, number)
        small = [ours / f"small-{number}" for number in range(_FILES_A_CALL * 2)]
        for number, path in enumerate(small):
            path.write_bytes(content(number, 0, 64 << 10))
        os.sync()
        with _read_benchmarks(shards, small, is_ours=True) as (benchmarks, missing):
            yield [*benchmarks, _write_benchmark(ours / "written", min(_BYTES_A_CALL, shard_bytes))], missing
    finally:
        shutil.rmtree(ours, ignore_errors=True)


def content(file: int, block: int, length: int) -> bytes:
    """Return the content of the files that we write: it identifies file and block, and cannot be compressed."""
    return random.Random(file * 1_000_003 + block).randbytes(length)


def _write(path: Path, size: int, number: int) -> None:
    with path.open("wb") as file:
        for block in range(size // BLOCK):
            file.write(content(number, block, BLOCK))
        file.flush()
        os.fsync(file.fileno())


def _files_of_the_user(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the largest files and some small ones, without following links, from the first 20,000 files or so."""
    large: list[tuple[int, Path]] = []
    small: list[Path] = []
    looked_at = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with suppress(OSError):
                if path.is_symlink() or not path.is_file() or not os.access(path, os.R_OK):
                    continue
                size = path.stat().st_size
                if size >= MIN_SHARD_BYTES:
                    large.append((size, path))
                elif 0 < size <= SMALL_FILE_BYTES and len(small) < _FILES_A_CALL * 16:
                    small.append(path)
            looked_at += 1
        if looked_at >= _MAX_LOOKED_AT:
            break
    return [path for _, path in sorted(large, reverse=True)[:8]], small


@contextmanager
def _read_benchmarks(
    shards: list[Path], small: list[Path], *, is_ours: bool
) -> Iterator[tuple[list[Benchmark], dict[str, str]]]:
    missing: dict[str, str] = {}
    benchmarks: list[Benchmark] = []
    pool: ReaderPool | None = None
    hint = "or let Flatout write its own files with --allow-write"
    readers = [reader for path in shards if (reader := opened(path)) is not None]
    if readers:
        pool = ReaderPool(readers)
        benchmarks += [_sequential(readers, is_ours, threads) for threads in (1, THREADS)]
        benchmarks += [_random(readers, size, pool) for size in RECORDS]
    else:
        why = f"no file of {MIN_SHARD_BYTES >> 20} MiB or more is there: pass a path with such files, {hint}"
        missing["storage_sequential_read"] = missing["storage_random_read"] = why
    if len(small) >= _FILES_A_CALL:
        benchmarks.append(_small_files(small))
    else:
        missing["storage_small_files"] = f"{len(small)} small files are there, and {_FILES_A_CALL} are needed: {hint}"
    try:
        yield benchmarks, missing
    finally:
        if pool is not None:
            pool.end()


def _sequential(readers: list[UncachedFile], is_ours: bool, threads: int) -> Benchmark:
    """Return the benchmark of reading a part of a shard, MiB by MiB; each of several threads reads a different part."""
    buffers = [mmap.mmap(-1, BLOCK) for _ in range(threads)]
    share = max(BLOCK, _BYTES_A_CALL // threads // BLOCK * BLOCK)
    state = {"at": 0}

    def part(thread: int) -> tuple[UncachedFile, int]:
        reader = readers[(state["at"] + thread) % len(readers)]
        num_parts = max(1, reader.size // share)
        return reader, (state["at"] * threads + thread) % num_parts * share

    def read(thread: int) -> None:
        reader, start = part(thread)
        for offset in range(start, min(start + share, reader.size // BLOCK * BLOCK), BLOCK):
            got = reader.read(buffers[thread], offset)
            if got < BLOCK:
                raise CannotMeasureError(f"a read of {BLOCK} bytes gave {got}")

    pool = ThreadPoolExecutor(threads)

    def call() -> None:
        state["at"] += 1
        list(pool.map(read, range(threads)))

    def check() -> str | None:
        reader = readers[0]
        if not is_ours:
            return same_twice(reader)
        for number, one in enumerate(readers):
            for block in (0, one.size // BLOCK // 2, one.size // BLOCK - 1):
                one.read(buffers[0], block * BLOCK)
                if buffers[0][:] != content(number, block, BLOCK):
                    return f"block {block} of {one.path.name} is not what was written"
        return None

    return Benchmark(
        name="storage_sequential_read",
        unit="B/s",
        work=float(share * threads),
        call=call,
        check=check,
        checked="blocks compared with what was written" if is_ours else "blocks read twice",
        who="first",
        before=dropping(readers),
        max_calls=4,
        labels={"size": BLOCK, "threads": threads, "backend": "file", "note": cache_note(readers)},
    )


def _random(readers: list[UncachedFile], size: int, pool: ReaderPool) -> Benchmark:
    """Return the benchmark of several processes reading records at random offsets, drawn again for each call."""
    draw = random.Random(6)

    def call() -> None:
        places = []
        for _ in range(_RECORDS_A_CALL):
            file = draw.randrange(len(readers))
            places.append((file, draw.randrange(max(1, (readers[file].size - size) // ALIGN)) * ALIGN))
        pool.read(size, places)

    def check() -> str | None:
        pool.start()
        call()  # the processes have started when it returns
        return same_twice(readers[0])

    return Benchmark(
        name="storage_random_read",
        unit="1/s",
        work=float(_RECORDS_A_CALL),
        call=call,
        check=check,
        checked="blocks read twice",
        who="first",
        before=dropping(readers),
        max_calls=4,
        labels={"size": size, "threads": THREADS, "backend": "file", "note": cache_note(readers)},
    )


def _small_files(paths: list[Path]) -> Benchmark:
    """Return the benchmark of opening, reading and closing small files; the cache drops them before each repetition."""
    state = {"at": 0}
    sizes = {path: path.stat().st_size for path in paths}
    pool = ThreadPoolExecutor(THREADS)

    def read(path: Path) -> int:
        fd = os.open(path, os.O_RDONLY)
        try:
            return len(os.read(fd, SMALL_FILE_BYTES))
        finally:
            os.close(fd)

    def chosen() -> list[Path]:
        return [paths[(state["at"] + index) % len(paths)] for index in range(_FILES_A_CALL)]

    def drop() -> None:
        for path in paths:
            fd = os.open(path, os.O_RDONLY)
            with suppress(OSError):
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)

    def call() -> None:
        state["at"] += _FILES_A_CALL
        list(pool.map(read, chosen()))

    def check() -> str | None:
        bad = [path.name for path in chosen() if read(path) != min(sizes[path], SMALL_FILE_BYTES)]
        return f"{len(bad)} files differ in length from what they state, e.g. {bad[0]}" if bad else None

    drop()
    shares = [share for path in paths[:32] if (share := UncachedFile(path).cached_share()) is not None]
    kept = (
        "whether the page cache dropped them is unknown here"
        if not shares
        else "names and attributes may come from memory"
        if max(shares) < 0.02
        else "the page cache kept some of them: partly the speed of memory"
    )
    return Benchmark(
        name="storage_small_files",
        unit="1/s",
        work=float(_FILES_A_CALL),
        call=call,
        check=check,
        checked="lengths",
        who="first",
        before=drop,
        max_calls=1,
        labels={
            "size": int(sum(sizes.values()) / len(sizes)),
            "threads": THREADS,
            "backend": "file",
            "note": kept,
        },
    )


def _write_benchmark(path: Path, size: int) -> Benchmark:
    """Return the benchmark of writing like a checkpoint: one file, written MiB by MiB, then fsync."""
    blocks = [content(99, block, BLOCK) for block in range(size // BLOCK)]

    def call() -> None:
        with path.open("wb", buffering=0) as file:
            for block in blocks:
                file.write(block)
            os.fsync(file.fileno())

    def check() -> str | None:
        call()
        with path.open("rb") as file:
            wrong = sum(file.read(BLOCK) != block for block in blocks)
        return f"{wrong} of {len(blocks)} blocks are not what was written" if wrong else None

    return Benchmark(
        name="storage_sequential_write",
        unit="B/s",
        work=float(size),
        call=call,
        check=check,
        checked="every byte, read again",
        who="first",
        max_calls=1,
        labels={"size": size, "threads": 1, "backend": "file", "note": "until fsync has returned"},
    )
