"""How many spot instances there were over time, and what a job on them, on demand or on both would have met with."""

from __future__ import annotations

from typing import Literal

import msgspec

Strategy = Literal["spot", "on-demand", "mix"]
STRATEGIES: tuple[Strategy, ...] = ("spot", "on-demand", "mix")


class SpotTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A step function: from `times_s[i]` on there are `counts[i]` instances, until `end_s`."""

    path: str
    times_s: tuple[float, ...]  # rising, from 0
    counts: tuple[int, ...]
    end_s: float


class Availability(msgspec.Struct, frozen=True, kw_only=True):
    """Of as many instances as the job needs, all at once."""

    num_instances: int
    share: float  # of the trace's time
    num_losses: int
    mean_time_to_loss_s: float | None  # time with them over losses; None: none was lost
    longest_gap_s: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy, over all starts."""

    strategy: Strategy
    num_starts: int
    met_share: float  # finished by the deadline
    met_share_interval: tuple[float, float]  # 95 %, as if the starts were only as many as do not overlap
    num_unfinished: int  # not finished when the trace ended
    finish_s_quantiles: dict[str, float | None]  # p10, p50, p90, p99 of the time to finish; None: not within the trace
    cost_usd_mean: float  # of all starts, unfinished ones with what they had cost
    cost_usd_quantiles: dict[str, float]  # p10, p50, p90
    spot_hours_mean: float  # of one instance
    on_demand_hours_mean: float
    losses_mean: float
    lost_work_s_mean: float  # done again, restarts not in it


class SpotAdvice(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    work_s: float
    deadline_s: float
    checkpoint_interval_s: float
    is_interval_youngs: bool  # derived from the trace's mean time to loss
    checkpoint_cost_s: float
    restart_s: float
    spot_usd_per_h: float  # of one instance
    on_demand_usd_per_h: float
    num_instances: int
    num_apart: int  # starts with a whole deadline between them
    availability: Availability
    outcomes: tuple[Outcome, ...]
    wanted_met_share: float
    advice: Strategy | None  # None: none of them met the deadline often enough
    why: str
