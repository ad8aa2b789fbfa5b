"""The lines of a step file as typed records: the header, the rows of steps, and the recorder's events.

In: one line. Out: a record whose values have their types and are within what a recorder can write. A line that breaks
this raises `msgspec.DecodeError`, whose text names the field.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import msgspec

from flatout.input_files import decode_json
from flatout.inside.protocol import NUM_STABLE_WARMUP_STEPS, STEP_COLUMNS, StepFileEvent
from flatout.records.recording import DeviceFacts

_FIRST_ABSENT = STEP_COLUMNS.index("checkpoint_ns")  # recordings of version 0.1 lack it and the columns after it
_REQUIRED = STEP_COLUMNS[:_FIRST_ABSENT]
_ALWAYS_KNOWN = ("step", "start_ns", "duration_ns", "loader_ns", "num_backward")
_MAX = 1 << 62  # ns: a century and more, so that sums of two such times are 64-bit integers
MAX_RANKS = 1_000_000  # more than any job has; each is a row of a table and of a report
_KIND = "kind"
_NOT_FINITE = ("nan", "inf", "-inf")  # as `json_number` of the recorder writes them

Number = float | str | None
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
UnixTime = Annotated[int, msgspec.Meta(ge=0, lt=_MAX)]
Ranks = Annotated[int, msgspec.Meta(ge=1, le=MAX_RANKS)]


class Header(msgspec.Struct, frozen=True, kw_only=True):
    columns: tuple[str, ...]
    rank: Count
    world_size: Ranks
    hostname: str
    base_unix_ns: int
    device: DeviceFacts | None = None
    backend: str | None = None
    torch: str
    steps_from: str

    def __post_init__(self) -> None:
        missing = [name for name in _REQUIRED if name not in self.columns]
        if missing:
            raise ValueError(f"`columns` must include `{missing[0]}`")
        if len(set(self.columns)) < len(self.columns):
            raise ValueError("`columns` must name each column once")
        if self.rank >= self.world_size:
            raise ValueError(f"`rank` must be below `world_size`, but is {self.rank} of {self.world_size}")
        if not 0 <= self.base_unix_ns < _MAX:
            raise ValueError(f"`base_unix_ns` must be a time, but is {self.base_unix_ns}")


class PlanLine(msgspec.Struct, frozen=True, kw_only=True):
    settled: Count
    flops_step: Count
    num_stable: Count = NUM_STABLE_WARMUP_STEPS  # older recorders do not write it


class Flops(msgspec.Struct, frozen=True, kw_only=True):
    flops_by_type: dict[str, float] | None = None
    problem: str | None = None


class WindowLine(msgspec.Struct, frozen=True, kw_only=True):
    steps: tuple[Count, ...] = ()
    problem: str | None = None


class StallWindowLine(msgspec.Struct, frozen=True, kw_only=True):
    steps: tuple[Count, ...]
    due: Count
    period: Count
    problem: str | None = None


class LossesLine(msgspec.Struct, frozen=True, kw_only=True):
    values: tuple[tuple[Count, Number, bool | int | None], ...]  # step, loss, whether a GradScaler skipped the update

    def __post_init__(self) -> None:
        for _, loss, _ in self.values:
            as_number(loss, "values")


class RecorderTime(msgspec.Struct, frozen=True, kw_only=True):
    cost_ns: Count


class End(msgspec.Struct, frozen=True, kw_only=True):
    reason: str
    source: str
    gpu_is_done: bool
    num_lost_rows: Count
    num_errors: Count
    num_calls_elsewhere: Count = 0  # an older recorder did not count them
    is_pooled: bool = False


class Started(msgspec.Struct, frozen=True, kw_only=True):
    process_ns: UnixTime | None
    torch_ns: UnixTime
    groups: tuple[tuple[UnixTime, UnixTime], ...] = ()
    evaluations: tuple[tuple[UnixTime, UnixTime], ...] = ()
    loaders: tuple[tuple[UnixTime, UnixTime], ...] = ()
    compilation_s: Annotated[float, msgspec.Meta(ge=0)] | None = None
    bytecode: str | None = None
    bytecode_ns: UnixTime | None = None


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    reason: str


class Restart(msgspec.Struct, frozen=True, kw_only=True):
    pass


Event = Started | PlanLine | Flops | WindowLine | StallWindowLine | LossesLine | RecorderTime | Stop | End | Restart

_EVENTS: dict[str, type[Event]] = {
    StepFileEvent.STARTED: Started,
    StepFileEvent.PLAN: PlanLine,
    StepFileEvent.FLOPS: Flops,
    StepFileEvent.WINDOW: WindowLine,
    StepFileEvent.STALL_WINDOW: StallWindowLine,
    StepFileEvent.LOSSES: LossesLine,
    StepFileEvent.RECORDER: RecorderTime,
    StepFileEvent.STOP: Stop,
    StepFileEvent.END: End,
    StepFileEvent.RESTART: Restart,
}


class StepLine(msgspec.Struct, frozen=True):
    """One step: its numbers by column, NaN where the recorder knew none, and the recorder's activity in it."""

    numbers: dict[str, float]
    kind: str


_decode_row = msgspec.json.Decoder(list[Number]).decode


def decode_line(line: bytes, header: Header | None) -> Header | StepLine | Event | None:
    """Return the record of a line; None for an event that this version does not know.

    `header` is the record of the line that describes the rows; without it, a row cannot be read.
    """
    if line.lstrip().startswith(b"["):
        return _row(line, header)
    content = decode_json(line, dict[str, Any])
    if "columns" in content:
        return msgspec.convert(content, Header)
    name = content.get("event")
    if not isinstance(name, str):
        raise msgspec.DecodeError("it is neither a header nor an event")
    record = _EVENTS.get(name)
    return None if record is None else msgspec.convert(content, record)


def _row(line: bytes, header: Header | None) -> StepLine:
    try:
        values = _decode_row(line)
    except (UnicodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None
    if header is None:
        raise msgspec.DecodeError("a step before the header, which describes its columns")
    if len(values) != len(header.columns):
        raise msgspec.DecodeError(f"a step must have {len(header.columns)} values, but has {len(values)}")
    numbers = {}
    kind: Number = ""
    for name, value in zip(header.columns, values, strict=True):
        if name == _KIND:
            kind = value
        else:
            numbers[name] = as_number(value, name)
    if not isinstance(kind, str):
        raise msgspec.DecodeError(f"`{_KIND}` must be a text, but is {kind}")
    for name in _ALWAYS_KNOWN:
        if not math.isfinite(numbers[name]):
            raise msgspec.DecodeError(f"`{name}` must be a number, but is unknown")
    return StepLine(numbers=numbers, kind=kind)


def as_number(value: Number, name: str) -> float:
    """Return a number from JSON, where infinities and NaN are text; NaN for a missing one."""
    if value is None:
        return math.nan
    if isinstance(value, str):
        if value not in _NOT_FINITE:
            raise msgspec.DecodeError(f"`{name}` must be a number, but is a text")
        return float(value)
    if name.endswith("_ns") and abs(value) >= _MAX:
        raise msgspec.DecodeError(f"`{name}` must be below 2^62, but is {value:g}")
    return value
