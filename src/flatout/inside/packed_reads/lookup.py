"""Find and read the content of a file in the shards of a pack.

In: the folder of a pack, and the folder of the data set as the script names it. Out: the bytes of a file; None for a
file that is not in the pack, or that cannot be read there. The table of places is mapped into memory, so processes
share it; a lookup is a binary search by the hash of the file's name.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
from pathlib import Path

from flatout.inside.protocol import PACK_INDEX, PACK_LOOKUP, PACK_LOOKUP_ROW, PACK_SAMPLES

_ROW = struct.Struct(PACK_LOOKUP_ROW)
_NAME_BYTES = 16


class Pack:
    """A pack, and the data set that is read from it."""

    def __init__(self, folder: Path, source: str) -> None:
        index = json.loads((folder / PACK_INDEX).read_text(encoding="utf-8"))
        self.source = os.path.abspath(source)
        self.kind = index["kind"]
        self.classes: list[str] = index["classes"]
        self._folder = folder
        self._prefix = self.source.rstrip("/") + "/"
        self._shards: list[str] = [shard["shard"] for split in index["splits"] for shard in split["shards"]]
        self._descriptors: dict[int, int] = {}
        with open(folder / PACK_LOOKUP, "rb") as file:
            self._rows = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._num_rows = len(self._rows) // _ROW.size

    def covers(self, path: str) -> bool:
        """Whether a file of this absolute path is below the data set's folder."""
        return path.startswith(self._prefix)

    def read(self, path: str) -> bytes | None:
        """Return the packed content of a file, by its absolute path."""
        place = self._place(os.fsencode(path[len(self._prefix) :]))
        if place is None:
            return None
        number, offset, size = place
        try:
            data = os.pread(self._descriptor(number), size, offset)
        except OSError:  # the script then opens the file itself
            return None
        return data if len(data) == size else None

    def names(self) -> list[str]:
        """Return the names of all files, in the order of the source."""
        with open(self._folder / PACK_SAMPLES, encoding="utf-8") as file:
            return [json.loads(line)["name"] for line in file]

    def _place(self, name: bytes) -> tuple[int, int, int] | None:
        key = hashlib.sha256(name).digest()[:_NAME_BYTES]
        low, high = 0, self._num_rows
        while low < high:
            middle = (low + high) // 2
            if self._key(middle) < key:
                low = middle + 1
            else:
                high = middle
        if low == self._num_rows or self._key(low) != key:
            return None
        _, number, offset, size = _ROW.unpack_from(self._rows, low * _ROW.size)
        return number, offset, size

    def _key(self, row: int) -> bytes:
        start = row * _ROW.size
        return self._rows[start : start + _NAME_BYTES]

    def _descriptor(self, number: int) -> int:
        """Return the open shard. Reads name their offset, so processes that inherit it do not disturb each other."""
        descriptor = self._descriptors.get(number)
        if descriptor is None:
            flags = os.O_RDONLY | os.O_CLOEXEC
            descriptor = self._descriptors[number] = os.open(self._folder / self._shards[number], flags)
        return descriptor
