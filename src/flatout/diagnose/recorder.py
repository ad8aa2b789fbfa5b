"""The estimated cost of the profiler: it slows the host, which makes jobs look host-bound.

Measured on 15 example jobs with known untraced step times: on host-bound jobs, recording took 2 to 5 us per recorded
host event and 37 to 50 % of the time in which the host was not blocked; without it, the idle time of the GPU was 50 to
80 % shorter. On GPU-bound jobs the cost is hidden.

If traced steps take no longer than untraced ones, recording is not necessarily free: its cost is below the variation
between steps, and only that bound is known. If a spike makes the mean traced step longer than the median one, the
median counts, and is compared with the median untraced step. If untraced steps spike more often, or if so few steps are
traced that their median can be a spike, a longer traced step shows nothing, and nothing is attributed to the recorder.
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
MIN_SPIKE_SHARE = 0.04  # of the untraced steps
MIN_SPIKE_PROBABILITY = 0.05  # probability that the median traced step is a spike
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

    def spikes(self, num_traced: int) -> bool:
        """Whether the untraced steps spike too often, so that a longer traced step shows nothing."""
        return self.spike_share >= MIN_SPIKE_SHARE or self.spike_probability(num_traced) >= MIN_SPIKE_PROBABILITY

    def spike_probability(self, num_traced: int) -> float:
        """Return the probability that a spike, which the job has without a trace, is in the median traced step.

        The median of an even number of steps is the mean of two of them, so half of the steps are enough.
        """
        share = self.spike_share
        enough = range((num_traced + 1) // 2, num_traced + 1)
        return float(sum(math.comb(num_traced, n) * share**n * (1 - share) ** (num_traced - n) for n in enough))


def recorder_cost(
    facts: RankFacts, num_steps: int, idle_s: float, step_s: float, untraced: Untraced | None
) -> RecorderCost:
    """Return the recorder's part of `idle_s`, the host-bound idle seconds per step on the rank of `facts`.

    `step_s` is the traced step without rare spikes.
    """
    if untraced is not None and untraced.spikes(num_steps):
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
    """Return how much the medians of the traced and the untraced steps can differ if recording is free.

    The variance of a median is pi / 2 times that of a mean (of normal values, Kendall and Stuart, vol. 1, 10.10); the
    median of one or two steps is their mean.
    """
    if untraced.spread_s is None or not untraced.num_steps:
        return None
    of_traced = (math.pi / 2 if num_traced > 2 else 1.0) / num_traced
    return NUM_ERRORS * untraced.spread_s * math.sqrt(of_traced + math.pi / 2 / untraced.num_steps)
