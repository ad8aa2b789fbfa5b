"""Make torch.save write a file that is either complete or absent: written under another name, flushed to disk, renamed.

In: FLATOUT_SAFE_SAVE=1, and the script's calls of torch.save with a path. Out: `NAME`, `NAME.previous` (the previous
checkpoint) and `NAME.checksums`, the possible sizes and CRC-32s of the two files, from which
`checkpoint.scripted.latest_good` finds the checkpoint to resume from. The saved data and raised errors stay the same.
After an error, e.g. on a full disk, the previous file still exists, whereas torch.save alone leaves a torn file. Writes
of the script to an open file are not changed.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import threading
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

import torch
import torch.serialization

from flatout.inside.log import LOG
from flatout.inside.protocol import File, Variable

_BLOCK = 8 << 20


def save_safely(environment: Mapping[str, str] = os.environ) -> Callable[[], None] | None:
    """Hook torch.save if FLATOUT_SAFE_SAVE is set; return a function that removes the hook."""
    if environment.get(Variable.SAFE_SAVE) != "1":
        return None
    original = torch.serialization.save

    @wraps(original)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        path = _plain_path(f)
        if path is None:
            return original(obj, f, *args, **kwargs)
        # Use the same name in another folder, because torch writes the name into the file.
        folder = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}.{threading.get_ident()}.tmp")
        partial = folder / path.name
        try:
            _remove_interrupted(path)
            folder.mkdir(exist_ok=True)
            result = original(obj, _like(f, partial), *args, **kwargs)
            checksum = _flush_to_disk(partial)
            _keep_previous(path, checksum)
            os.replace(partial, path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        _sync_folder(path.parent)
        return result

    torch.serialization.save = save
    if torch.save is original:
        torch.save = save

    def undo() -> None:
        torch.serialization.save = original
        if torch.save is save:
            torch.save = original

    return undo


def _plain_path(f: Any) -> Path | None:
    """Return the file to write, or its target if `f` is a link; None for anything else, e.g. open files, devices."""
    if not isinstance(f, (str, os.PathLike)):
        return None
    try:
        path = Path(os.path.realpath(f))
        return path if path.is_file() or not path.exists() else None
    except (OSError, ValueError):
        return None


def _like(f: Any, path: Path) -> Any:
    return str(path) if isinstance(f, str) else path


def _flush_to_disk(path: Path) -> dict[str, int]:
    """Flush a file and return its size and checksum."""
    num_bytes, checksum = 0, 0
    with path.open("rb+", buffering=0) as file:
        while block := file.read(_BLOCK):
            num_bytes += len(block)
            checksum = zlib.crc32(block, checksum)
        os.fsync(file.fileno())
    return {"bytes": num_bytes, "crc32": checksum}


def _keep_previous(path: Path, checksum: dict[str, int]) -> None:
    """Write the new file's checksum next to the old file's, and give the old file its second name.

    The checkpoint's name always exists: the old file keeps it until the new file takes it. A failure here is logged,
    and the script's file is still written.
    """
    try:
        checksums = path.with_name(File.CHECKSUMS.of(path.name))
        files = [checksum]
        if path.exists() and checksums.is_file():  # to open a pipe would wait forever
            with suppress(OSError, ValueError, KeyError, TypeError):
                # The old file can be either of two files, because a save can be interrupted before the newer file gets
                # its name.
                files += json.loads(checksums.read_text())["files"][:2]
        partial = checksums.with_name(f"{checksums.name}.{os.getpid()}.tmp")
        with partial.open("w") as file:
            json.dump({"files": files}, file)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            _give_second_name(path, path.with_name(File.PREVIOUS.of(path.name)))
        os.replace(partial, checksums)
    except OSError:
        LOG.error("keeping the previous checkpoint")


def _remove_interrupted(path: Path) -> None:
    """Remove files that killed processes on this host have left behind."""
    start = f".{path.name}.{os.uname().nodename}."
    for folder in path.parent.glob(f"{glob.escape(start)}*.tmp"):
        pid = folder.name.removeprefix(start).split(".")[0]
        if pid.isdecimal() and not Path("/proc", pid).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _give_second_name(path: Path, previous: Path) -> None:
    second = previous.with_name(f"{previous.name}.{os.getpid()}.tmp")
    with suppress(FileNotFoundError):
        second.unlink()
    os.link(path, second)
    os.replace(second, previous)


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
