"""Write and read tensors in the safetensors format with only the standard library and torch.

A file is 8 bytes of header length (little-endian), a JSON header padded with spaces to a multiple of 8, and the bytes
of all tensors, one after the other without gaps. In: names, dtypes and shapes. Out: a `FileLayout`, which gives the
place of each tensor in the data, so that a snapshot can be copied straight to it; and views of a file. Nothing in such
a file can be executed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch

from flatout.checkpoint.problems import DamagedError

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
_LENGTH_BYTES = 8

# The format's name of each dtype; those that this torch does not have are omitted.
DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, attribute)
    for name, attribute in (
        ("F64", "float64"),
        ("F32", "float32"),
        ("F16", "float16"),
        ("BF16", "bfloat16"),
        ("F8_E4M3", "float8_e4m3fn"),
        ("F8_E5M2", "float8_e5m2"),
        ("I64", "int64"),
        ("I32", "int32"),
        ("I16", "int16"),
        ("I8", "int8"),
        ("U64", "uint64"),
        ("U32", "uint32"),
        ("U16", "uint16"),
        ("U8", "uint8"),
        ("BOOL", "bool"),
    )
    if hasattr(torch, attribute)
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}
# Complex numbers are written as pairs of real ones.
COMPLEX = {torch.complex64: torch.float32, torch.complex128: torch.float64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The place of one tensor in the data of a file, in bytes."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLayout:
    places: dict[str, Place]
    num_bytes: int  # size of the data
    header: bytes  # starts with its own length


def lay_out(tensors: Mapping[str, tuple[torch.dtype, Sequence[int]]], metadata: Mapping[str, str]) -> FileLayout:
    """Assign a place to each tensor, widest dtypes first, so that each begins at a multiple of its element size."""
    order = sorted(tensors.items(), key=lambda item: (-item[1][0].itemsize, item[0]))
    places, begin = {}, 0
    for name, (dtype, shape) in order:
        end = begin + dtype.itemsize * prod(shape)
        places[name] = Place(dtype=NAMES[dtype], shape=tuple(shape), begin=begin, end=end)
        begin = end
    described: dict[str, object] = {"__metadata__": dict(metadata)}
    for name, place in places.items():
        described[name] = {"dtype": place.dtype, "shape": place.shape, "data_offsets": (place.begin, place.end)}
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return FileLayout(places=places, num_bytes=begin, header=len(text).to_bytes(_LENGTH_BYTES, "little") + text)


def read_header(path: Path) -> tuple[dict[str, Place], int]:
    """Return the places in a file, and the offset at which its data begins. Raise DamagedError for a bad header."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        num_bytes = path.stat().st_size - _LENGTH_BYTES - length
        if length > MAX_HEADER_BYTES or num_bytes < 0:
            raise DamagedError(f"{path.name} is not a safetensors file")
        text = file.read(length)
    try:
        described = json.loads(text)
        places = {name: _place(given) for name, given in described.items() if name != "__metadata__"}
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedError(f"{path.name}: its header cannot be read") from error
    end = 0
    for place in sorted(places.values(), key=lambda place: (place.begin, place.end)):
        if place.begin != end or place.end - place.begin != DTYPES[place.dtype].itemsize * prod(place.shape):
            raise DamagedError(f"{path.name}: its tensors do not fill its data")
        end = place.end
    if end != num_bytes:
        raise DamagedError(f"{path.name}: {num_bytes} bytes of data, its header says {end}")
    return places, _LENGTH_BYTES + length


def view(data: Any, place: Place, offset: int = 0) -> torch.Tensor:
    """Return the tensor at this place of a buffer whose data begins at `offset`; it shares the buffer's memory."""
    dtype = DTYPES[place.dtype]
    count = prod(place.shape)
    if count == 0:
        return torch.empty(place.shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype, count=count, offset=offset + place.begin).view(place.shape)


def _place(given: Any) -> Place:
    begin, end = (int(number) for number in given["data_offsets"])
    shape = tuple(int(size) for size in given["shape"])
    if given["dtype"] not in DTYPES or begin < 0 or any(size < 0 for size in shape):
        raise ValueError(given)
    return Place(dtype=given["dtype"], shape=shape, begin=begin, end=end)
