"""Find the complete copy of a checkpoint that a script writes itself, with torch.save, to one file.

In: the path of the file. `inside.checkpoints.safe_save` keeps the previous file as `NAME.previous`, and the sizes and
checksums of both in `NAME.checksums`. Out: the path with a complete file, restored from the previous one if the last is
truncated. Nothing is unpickled and torch is not needed. torch.save writes a zip archive, whose parts have their own
checksums, so a file that was written without Flatout can be checked too.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path

from flatout.inside.protocol import File

_BLOCK = 8 << 20
_METHODS = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}  # other decompressors raise other errors
_MAX_CHECKSUMS_BYTES = 1 << 20  # a file of three sizes and checksums has a few hundred


def latest_good(path: Path) -> tuple[Path | None, str]:
    """Return the file to resume from, and why it is not the last file written ("" if it is).

    Return None if all are damaged.
    """
    previous = path.with_name(File.PREVIOUS.of(path.name))
    damage = damage_of(path)
    if damage is None:
        return path, ""
    damage_of_previous = damage_of(previous)
    if damage_of_previous is not None:
        return None, f"{path.name} {damage}, and {previous.name} {damage_of_previous}"
    reason = f"{path.name} {damage}: the one before it is used"
    try:
        if path.exists():
            os.replace(path, path.with_name(path.name + ".damaged"))
        _link_or_copy(previous, path)
    except OSError as error:
        return previous, f"{reason}, as {previous.name}, since it cannot be put in its place ({error.strerror})"
    return path, reason


def damage_of(path: Path) -> str | None:
    """Return the damage of a file written by torch.save, as text that follows its name; None if it is complete."""
    try:
        if path.stat().st_size == 0:
            return "is empty"
        known = _checksums(path)
        if known and _measure(path) in known:
            return None
        # It may have been rewritten since, without Flatout, and be complete. If it is a zip archive, it can still be
        # checked.
        if not zipfile.is_zipfile(path):
            return (
                "is not what was written: its checksum differs"
                if known
                else "is truncated, or not a file of torch.save"
            )
        with zipfile.ZipFile(path) as archive:
            if not archive.namelist():
                return "is an empty archive"
            if any(part.compress_type not in _METHODS for part in archive.infolist()):
                return "is damaged: parts of it are compressed by a method that torch.load cannot read"
            damaged = archive.testzip()
        return None if damaged is None else f"is damaged: the checksum of {damaged} in it differs"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, RuntimeError, zlib.error):
        return "is torn"


def _checksums(path: Path) -> list[list[int]]:
    """Return the sizes and CRC-32s that this file may have; empty if none were recorded."""
    checksums = path.with_name(File.CHECKSUMS.of(path.name.removesuffix(File.PREVIOUS.after)))
    if not checksums.is_file():  # to open a pipe would wait forever
        return []
    with suppress(OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        with checksums.open("rb") as file:
            noted = json.loads(file.read(_MAX_CHECKSUMS_BYTES))["files"]
        return [[int(one["bytes"]), int(one["crc32"])] for one in noted]
    return []


def _measure(path: Path) -> list[int]:
    num_bytes, checksum = 0, 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            num_bytes += len(block)
            checksum = zlib.crc32(block, checksum)
    return [num_bytes, checksum]


def _link_or_copy(source: Path, target: Path) -> None:
    """Give the file a second name. The first name stays, in case the new file is damaged again."""
    try:
        os.link(source, target)
    except OSError:
        partial = target.with_name(f"{target.name}.{os.getpid()}.tmp")
        with source.open("rb") as read, partial.open("wb") as write:
            while block := read.read(_BLOCK):
                write.write(block)
            write.flush()
            os.fsync(write.fileno())
        os.replace(partial, target)
