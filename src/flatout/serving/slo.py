"""Parse the limits of a server's answers, such as `p99 ttft<500ms, p99 itl<50ms`, and apply them.

In: a text. Out: `LatencyLimit` records. A request is *good* if its own times are within every limit; of several limits
of one metric, the one with the highest percentile counts for it. A load point is within the limits if every percentile
is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from flatout.errors import UsageError
from flatout.records.serving import METRICS, LatencyLimit, Metric

EXAMPLE = "p99 ttft<500ms, p99 itl<50ms"
_LIMIT = re.compile(r"p(\d+(?:\.\d+)?)\s+([a-z0-9]+)\s*<=?\s*(\d+(?:\.\d+)?)\s*(us|ms|s)")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def parse_slo(text: str) -> tuple[LatencyLimit, ...]:
    """Return the limits. Raise UsageError if the text has another form, or limits one percentile twice."""
    limits = tuple(_limit(part.strip(), text) for part in text.split(","))
    names = [(limit.metric, limit.percentile) for limit in limits]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"`--slo` limits p{name[1]:g} {name[0]} twice: {text}", hint=f"write it once: {EXAMPLE}")
    return limits


def _limit(part: str, text: str) -> LatencyLimit:
    found = _LIMIT.fullmatch(part)
    if found is None:
        raise UsageError(f"`--slo` must be limits such as `{EXAMPLE}`, but got {text}", hint="units are us, ms and s")
    percentile, name, number, unit = found.groups()
    metric = _metric(name)
    most_s = float(number) * _SECONDS[unit]
    if not 0 < float(percentile) <= 100:
        raise UsageError(f"a percentile of `--slo` must be above 0 and at most 100, but got p{percentile}")
    if most_s <= 0:
        raise UsageError(f"a limit of `--slo` must be above 0, but got {part}")
    return LatencyLimit(metric=metric, percentile=float(percentile), most_s=most_s)


def _metric(name: str) -> Metric:
    for metric in METRICS:
        if name == metric:
            return metric
    raise UsageError(f"a limit of `--slo` must be of one of {', '.join(METRICS)}, but got {name}")


def own_limits(limits: Sequence[LatencyLimit]) -> tuple[LatencyLimit, ...]:
    """Return the limits that one request is compared with: of each metric, the one with the highest percentile."""
    strictest: dict[Metric, LatencyLimit] = {}
    for limit in limits:
        known = strictest.get(limit.metric)
        if known is None or limit.percentile > known.percentile:
            strictest[limit.metric] = limit
    return tuple(strictest.values())
