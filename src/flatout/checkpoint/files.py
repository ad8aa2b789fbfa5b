"""Write files that are complete or absent (temporary name, fsync, rename), and check them by size and CRC-32.

zlib's CRC-32 detects every flipped bit and all but one in 4 billion other kinds of damage, and is faster than blake2b
(`benchmarks/checkpoint_stall.py` measures both); it does not protect against deliberate changes.
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
    """Write buffers to a file that gets its name only once it is on disk; return its size and CRC-32."""
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
    """Write JSON as `write_file` does, with its checksum as the last key; return the file's size and CRC-32.

    It is encoded in one call and without indentation, so that Python's C encoder is used: Python code would delay the
    training, which runs in the same interpreter.
    """
    text = _text(value)
    return write_file(path, [text[:-1] + b',"checksum":%d}\n' % zlib.crc32(text)])


def read_json(path: Path) -> dict[str, Any]:
    """Return the value that `write_json` wrote. Raises DamagedError."""
    try:
        if path.exists() and not path.is_file():  # to open a pipe would wait forever
            raise DamagedError(f"{path.name} is not a file")
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
        if not path.is_file():
            raise DamagedError(f"{path.name} is not a file")
        if num_bytes == expected["bytes"]:
            with path.open("rb", buffering=0) as file:
                while block := file.read(BLOCK):
                    checksum = zlib.crc32(block, checksum)
    except FileNotFoundError as error:
        raise DamagedError(f"{path.name} is missing") from error
    except OSError as error:
        raise DamagedError(f"{path.name}: {error.strerror}") from error
    if num_bytes != expected["bytes"]:
        raise DamagedError(f"{path.name} is truncated: {num_bytes} of {expected['bytes']} bytes")
    if checksum != expected["crc32"]:
        raise DamagedError(f"{path.name}: its checksum differs, so it was changed after it had been written")


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk; errors of file systems that do not support this are ignored."""
    with suppress(OSError):
        file = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def _text(value: dict[str, Any]) -> bytes:
    """Encode a value so that decoding and encoding it again returns the same bytes."""
    return json.dumps(value, separators=(",", ":")).encode()
