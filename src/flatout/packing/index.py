"""Write and read the files that say what is where in a pack.

`index.json`          the pack as a whole, a `PackIndex`; written last, so a pack that has it is complete
`samples.jsonl`       one `PackedSample` a line, in the order of the source
`lookup.bin`          for `flatout run --packed`: where the content of each file is, see `inside.packed_reads.lookup`
`NAME.wids.json`      the shards of a split, as the library webdataset's `wids` reads them
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from flatout import __version__
from flatout.errors import InputError
from flatout.input_files import decode_json, read_bytes, read_lines
from flatout.inside.protocol import PACK_INDEX, PACK_LOOKUP, PACK_LOOKUP_ROW, PACK_SAMPLES
from flatout.packing.shard import write_whole
from flatout.records.packing import PackedSample, PackIndex

SCHEMA = "flatout/pack"
VERSION = 1
_NAME_BYTES = 16
_MAX_INDEX_BYTES = 1 << 28


class _Head(msgspec.Struct):
    schema: str
    version: int


def write_index(folder: Path, index: PackIndex, samples: Sequence[PackedSample]) -> None:
    """Write all files; `samples` are in the order of the source."""
    write_whole(folder / PACK_SAMPLES, b"".join(msgspec.json.encode(sample) + b"\n" for sample in samples))
    write_whole(folder / PACK_LOOKUP, _lookup(index, samples))
    for split in index.splits:
        shards = [
            {"url": shard.shard, "nsamples": shard.num_samples, "filesize": shard.num_bytes} for shard in split.shards
        ]
        content = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "name": split.name, "shardlist": shards}
        write_whole(folder / f"{split.name}.wids.json", msgspec.json.format(msgspec.json.encode(content)))
    envelope = {"schema": SCHEMA, "version": VERSION, "tool_version": __version__, **msgspec.to_builtins(index)}
    write_whole(folder / PACK_INDEX, msgspec.json.format(msgspec.json.encode(envelope)))


def read_index(folder: Path) -> PackIndex | None:
    """Return the index of a complete pack; None if there is none. Raise InputError for one that cannot be read."""
    path = folder / PACK_INDEX
    try:
        data = read_bytes(path, max_bytes=_MAX_INDEX_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}") from error
    try:
        head = decode_json(data, _Head)
        if head.schema != SCHEMA or head.version != VERSION:
            raise InputError(f"`{path}` must have schema {SCHEMA}, version {VERSION}, but is {head.schema}")
        return decode_json(data, PackIndex)
    except msgspec.DecodeError as error:
        raise InputError(f"`{path}` is not the index of a pack: {error}") from error


def required_index(folder: Path) -> PackIndex:
    """Return the index of a complete pack. Raise InputError if there is none."""
    index = read_index(folder)
    if index is None:
        raise InputError(f"`{folder}` is not a complete pack", hint="pack a data set: flatout data pack SRC DST")
    return index


def read_samples(folder: Path) -> Iterator[PackedSample]:
    """Yield the samples in the order of the source. Raise InputError for a line that is not a sample."""
    path = folder / PACK_SAMPLES
    decoder = msgspec.json.Decoder(PackedSample)
    try:
        for number, line in enumerate(read_lines(path), start=1):
            try:
                yield decoder.decode(line)
            except msgspec.DecodeError as error:
                raise InputError(f"{path}, line {number}: it is not a sample: {error}") from error
    except OSError as error:
        raise InputError(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}") from error


def _lookup(index: PackIndex, samples: Sequence[PackedSample]) -> bytes:
    """Return the rows of the samples, sorted by the hash of their name."""
    numbers: dict[str, int] = {}
    for split in index.splits:
        for shard in split.shards:
            numbers[shard.shard] = len(numbers)
    row = struct.Struct(PACK_LOOKUP_ROW)
    rows = [row.pack(_hash(sample.name), numbers[sample.shard], sample.offset, sample.num_bytes) for sample in samples]
    return b"".join(sorted(rows))


def _hash(name: str) -> bytes:
    return hashlib.sha256(os.fsencode(name)).digest()[:_NAME_BYTES]
