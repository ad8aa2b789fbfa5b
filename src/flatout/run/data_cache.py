"""Prepare a node-local cache of the files that a job reads, and read how it was used.

In: `--data-cache DIR:SIZE` and the folders whose files it caches, by default the network file systems that are mounted
here. Out: the variable that the job's processes read, and a folder that is ready: copies of earlier boots and what
killed writers left are removed, and the bytes of the others are counted. Raises UsageError for a folder that cannot be
a cache.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from flatout.errors import InputError, UsageError
from flatout.input_files import decode_json, read_bytes
from flatout.inside.protocol import CACHE_COPIES, CACHE_COUNTS, CACHE_MARK, CACHE_USED
from flatout.probe.mounts import MountPoint, boot_id, is_network, kind_of, read_mounts
from flatout.records.data_cache import CacheCounts, CacheUse
from flatout.units import num_bytes

_MAX_COUNTS_BYTES = 1 << 16
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]i?)?B?", re.IGNORECASE)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRequest:
    """The values of `--data-cache` and `--data-from`."""

    folder: Path
    max_bytes: int
    sources: tuple[Path, ...] = ()  # (): all network file systems


def parse_cache(text: str) -> CacheRequest:
    """Read `DIR:SIZE`, such as `/local/cache:200GiB`. Raise UsageError for anything else."""
    folder, _, size = text.rpartition(":")
    match = _SIZE.fullmatch(size)
    max_bytes = int(float(match[1]) * _UNITS[(match[2] or "").lower()]) if match else 0
    if not folder or max_bytes <= 0:
        raise UsageError(
            f"`--data-cache` must be a folder and a size, but got `{text}`",
            hint="e.g. --data-cache /local/cache:200GiB",
        )
    return CacheRequest(folder=Path(folder), max_bytes=max_bytes)


def requested_cache(cache: str | None, sources: Sequence[Path]) -> CacheRequest | None:
    """Return what `--data-cache` and `--data-from` request; None without a cache."""
    if cache is not None:
        return replace(parse_cache(cache), sources=tuple(sources))
    if sources:
        raise UsageError("`--data-from` needs a cache, but there is none", hint="add --data-cache DIR:SIZE")
    return None


def cache_setting(request: CacheRequest, mounts: Sequence[MountPoint] | None = None) -> str:
    """Prepare the folder, and return the setting of the job's processes. Raise UsageError if it cannot be a cache."""
    known = mounts if mounts is not None else read_mounts()
    folder = Path(os.path.abspath(request.folder))
    kind = kind_of(folder, known)
    if is_network(kind):
        raise UsageError(
            f"`--data-cache` must be on a disk of this node, but {folder} is on {kind}",
            hint="pass a folder on a local disk",
        )
    sources = _sources(request.sources, known)
    if any(folder == source or source in folder.parents for source in sources):
        raise UsageError(f"`--data-cache` must not be within the files that it caches, but {folder} is")
    _open_folder(folder)
    _tidy(folder)
    setting = {"folder": str(folder), "max_bytes": request.max_bytes, "sources": [str(source) for source in sources]}
    return json.dumps(setting)


def cache_note(setting: str) -> str:
    """Say what is cached, when the job starts."""
    content = json.loads(setting)
    sources = ", ".join(content["sources"])
    return f"files of {sources} are cached in {content['folder']}, up to {num_bytes(content['max_bytes'])}"


def _sources(given: Sequence[Path], mounts: Sequence[MountPoint]) -> list[Path]:
    if given:
        missing = next((source for source in given if not source.is_dir()), None)
        if missing is not None:
            raise UsageError(f"`--data-from` must be a folder, but {missing} is not")
        return [Path(os.path.abspath(source)) for source in given]
    network = [Path(mount.folder) for mount in mounts if is_network(mount.kind)]
    if not network:
        raise UsageError(
            "`--data-cache` caches network file systems, but none is mounted here",
            hint="name the folder of the data: --data-from DIR",
        )
    return network


def _open_folder(folder: Path) -> None:
    """Create the folder, or take one that is already a cache."""
    mark = folder / CACHE_MARK
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not mark.exists():
            if any(folder.iterdir()):
                raise UsageError(
                    f"`--data-cache` must be a new folder or a cache, but {folder} has other files",
                    hint="pass a new folder",
                )
            mark.touch()
    except OSError as error:
        raise UsageError(
            f"`--data-cache` cannot be written: {folder}: {(error.strerror or str(error)).lower()}"
        ) from error


def _tidy(folder: Path) -> None:
    """Remove copies of earlier boots, incomplete copies and old counts, then count the bytes of the others."""
    boot = boot_id()
    copies = folder / CACHE_COPIES
    for of_boot in copies.iterdir() if copies.is_dir() else ():
        if of_boot.name != boot:
            shutil.rmtree(of_boot, ignore_errors=True)
    (copies / boot).mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(copies / boot / CACHE_USED, "a+b", opener=lambda path, flags: os.open(path, flags, 0o600)) as used:
        fcntl.flock(used, fcntl.LOCK_EX)
        num_used = sum(_bytes_or_remove(path) for path in (copies / boot).glob("*/*"))
        used.truncate(0)
        used.write(b"%-32d" % num_used)


def _bytes_or_remove(path: Path) -> int:
    """Return the bytes of a copy, or of one that is being written; remove what a killed process has left."""
    try:
        if path.name.startswith(".") and not _is_being_written(path):
            path.unlink()
            return 0
        return path.stat().st_size
    except OSError:
        return 0


def _is_being_written(path: Path) -> bool:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def read_cache_use(folder: Path) -> CacheUse:
    """Return the copies in a cache, and how often they were read. Raise InputError if the folder is not a cache."""
    if not (folder / CACHE_MARK).is_file():
        raise InputError(f"`{folder}` is not a data cache", hint="pass the folder of `flatout run --data-cache`")
    copies = [path for path in (folder / CACHE_COPIES / boot_id()).glob("*/*") if not path.name.startswith(".")]
    counts, problems = [], []
    for path in sorted((folder / CACHE_COUNTS).glob("*.json")):
        try:
            counts.append(decode_json(read_bytes(path, max_bytes=_MAX_COUNTS_BYTES), type=CacheCounts))
        except (OSError, msgspec.DecodeError) as error:
            problems.append(f"{path.name} cannot be read: {error}")
    names = CacheCounts.__struct_fields__
    return CacheUse(
        folder=str(folder),
        num_copies=len(copies),
        copied_bytes=sum(path.stat().st_size for path in copies),
        num_processes=len(counts),
        counts=CacheCounts(**{name: sum(getattr(each, name) for each in counts) for name in names}),
        problems=tuple(problems),
    )
