"""Bencher Metric Format: https://bencher.dev/docs/reference/bencher-metric-format.

A benchmark is a job on a class of machine, because Bencher compares all values of one name.
"""

from __future__ import annotations

from typing import Any

import msgspec

from flatout.records.tracking import Reported

_MOST_NAME = 1024  # characters; of a measure: 64
_MOST_MEASURE = 64


def bencher(reported: Reported) -> str:
    benchmarks: dict[str, dict[str, Any]] = {}
    for measure in reported.measures:
        values = {"value": measure.value, "lower_value": measure.low, "upper_value": measure.high}
        known = {name: value for name, value in values.items() if value is not None}
        job = f"{measure.job} [{measure.machine}]"[:_MOST_NAME]
        benchmarks.setdefault(job, {})[measure.name[:_MOST_MEASURE]] = known
    return msgspec.json.format(msgspec.json.encode(benchmarks), indent=2).decode()
