"""Define the JSON events of a trace as typed structs, and the names that profilers gave to their categories.

Out: the types that `columns` decodes into, and `KindOfCategory`. Only the fields that an analysis needs are declared;
msgspec skips all others, which are most of a file, without creating objects for them.
"""

from __future__ import annotations

import functools
import operator
from decimal import Decimal, DecimalException
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.records.events import NULL, Kind

# Raised by decoding if the text is not JSON, or types differ from those declared.
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, DecimalException)

# Kinds used only while reading; `table` resolves them by name, once per distinct name.
SKIPPED = 255
OPERATOR = 201  # `Operator` and `cpu_op`: the profilers of 2021 wrote annotations under the same category
MTIA_DEVICE = 202  # `mtia_ccp_events`: work and annotations of the device share the category


# Instead of None: with `Raw | None`, msgspec 0.22 refuses all but null, and the tolerant decoder, which is slow, reads.
NOTHING = msgspec.Raw()


class Arguments(
    msgspec.Struct,
    frozen=True,
    gc=False,
    rename={
        "external_id": "External id",
        "external_id_2021": "external id",
        "num_bytes": "bytes",
        "input_dims": "Input Dims",
        "input_types": "Input type",
        "operation": "Collective name",
        "group_name": "Process Group Name",
        "group_description": "Process Group Description",
        "group_ranks": "Process Group Ranks",
        "group_size": "Group size",
        "num_input_elements": "In msg nelems",
        "num_output_elements": "Out msg nelems",
        "src_rank": "Src Rank",
        "dst_rank": "Dst Rank",
        "recorded_rank": "Rank",
        "sequence": "Seq",
    },
):
    """`args` of an event. Fields are `Any` if a profiler may write a number as text, so that the event is not lost."""

    external_id: Any = NULL
    external_id_2021: Any = NULL
    correlation: Any = NULL
    device: Any = NULL
    stream: Any = NULL
    num_bytes: Any = NULL
    input_dims: msgspec.Raw = NOTHING
    input_types: msgspec.Raw = NOTHING
    operation: Any = None
    group_name: Any = None
    group_description: Any = None
    group_ranks: Any = None
    group_size: Any = None
    dtype: Any = None
    num_input_elements: Any = None
    num_output_elements: Any = None
    src_rank: Any = None
    dst_rank: Any = None
    recorded_rank: Any = None
    sequence: Any = NULL


NO_ARGUMENTS = Arguments()


class CompleteEvent(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """An event with a start and a duration: the only phase that profilers use for work. Times in microseconds."""

    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: int | float = float("nan")
    dur: float = -1.0  # missing; counted and repaired like a negative duration
    args: Arguments = NO_ARGUMENTS


class ExactEvent(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """Like `CompleteEvent` with decimal times, for fractional microseconds since 1970, which a float would round."""

    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: Decimal = Decimal("nan")
    dur: Decimal = Decimal(-1)
    args: Arguments = NO_ARGUMENTS


# The other phases of the Trace Event Format: flows, instants, metadata, counters, ... No analysis needs them, so their
# structs have no fields and decoding them takes almost no time.
_OTHER_PHASES = tuple(
    msgspec.defstruct(f"Phase{ord(phase)}", [], tag_field="ph", tag=phase, gc=False) for phase in "sftiIMCBEbenNODPR"
)

AnyEvent: Any = functools.reduce(operator.or_, _OTHER_PHASES, CompleteEvent)
AnyExactEvent: Any = functools.reduce(operator.or_, _OTHER_PHASES, ExactEvent)


_KINDS: dict[str, int] = {
    "cpu_op": OPERATOR,
    "Operator": OPERATOR,
    "hpu_op": Kind.CPU_OP,
    "user_annotation": Kind.USER_ANNOTATION,
    "gpu_user_annotation": Kind.GPU_ANNOTATION,
    "Runtime": Kind.RUNTIME,
    "kernel": Kind.KERNEL,
    "Kernel": Kind.KERNEL,
    "concurrent_kernel": Kind.KERNEL,
    "mtia_ccp_events": MTIA_DEVICE,
    "gpu_memcpy": Kind.MEMCPY,
    "Memcpy": Kind.MEMCPY,
    "gpu_memset": Kind.MEMSET,
    "Memset": Kind.MEMSET,
    "python_function": Kind.PYTHON,
    "overhead": Kind.OVERHEAD,
    # The profiler before torch 1.8 wrote no categories, and wrote these names in place of a process id.
    "CPU functions": Kind.CPU_OP,
    "CUDA functions": Kind.KERNEL,
    # Written by Kineto, but not needed by any analysis.
    "Trace": SKIPPED,
    "cpu_instant_event": SKIPPED,
    "cuda_event": SKIPPED,
    "external_correlation": SKIPPED,
    "cuda_profiler_range": SKIPPED,
    "hardware_counters": SKIPPED,
    "mtia_counters": SKIPPED,
    "mtia_insight": SKIPPED,
    "xpu_scope_profiler": SKIPPED,
}
# after cuda_, xpu_, mtia_, glow_, privateuse1_, or the prefix of any future vendor
_KINDS_BY_SUFFIX = {"runtime": Kind.RUNTIME, "driver": Kind.RUNTIME, "sync": Kind.SYNC}


class KindOfCategory(dict[str | int, int]):
    """Maps a category to its kind; a new category is classified by its suffix, or recorded in `unknown`."""

    def __init__(self) -> None:
        super().__init__()
        self.update(_KINDS)
        self.unknown: set[str] = set()

    def __missing__(self, category: str | int) -> int:
        kind = _KINDS_BY_SUFFIX.get(category.rpartition("_")[2], SKIPPED) if isinstance(category, str) else SKIPPED
        if kind == SKIPPED:
            self.unknown.add(category if isinstance(category, str) else "")
        self[category] = int(kind)
        return int(kind)


def is_kind(column: NDArray[np.uint8], *kinds: int) -> NDArray[np.bool_]:
    """Return True for each entry of a column of kinds that is one of the given kinds."""
    table = np.zeros(256, np.bool_)
    table[list(kinds)] = True
    return table[column]
