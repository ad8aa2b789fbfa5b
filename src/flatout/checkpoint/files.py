"""Files that are complete or absent: written under another name, flushed (fsync), renamed; each with size and CRC-32.

zlib's CRC-32 finds every flipped bit and all but one in 4 billion other damages, and is faster than blake2b
(`benchmarks/checkpoint_stall.py` gives both rates); it does not guard against someone who alters a file on purpose.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from flatout.checkpoint.problems import DamagedError

BLOCK = 8 << 20


def write_file(path: Path, parts: Iterable[Any]) -> dict[str, int]:
    """Write buffers, one after the other; the file is on the disk before it has its name. Gives its size and CRC-32."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    num_bytes, checksum = 0, 0
    try:
        with partial.open("wb", buffering=0) as file:
            for part in parts:
                whole = memoryview(part).cast("B")
                for begin in range(0, len(whole), BLOCK):
                    block = whole[begin : begin + BLOCK]
                    checksum = zlib.crc32(block, checksum)
                    while len(block):
                        block = block[file.write(block) :]
                num_bytes += len(whole)
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            partial.unlink()
        raise
    return {"bytes": num_bytes, "crc32": checksum}


def write_json(path: Path, value: dict[str, Any]) -> dict[str, int]:
    """Write JSON in the same way, with its own checksum at the end.

    In one go and without indentation, which Python's encoder in C does: it is the training's interpreter.
    """
    text = _text(value)
    return write_file(path, [text[:-1] + b',"checksum":%d}\n' % zlib.crc32(text)])


def read_json(path: Path) -> dict[str, Any]:
    """Return what `write_json` wrote; raises DamagedError."""
    try:
        value = json.loads(path.read_bytes())
        checksum = value.pop("checksum")
    except FileNotFoundError as error:
        raise DamagedError(f"{path.name} is missing") from error
    except OSError as error:
        raise DamagedError(f"{path.name}: {error.strerror}") from error
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise DamagedError(f"{path.name} is not complete JSON") from error
    if checksum != zlib.crc32(_text(value)):
        raise DamagedError(f"{path.name}: its checksum differs")
    return value  # type: ignore[no-any-return]


def check_file(path: Path, expected: dict[str, int]) -> None:
    """Raise DamagedError unless the file has this size and CRC-32."""
    try:
        num_bytes, checksum = path.stat().st_size, 0
        if num_bytes == expected["bytes"]:
            with path.open("rb", buffering=0) as file:
                while block := file.read(BLOCK):
                    checksum = zlib.crc32(block, checksum)
    except FileNotFoundError as error:
        raise DamagedError(f"{path.name} is missing") from error
    except OSError as error:
        raise DamagedError(f"{path.name}: {error.strerror}") from error
    if num_bytes != expected["bytes"]:
        raise DamagedError(f"{path.name} is torn: {num_bytes} of {expected['bytes']} bytes")
    if checksum != expected["crc32"]:
        raise DamagedError(f"{path.name}: its checksum differs, so it was altered after it had been written")


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk; a file system that cannot is left to itself."""
    with suppress(OSError):
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def _text(value: dict[str, Any]) -> bytes:
    """The same again for what was read from it."""
    return json.dumps(value, separators=(",", ":")).encode()
