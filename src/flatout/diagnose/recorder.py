"""What the profiler itself may have cost: it slows the host, and so makes jobs look host-bound.

Measured on 15 example jobs with known untraced step times: where the host sets the pace, recording took 2 to 5 us a
recorded host event and 37 to 50 % of the time that the host was not blocked; the idle time of the GPU shrank by
50 to 80 % without it. Where the GPU sets the pace, nothing of it is seen.

A traced step that is as long as an untraced one, or shorter, does not show that recording is free: the cost is then
below what steps differ by anyway, and only that bound is known.
"""

from __future__ import annotations

import math
from typing import Any, Final, Literal

import msgspec

from flatout.records.timeline import RankFacts

NS_PER_EVENT = 4_000
MAX_SHARE_OF_HOST = 0.45
MAX_SHARE_OF_IDLE = 0.75
# Where the cost comes from, as the JSON of a finding has it. Measured: the untraced step time is known; assumed: from
# the example jobs; else only that the cost is too small to be seen.
RecorderCostSource = Literal["measured", "assumed", "below the noise of the steps"]
BELOW_NOISE: Final = "below the noise of the steps"
NUM_ERRORS = 2.0  # standard errors: 95 %


class RecorderCost(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds a step that recording added."""

    idle_s: float  # to the idle time of a GPU that waits for its host
    host_s: float  # to the host's own work, hidden or not
    source: RecorderCostSource
    below_s: float | None = None  # with BELOW_NOISE: it is less than this; None: how steps differ is not known

    def evidence(self) -> dict[str, Any]:
        """Of a finding: what it took off the idle time, null where only a bound is known."""
        if self.source != BELOW_NOISE:
            return {"recorder_cost_s": self.idle_s}
        return {"recorder_cost_s": None, "recorder_cost_below_s": self.below_s}


class Untraced(msgspec.Struct, frozen=True, kw_only=True):
    """Steps without the recorder."""

    step_s: float  # median
    spread_s: float | None = None  # standard deviation from step to step; None: not known
    num_steps: int = 0


def recorder_cost(
    facts: RankFacts, num_steps: int, idle_s: float, step_s: float, untraced: Untraced | None
) -> RecorderCost:
    """The recorder's part of `idle_s` host-bound idle seconds a step on the rank of `facts`."""
    if untraced is not None:
        found_s, noise_s = step_s - untraced.step_s, _noise_s(untraced, num_steps)
        measured_s = max(found_s, 0.0)
        idle_s = min(measured_s, idle_s)
        if found_s > (noise_s or 0.0):
            return RecorderCost(idle_s=idle_s, host_s=measured_s, source="measured")
        below_s = measured_s + noise_s if noise_s else None
        return RecorderCost(idle_s=idle_s, host_s=measured_s, source=BELOW_NOISE, below_s=below_s)
    events_s = facts.num_host_events / num_steps * NS_PER_EVENT / 1e9
    running_s = max(facts.host_s - facts.host_blocked_s, 0.0) / num_steps
    host_s = min(events_s, MAX_SHARE_OF_HOST * running_s)
    return RecorderCost(idle_s=min(host_s, MAX_SHARE_OF_IDLE * idle_s), host_s=host_s, source="assumed")


def _noise_s(untraced: Untraced, num_traced: int) -> float | None:
    """What the mean of the traced steps and the median of the untraced ones may differ by, were recording free.

    The variance of a median is pi / 2 times that of a mean (of normal values, Kendall and Stuart, vol. 1, 10.10).
    """
    if untraced.spread_s is None or not untraced.num_steps:
        return None
    return NUM_ERRORS * untraced.spread_s * math.sqrt(1 / num_traced + math.pi / 2 / untraced.num_steps)
