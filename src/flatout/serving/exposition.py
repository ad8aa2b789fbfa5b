"""Read a server's metrics, in Prometheus' text format.

In: the text of `/metrics`. Out: for each name, the sum and the largest value over its labels. Only what a table of the
engine names is kept; other lines are skipped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping

import msgspec

_SAMPLE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{[^}]*\})?\s+(\S+)(?:\s+-?\d+)?\s*")


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The samples of one name."""

    total: float
    largest: float


Readings = Mapping[str, Reading]


def read_metrics(text: str, names: Collection[str]) -> dict[str, Reading]:
    """Return the readings of these names; a name without a finite sample is absent."""
    readings: dict[str, Reading] = {}
    for line in text.splitlines():
        sample = _SAMPLE.fullmatch(line)
        if sample is None or sample[1] not in names:
            continue
        value = _number(sample[2])
        if value is None:
            continue
        before = readings.get(sample[1])
        if before is None:
            readings[sample[1]] = Reading(total=value, largest=value)
        else:
            readings[sample[1]] = Reading(total=before.total + value, largest=max(before.largest, value))
    return readings


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
