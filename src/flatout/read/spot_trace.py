"""Read public records of spot capacity into a `SpotTrace`.

{"metadata": {"gap_seconds": 300}, "data": [0, 1, 1, ...]}   instances available at each interval
(skypilot-org/spot-traces)
480000,add,node1 / 600000,remove,node1                       milliseconds, and a node of the cluster (uclasystem/bamboo)
2021-12-10, 13:07:45, 80                                     a time, and the number available (bamboo's of Google)
"""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import msgspec

from flatout.errors import InputError
from flatout.input_files import decode_json, read_text
from flatout.records.spot import SpotTrace

_LONGEST_S = 100 * 365 * 86_400.0
_MILLISECONDS = re.compile(r"[0-9]{1,15}")
_HINT = "docs/how-to/cost.md lists the formats"


class _Metadata(msgspec.Struct):
    gap_seconds: float


class _Availability(msgspec.Struct):
    metadata: _Metadata
    data: list[int]


def read_spot_trace(path: Path) -> SpotTrace:
    """Read the file. Raises InputError (one line) if its format is unknown or it does not cover any time."""
    steps, end_s = _steps(path, _text(path))
    if end_s <= 0 or any(count < 0 for _, count in steps):
        raise InputError(f"`{path}` must cover some time with counts of 0 or more, and does not", hint=_HINT)
    if end_s > _LONGEST_S:
        raise InputError(
            f"`{path}` must cover at most {_LONGEST_S:,.0f} s (a hundred years), but covers {end_s:,.3g} s",
            hint="a gap is in seconds, and the time of an event in milliseconds",
        )
    changes = [step for place, step in enumerate(steps) if place == 0 or step[1] != steps[place - 1][1]]
    times_s, counts = zip(*changes, strict=True)
    return SpotTrace(path=str(path), times_s=times_s, counts=counts, end_s=end_s)


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except OSError as error:
        raise InputError(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise InputError(f"`{path}` is not a text file, so it is not a spot-instance trace", hint=_HINT) from None


def _steps(path: Path, text: str) -> tuple[list[tuple[float, int]], float]:
    """Return the number of instances after each change, with its time, and the time of the end."""
    if text.lstrip().startswith("{"):
        return _json(path, text)
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    if not lines:
        raise InputError(f"`{path}` is empty")
    first_line = lines[0][1]
    is_events = "add" in first_line or "remove" in first_line
    steps = _events(path, lines) if is_events else _samples(path, lines)
    return steps, steps[-1][0]


def _json(path: Path, text: str) -> tuple[list[tuple[float, int]], float]:
    try:
        availability = decode_json(text, type=_Availability)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"`{path}` is not a spot-instance trace: {error}", hint=_HINT) from None
    gap_s, counts = availability.metadata.gap_seconds, availability.data
    if not gap_s > 0 or not counts:
        raise InputError(f"`{path}` must have a positive gap and data, but has {gap_s:g} and {len(counts)} values")
    return [(place * gap_s, count) for place, count in enumerate(counts)], len(counts) * gap_s


def _events(path: Path, lines: list[tuple[int, str]]) -> list[tuple[float, int]]:
    nodes: set[str] = set()
    steps: list[tuple[float, int]] = [(0.0, 0)]
    for number, line in lines:
        words = [word.strip() for word in line.split(",")]
        if len(words) != 3 or words[1] not in ("add", "remove") or not _MILLISECONDS.fullmatch(words[0]):
            raise InputError(
                f"`{path}`, line {number}: must look like `480000,add,node1`, but is `{line[:60]}`", hint=_HINT
            )
        time_s = int(words[0]) / 1000
        if time_s < steps[-1][0]:
            raise InputError(f"`{path}`, line {number}: times must not decrease, but {time_s:g} s is less than before")
        if words[1] == "add":
            nodes.add(words[2])
        else:
            nodes.discard(words[2])
        if time_s == steps[-1][0]:
            steps.pop()
        steps.append((time_s, len(nodes)))
    return steps


def _samples(path: Path, lines: list[tuple[int, str]]) -> list[tuple[float, int]]:
    steps: list[tuple[float, int]] = []
    first: datetime | None = None
    for number, line in lines:
        words = [word.strip() for word in line.split(",")]
        try:
            if len(words) != 3:
                raise ValueError
            time, count = datetime.strptime(f"{words[0]} {words[1]}", "%Y-%m-%d %H:%M:%S"), int(words[2])
        except ValueError:
            raise InputError(
                f"`{path}`, line {number}: must look like `2021-12-10, 13:07:45, 80`, but is `{line[:60]}`", hint=_HINT
            ) from None
        first = first or time
        time_s = (time - first).total_seconds()
        if steps and time_s < steps[-1][0]:
            raise InputError(
                f"`{path}`, line {number}: times must not decrease, but {time} is earlier than on the line before"
            )
        if steps and time_s == steps[-1][0]:
            steps.pop()
        steps.append((time_s, count))
    return steps
