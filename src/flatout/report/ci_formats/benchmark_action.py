"""The list that github-action-benchmark reads: https://github.com/benchmark-action/github-action-benchmark.

Its tools `customSmallerIsBetter` and `customBiggerIsBetter` each read one direction. All values are written so that a
smaller one is better: a rate is written as the time of one unit. Measures without a direction are skipped.
"""

from __future__ import annotations

from typing import Any

import msgspec

from flatout.records.tracking import Reported, ReportedMeasure

_INVERTED_UNITS = {"1/s": "s", "FLOP/s": "s/FLOP", "B/s": "s/B", "": "1"}


def benchmark_action(reported: Reported) -> str:
    entries = [_entry(measure) for measure in reported.measures if measure.direction != "neutral"]
    return msgspec.json.format(msgspec.json.encode([entry for entry in entries if entry]), indent=2).decode()


def _entry(measure: ReportedMeasure) -> dict[str, Any]:
    value, low, high = measure.value, measure.low, measure.high
    name, unit = measure.name, measure.unit or "1"
    if measure.direction == "higher":
        if value <= 0:
            return {}
        name, unit = f"1 / {name}", _INVERTED_UNITS.get(measure.unit, f"1/({measure.unit})")
        low, high = (1 / high if high else None), (1 / low if low else None)
        value = 1 / value
    entry: dict[str, Any] = {"name": f"{measure.job} [{measure.machine}]: {name}", "unit": unit, "value": value}
    if low is not None and high is not None:
        entry["range"] = f"{(high - low) / 2:.3g}"
    if measure.message:
        entry["extra"] = measure.message
    return entry
