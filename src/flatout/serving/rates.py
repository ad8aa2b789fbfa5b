"""Choose the rates of requests at which a server is measured, where the user names none.

In: a running, warm, untouched server. Out: four rates around the highest one that it serves within the limits. The
search doubles or halves the rate, each time with the load's own requests; its measurements decide nothing else.
"""

from __future__ import annotations

from flatout.records.serving import LoadPoint
from flatout.serving.trial import Running, ServerTrialSetup, measure_point

MOST_STEPS = 8
ENOUGH_GOOD = 0.9  # share of the requests: the server still serves this rate
AROUND = (0.7, 1.0, 1.5, 2.25)  # of the highest goodput


async def search_rates(running: Running, plan: ServerTrialSetup, begin_per_s: float) -> tuple[float, ...]:
    """Return the rates, from the lowest to the highest."""
    point = await _at(running, plan, begin_per_s)
    step = 2.0 if _is_served(point) else 0.5
    best = point.goodput_per_s
    rate = begin_per_s
    for _ in range(MOST_STEPS):
        was_served = _is_served(point)
        rate *= step
        point = await _at(running, plan, rate)
        best = max(best, point.goodput_per_s)
        if _is_served(point) != was_served:
            break
    # nothing was good: the rates stay near the lowest that was tried
    best = best or rate
    return tuple(_rounded(best * factor) for factor in AROUND)


async def _at(running: Running, plan: ServerTrialSetup, rate_per_s: float) -> LoadPoint:
    point, _ = await measure_point(running, plan, rate_per_s, None)
    running.check()
    return point


def _is_served(point: LoadPoint) -> bool:
    return point.num_good >= ENOUGH_GOOD * point.num_requests


def _rounded(rate: float) -> float:
    return float(f"{rate:.3g}")
