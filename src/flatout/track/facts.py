"""What a result's JSON says about a run: its measures, its job, its machine and its environment.

In: decoded JSON, whose values can be of any type. Out: `ResultFacts`, in which unknown facts are None.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from flatout.records.tracking import Direction, Measure


class ResultFacts(msgspec.Struct, frozen=True, kw_only=True):
    measures: tuple[Measure, ...]
    job: str | None  # the user's command
    device: str | None = None  # vendor's name of the GPU; None: CPUs, or unknown
    num_devices: int | None = None
    num_ranks: int | None = None
    num_hosts: int | None = None
    host: str | None = None  # name of the host that measured, if there was one
    environment: Mapping[str, str] = {}
    date: str | None = None  # ISO 8601
    commit: str | None = None  # of the measured code, if the result says so
    verdict: str | None = None
    gate: str | None = None  # outcome of the result's own gate: passed, failed or undecided


def at(record: Any, *path: str) -> Any:
    """Return the value at a path of keys, or None if one of them is missing."""
    for key in path:
        if not isinstance(record, dict):
            return None
        record = record.get(key)
    return record


def number(record: Any, *path: str) -> float | None:
    """Return the finite number at a path of keys, or None."""
    value = at(record, *path)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def count(record: Any, *path: str) -> int | None:
    """Return the positive whole number at a path of keys, or None; it may be written as text."""
    value = at(record, *path)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def text(record: Any, *path: str) -> str | None:
    """Return the text at a path of keys, or None; an empty text is None."""
    value = at(record, *path)
    return value if isinstance(value, str) and value else None


def items(record: Any, *path: str) -> list[Any]:
    """Return the list at a path of keys, or an empty one."""
    value = at(record, *path)
    return value if isinstance(value, list) else []


def interval(record: Any, *path: str) -> tuple[float, float] | None:
    """Return the two finite numbers at a path of keys, in order, or None."""
    ends = [number({"end": end}, "end") for end in items(record, *path)]
    if len(ends) != 2 or ends[0] is None or ends[1] is None:
        return None
    return min(ends[0], ends[1]), max(ends[0], ends[1])


def measure(
    name: str,
    value: float | None,
    unit: str,
    direction: Direction,
    *,
    ends: tuple[float, float] | None = None,
    is_part: bool = False,
) -> list[Measure]:
    """Return the measure in a list, or an empty list if its value is unknown."""
    if value is None:
        return []
    low, high = ends or (None, None)
    return [Measure(name=name, value=value, unit=unit, direction=direction, low=low, high=high, is_part=is_part)]


def parts(prefix: str, seconds: Any, unit: str = "s") -> list[Measure]:
    """Return the parts of a table from names to numbers."""
    if not isinstance(seconds, dict):
        return []
    named = [(str(name), number(seconds, name)) for name in seconds]
    return [part for name, value in named for part in measure(f"{prefix}.{name}", value, unit, "lower", is_part=True)]


def texts(record: Any, *path: str) -> dict[str, str]:
    """Return the entries of a table whose values are texts."""
    table = at(record, *path)
    if not isinstance(table, dict):
        return {}
    return {str(name): value for name, value in table.items() if isinstance(value, str) and value}


def command_text(words: Sequence[Any]) -> str | None:
    """Return a command as one line, or None if it is empty."""
    line = shlex.join([word for word in words if isinstance(word, str)])
    return line or None


def command_of_job(record: Any) -> str | None:
    """Return the user's command in the command line of Flatout: the words after `--`."""
    words = items(record, "command")
    return command_text(words[words.index("--") + 1 :]) if "--" in words else None
