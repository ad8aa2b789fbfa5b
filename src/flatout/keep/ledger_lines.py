"""The lines of a goodput ledger as typed records, by the key `event`.

In: one line. Out: its record, or `OtherLine` for an event that has no totals. A line with a wrong type or an impossible
number raises `msgspec.DecodeError`, whose text names the field.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from flatout.input_files import decode_written_json

_MOST_S = 1e11  # 3,000 years

Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]  # three centuries, more than one line can cover
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Seconds = Annotated[float, msgspec.Meta(ge=-_MOST_S, le=_MOST_S)]


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    unix_s: Seconds = 0.0


class RunLine(_Line, frozen=True, kw_only=True):
    """A `flatout run` begins."""

    schema: str = ""
    version: int | None = None
    command: str | None = None
    gpu: str | None = None
    node: str | None = None
    process: Any = None  # its PID and start time, as a pair
    job: str | None = None
    job_key: str | None = None
    start: Count | None = None
    away_s: Seconds | None = None


class AttemptLine(_Line, frozen=True, kw_only=True):
    """The command is started."""


class SecondsLine(_Line, frozen=True, kw_only=True):
    """The devices' time since the previous line of this kind, by class."""

    ns: dict[str, Nanoseconds]
    num_devices: Count | None = None
    steps: Count = 0
    steps_ns: Nanoseconds = 0
    known_ns: dict[str, dict[str, Nanoseconds]] = {}
    not_known: dict[str, str] = {}
    reached: int | None = None
    saved: int | None = None


class HangLine(_Line, frozen=True, kw_only=True):
    says: str | None = None


class FailureLine(_Line, frozen=True, kw_only=True):
    says: str | None = None
    fault: str | None = None
    key: str | None = None
    step: int | None = None
    awaits_peers: bool = False


class SavingLine(_Line, frozen=True, kw_only=True):
    """The choice of a checkpoint interval; `values` has the fields of an `IntervalChoice`."""

    values: dict[str, Any] = {}


class EndLine(_Line, frozen=True, kw_only=True):
    goes_on: bool | None = None


class OtherLine(_Line, frozen=True, kw_only=True):
    """An event that has no totals."""


LedgerLine = RunLine | AttemptLine | SecondsLine | HangLine | FailureLine | SavingLine | EndLine | OtherLine

_RECORDS: dict[str, type[LedgerLine]] = {
    "run": RunLine,
    "attempt": AttemptLine,
    "seconds": SecondsLine,
    "hang": HangLine,
    "failure": FailureLine,
    "end": EndLine,
}


def decode_line(raw: bytes) -> LedgerLine:
    content = decode_written_json(raw)
    event = content.get("event") if isinstance(content, dict) else None
    if not isinstance(event, str):
        raise msgspec.DecodeError("it must be an object with the key `event`")
    if event == "saving":
        return SavingLine(values=content)
    return msgspec.convert(content, _RECORDS.get(event, OtherLine), strict=False)
