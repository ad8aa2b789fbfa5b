"""A process that reads records at given offsets: `storage` starts several, as one Python process issues too few reads.

Arguments: the files, each prefixed with `d` (past the page cache) or `c`. On standard input: a size and a count as two
32-bit numbers, then for each record the 32-bit number of its file and a 64-bit offset. A byte on standard output
reports that all records were read; the process ends if a read is short.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys

HEAD, PLACE = struct.Struct("<II"), struct.Struct("<IQ")


def message(size: int, places: list[tuple[int, int]]) -> bytes:
    return HEAD.pack(size, len(places)) + b"".join(PLACE.pack(*place) for place in places)


def main(files: list[str]) -> int:
    fds = [os.open(name[1:], os.O_RDONLY | (os.O_DIRECT if name[0] == "d" else 0)) for name in files]
    told = sys.stdin.buffer
    buffers: dict[int, mmap.mmap] = {}
    while head := told.read(HEAD.size):
        size, count = HEAD.unpack(head)
        buffer = buffers.setdefault(size, mmap.mmap(-1, size))
        for file, offset in PLACE.iter_unpack(told.read(count * PLACE.size)):
            if os.preadv(fds[file], [buffer], offset) < size:
                return 1
        os.write(1, b".")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
