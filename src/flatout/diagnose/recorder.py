"""The estimated cost of the profiler: it slows the host, which makes jobs look host-bound.

Measured on 15 example jobs with known untraced step times: on host-bound jobs, recording took 2 to 5 us per recorded
host event and 37 to 50 % of the time in which the host was not blocked; without it, the idle time of the GPU was 50 to
80 % shorter. On GPU-bound jobs the cost is hidden.

If traced steps take no longer than untraced ones, recording is not necessarily free: its cost is below the variation
between steps, and only that bound is known. If untraced steps spike often enough that a traced step can be a spike, a
longer traced step shows nothing, and nothing is attributed to the recorder.
"""

from __future__ import annotations

import math
from typing import Any, Final, Literal

import msgspec

from flatout.records.timeline import RankFacts

NS_PER_EVENT = 4_000
MAX_SHARE_OF_HOST = 0.45
MAX_SHARE_OF_IDLE = 0.75
# The source of the cost, a value in the JSON of a finding. Measured: from the untraced step time; assumed: from the
# example jobs; otherwise the cost is too small to be detected, or hidden by spikes.
RecorderCostSource = Literal["measured", "assumed", "below the noise of the steps", "untraced steps spike too"]
BELOW_NOISE: Final = "below the noise of the steps"
SPIKES: Final = "untraced steps spike too"
MIN_SPIKE_PROBABILITY = 0.05  # probability that at least one traced step is a spike
NUM_ERRORS = 2.0  # standard errors: 95 %


class RecorderCost(msgspec.Struct, frozen=True, kw_only=True):
    """The seconds per step that recording added."""

    idle_s: float  # to the idle time of a GPU that waits for its host
    host_s: float  # to the host's own work, hidden or not
    source: RecorderCostSource
    below_s: float | None = None  # with BELOW_NOISE: an upper bound; None: the variation between steps is unknown

    def evidence(self) -> dict[str, Any]:
        """Return the evidence fields: the idle time subtracted for the recorder, null if only a bound is known."""
        if self.source == BELOW_NOISE:
            return {"recorder_cost_s": None, "recorder_cost_below_s": self.below_s}
        return {"recorder_cost_s": None if self.source == SPIKES else self.idle_s}


class Untraced(msgspec.Struct, frozen=True, kw_only=True):
    """Step times without the recorder."""

    step_s: float  # median
    spread_s: float | None = None  # standard deviation of the step times; None: unknown
    num_steps: int = 0
    spike_share: float = 0.0  # of the steps of the recording, see `Measured.spike_share`

    def spike_probability(self, num_traced: int) -> float:
        """Return the probability that at least one of the traced steps is a spike that the job has without a trace."""
        return float(1 - (1 - self.spike_share) ** num_traced)


def recorder_cost(
    facts: RankFacts, num_steps: int, idle_s: float, step_s: float, untraced: Untraced | None
) -> RecorderCost:
    """Return the recorder's part of `idle_s`, the host-bound idle seconds per step on the rank of `facts`."""
    if untraced is not None and untraced.spike_probability(num_steps) >= MIN_SPIKE_PROBABILITY:
        return RecorderCost(idle_s=0.0, host_s=0.0, source=SPIKES)
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
    """Return how much the mean of traced steps and the median of untraced steps can differ if recording is free.

    The variance of a median is pi / 2 times that of a mean (of normal values, Kendall and Stuart, vol. 1, 10.10).
    """
    if untraced.spread_s is None or not untraced.num_steps:
        return None
    return NUM_ERRORS * untraced.spread_s * math.sqrt(1 / num_traced + math.pi / 2 / untraced.num_steps)
