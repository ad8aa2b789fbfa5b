"""Copy a folder to a disk of this node, verified, and continue where an interrupted copy stopped.

In: the folder of a data set or a pack, and a folder on a local disk. Out: a `StageResult`. Each file is copied under
another name, flushed to the disk, read again and compared with the checksum of what was read from the source, and gets
its name last; a copy with the size and time of its source is complete. Shards of a pack are compared with the pack's
own checksums too. A mark is written when all files are there. Raises InputError for a source that cannot be read or
changes, and OutputError for a disk that is full or cannot be written. Files that are only in the copy stay.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from flatout import units
from flatout.errors import InputError, OutputError, UsageError
from flatout.input_files import walk_with_links
from flatout.inside.protocol import partial_name
from flatout.packing.index import read_index
from flatout.probe.mounts import is_network, kind_of, read_mounts
from flatout.records.staging import StagedIndex, StageResult

MARK = ".flatout-staged.json"  # in the copy: it is complete
_LOCK = ".flatout-staging.lock"
_OWN = {MARK, _LOCK}
_BLOCK_BYTES = 1 << 20
_SPARE_BYTES = 64 << 20  # that stay free on the disk


class _File(NamedTuple):
    name: str
    num_bytes: int
    mtime_ns: int


def stage(
    source: Path,
    folder: Path,
    *,
    num_threads: int = 8,
    allows_network: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> StageResult:
    """Copy what is missing, and return what was copied."""
    _check_folders(source, folder, allows_network=allows_network)
    files = _files(source)
    _check_own(folder, files)
    checksums = _checksums_of_pack(source)
    with _locked(folder):
        missing = [file for file in files if not _is_there(folder, file)]
        _check_space(folder, sum(file.num_bytes for file in missing))
        (folder / MARK).unlink(missing_ok=True)
        with ThreadPoolExecutor(num_threads) as pool:
            copies = [pool.submit(_copy, source, folder, file, checksums.get(file.name)) for file in missing]
            try:
                for number, copy in enumerate(copies, start=1):
                    copy.result()
                    progress(number, len(copies))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        num_bytes = sum(file.num_bytes for file in files)
        mark = StagedIndex(source=str(source.absolute()), num_files=len(files), num_bytes=num_bytes)
        _write(folder / MARK, msgspec.json.encode(mark))
    return StageResult(
        source=str(source),
        folder=str(folder),
        num_files=len(files),
        num_bytes=num_bytes,
        num_copied=len(missing),
        copied_bytes=sum(file.num_bytes for file in missing),
        is_checked_by_pack=bool(checksums),
    )


def _check_folders(source: Path, folder: Path, *, allows_network: bool) -> None:
    if not source.is_dir():
        raise InputError(f"`{source}` must be a folder", hint="pass the folder of a data set or of a pack")
    inside, outside = folder.resolve(), source.resolve()
    if inside == outside or outside in inside.parents or inside in outside.parents:
        raise UsageError(f"one folder must not be within the other, but they are {source} and {folder}")
    kind = kind_of(folder.absolute(), read_mounts())
    if is_network(kind) and not allows_network:
        raise UsageError(
            f"the copy must be on a disk of this node, but {folder} is on {kind}", hint="pass a folder on a local disk"
        )


def _files(source: Path) -> list[_File]:
    """Return all files below the source, sorted by name."""
    files = []
    try:
        for parent, names in walk_with_links(source):
            for path in (parent / name for name in names if name not in _OWN):
                status = path.stat()
                if stat.S_ISREG(status.st_mode):
                    files.append(_File(str(path.relative_to(source)), status.st_size, status.st_mtime_ns))
    except OSError as error:
        raise InputError(f"`{error.filename}` cannot be read: {(error.strerror or str(error)).lower()}") from error
    if not files:
        raise InputError(f"`{source}` has no files to copy")
    return sorted(files)


def _checksums_of_pack(source: Path) -> dict[str, str]:
    """Return the checksums of the shards, by their names, if the source is a pack."""
    try:
        index = read_index(source)
    except InputError:  # another program's index.json
        return {}
    if index is None:
        return {}
    return {shard.shard: shard.sha256 for split in index.splits for shard in split.shards}


def _check_own(folder: Path, files: Sequence[_File]) -> None:
    """Raise OutputError if a file of another origin would be replaced: our own copies have the lock or the mark."""
    if any((folder / name).exists() for name in _OWN):
        return
    others = [file.name for file in files if os.path.lexists(folder / file.name) and not _is_there(folder, file)]
    if others:
        raise OutputError(
            f"`{folder}` is not a copy that Flatout made, and has other files of these names, `{others[0]}` among"
            f" {len(others)}: nothing is overwritten",
            hint="pass another folder",
        )


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait until no other process copies to the folder: jobs that start on one node may stage the same data set."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _not_written(folder, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        for partial in folder.rglob(partial_name("*")):
            partial.unlink(missing_ok=True)
        yield
    finally:
        os.close(descriptor)


def _is_there(folder: Path, file: _File) -> bool:
    try:
        status = os.stat(folder / file.name)
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns) == (file.num_bytes, file.mtime_ns)


def _check_space(folder: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if num_bytes and free < num_bytes + _SPARE_BYTES:
        raise OutputError(
            f"the files to copy have {units.num_bytes(num_bytes)}, but the disk of `{folder}` has"
            f" {units.num_bytes(free)} free",
            hint="pass a folder on a larger disk, or pack the data set with --resize-for",
        )


def _copy(source: Path, folder: Path, file: _File, expected: str | None) -> None:
    """Copy a file. Raise InputError if it cannot be read, changes or is damaged; else OutputError if it fails."""
    target = folder / file.name
    partial = target.with_name(partial_name(target.name))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        checksum = _copied(source / file.name, partial, file)
        if expected is not None and checksum != expected:
            raise InputError(
                f"{source / file.name} is not the shard that was packed: its checksum differs",
                hint=f"flatout data verify {source}",
            )
        if _checksum_on_disk(partial) != checksum:
            raise OutputError(f"{target} is not what was written to it: the disk may be faulty")
        os.utime(partial, ns=(file.mtime_ns, file.mtime_ns))
        partial.rename(target)
    except OSError as error:
        raise _not_written(target, error) from error
    finally:
        partial.unlink(missing_ok=True)


def _copied(path: Path, partial: Path, file: _File) -> str:
    """Copy the bytes to the disk, and return their checksum."""
    digest = hashlib.sha256()
    num_bytes = 0
    with open(partial, "wb") as target:
        for block in _blocks(path):
            digest.update(block)
            num_bytes += len(block)
            target.write(block)
        target.flush()
        os.fsync(target.fileno())
        os.posix_fadvise(target.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # what is read again is from the disk
    status = path.stat()
    if (num_bytes, status.st_mtime_ns) != (file.num_bytes, file.mtime_ns):
        raise InputError(f"{path} changed while it was copied", hint="run the same command again")
    return digest.hexdigest()


def _blocks(path: Path) -> Iterator[bytes]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while block := os.read(descriptor, _BLOCK_BYTES):
                yield block
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from error


def _checksum_on_disk(path: Path) -> str:
    digest = hashlib.sha256()
    for block in _blocks(path):
        digest.update(block)
    return digest.hexdigest()


def _write(path: Path, data: bytes) -> None:
    partial = path.with_name(partial_name(path.name))
    partial.write_bytes(data)
    partial.rename(path)


def _not_written(path: Path, error: OSError) -> OutputError:
    return OutputError(
        f"`{path}` cannot be written: {(error.strerror or str(error)).lower()}",
        hint="complete files are kept; run the same command again",
    )
