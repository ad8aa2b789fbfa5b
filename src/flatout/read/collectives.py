"""Convert the arguments of a collective to a `CollectiveArgs`, whatever types the profiler wrote.

In: `args` of a kernel, of `record_param_comms` or of a collective on the CPU. Out: `CollectiveArgs`, with None for
absent or truncated values.
"""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec

from flatout.read.schema import Arguments
from flatout.records.events import CollectiveArgs

# For these operations, PyTorch records the root as "Rank"; for all others, "Rank" is the recording rank.
_FROM_ROOT = {"broadcast", "_broadcast_oop", "scatter"}
_TO_ROOT = {"reduce", "_reduce_oop", "gather"}
# Collectives on the CPU whose input is as large as their output. Of an all-gather, only one rank's share is recorded.
_ON_HOST = re.compile(r"^(?:gloo|mpi):(all_?reduce|broadcast|reduce)$")
# Names of C++ types, as operators record their inputs -> names of types, as NCCL's calls are recorded.
_TYPES = {
    "float": "Float",
    "double": "Double",
    "c10::Half": "Half",
    "c10::BFloat16": "BFloat16",
    "long int": "Long",
    "long": "Long",
    "int": "Int",
    "short": "Short",
    "short int": "Short",
    "signed char": "Char",
    "unsigned char": "Byte",
    "bool": "Bool",
}


def collective_args(a: Arguments) -> CollectiveArgs:
    operation = str(a.operation)  # a profiler may write a list or an object
    return CollectiveArgs(
        operation=operation,
        group_name=_text(a.group_name),
        group_description=_text(a.group_description),
        group_ranks=as_ranks(a.group_ranks),
        group_size=as_integer(a.group_size),
        dtype=_text(a.dtype),
        num_input_elements=as_integer(a.num_input_elements),
        num_output_elements=as_integer(a.num_output_elements),
        src_rank=as_integer(a.recorded_rank if a.src_rank is None and operation in _FROM_ROOT else a.src_rank),
        dst_rank=as_integer(a.recorded_rank if a.dst_rank is None and operation in _TO_ROOT else a.dst_rank),
    )


def host_collective_args(name: str, a: Arguments) -> CollectiveArgs | None:
    """Return what is recorded of a collective on the CPU, by its name and the shapes and types of its inputs.

    Return None for anything else, and where the shapes were not recorded.
    """
    collective = _ON_HOST.match(name)
    if collective is None or a.operation is not None:
        return None
    try:
        shapes = msgspec.json.decode(a.input_dims, type=list[list[int]])
        types = msgspec.json.decode(a.input_types, type=list[str])
    except msgspec.DecodeError:  # lists of tensors are nested more deeply
        return None
    if not shapes or set(types) - _TYPES.keys() or len(set(types)) != 1:
        return None
    num_elements = sum(math.prod(shape) for shape in shapes)
    return CollectiveArgs(
        operation=collective[1],
        dtype=_TYPES[types[0]],
        num_input_elements=num_elements,
        num_output_elements=num_elements,
    )


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def as_integer(value: Any) -> int | None:
    """Convert a number, or a number written as text: "7", "007" or "0x7f1a"; None if it is neither."""
    try:
        return int(value, 16) if isinstance(value, str) and value.startswith("0x") else int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def as_ranks(value: Any) -> tuple[int, ...] | None:
    """Convert `[0, 1]` or the text "[0, 1]"; None if empty, or truncated by the profiler ("[0, 1, ...]")."""
    if isinstance(value, str):
        value = [] if "..." in value else re.findall(r"-?\d+", value)
    if not isinstance(value, list) or not value:
        return None
    ranks = [as_integer(rank) for rank in value]
    return None if None in ranks else tuple(rank for rank in ranks if rank is not None)
