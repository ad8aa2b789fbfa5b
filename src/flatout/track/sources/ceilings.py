"""The measures of `flatout bench --json`: the rate of each operation, size and group of ranks."""

from __future__ import annotations

from statistics import median
from typing import Any

from flatout.records.tracking import Measure
from flatout.track.facts import ResultFacts, at, count, items, number, text

SCHEMA = "flatout/ceilings"
JOB = "flatout bench"


def facts(record: dict[str, Any]) -> ResultFacts:
    same: dict[str, list[dict[str, Any]]] = {}
    for measurement in items(record, "measurements"):
        if number(measurement, "value") is not None:
            same.setdefault(_name(measurement), []).append(measurement)
    is_gpu = at(record, "is_gpu") is True
    software = text(record, "software")
    return ResultFacts(
        measures=tuple(_measure(name, measurements) for name, measurements in same.items()),
        job=JOB,
        device=text(record, "device") if is_gpu else None,
        num_devices=count(record, "num_devices"),
        host=text(record, "host"),
        environment={"software": software} if software is not None else {},
        date=text(record, "taken_at"),
    )


def _name(measurement: dict[str, Any]) -> str:
    """Return a name without the ranks, over which the median is taken: `all_reduce.all.1048576`."""
    shape = [str(size) for size in items(measurement, "shape")]
    size = at(measurement, "size")
    threads = at(measurement, "threads")
    words = [
        text(measurement, "name"),
        text(measurement, "dtype"),
        text(measurement, "group"),
        "x".join(shape) or None,
        str(size) if isinstance(size, int) and not shape else None,
        f"{threads}threads" if isinstance(threads, int) else None,
    ]
    return ".".join(word for word in words if word is not None)


def _measure(name: str, measurements: list[dict[str, Any]]) -> Measure:
    value = median(number(measurement, "value") or 0.0 for measurement in measurements)
    half = median(number(measurement, "spread") or 0.0 for measurement in measurements) / 2
    return Measure(
        name=name,
        value=value,
        unit=text(measurements[0], "unit") or "",
        direction="higher",
        low=max(value - half, 0.0),
        high=value + half,
    )
