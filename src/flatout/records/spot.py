"""The number of spot instances over time, and how a job would have run on spot, on demand, or on both."""

from __future__ import annotations

from typing import Literal

import msgspec

Strategy = Literal["spot", "on-demand", "mix"]
STRATEGIES: tuple[Strategy, ...] = ("spot", "on-demand", "mix")


class SpotTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A step function: there are `counts[i]` instances from `times_s[i]` to the next time, or to `end_s`."""

    path: str
    times_s: tuple[float, ...]  # rising, from 0
    counts: tuple[int, ...]
    end_s: float


class Availability(msgspec.Struct, frozen=True, kw_only=True):
    """Availability of all the instances that the job needs at once."""

    num_instances: int
    share: float  # of the trace's time
    num_losses: int
    mean_time_to_loss_s: float | None  # available time / losses; None: no loss
    longest_gap_s: float


class StrategyResult(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one strategy over all starts."""

    strategy: Strategy
    num_starts: int
    met_share: float  # share of starts that finished by the deadline
    met_share_interval: tuple[float, float]  # 95 %, counting only starts that do not overlap
    num_unfinished: int  # not finished when the trace ended
    finish_s_quantiles: dict[
        str, float | None
    ]  # p10, p50, p90, p99 of the time to finish; None: after the end of the trace
    cost_usd_mean: float  # over all starts; unfinished ones with their cost so far
    cost_usd_quantiles: dict[str, float]  # p10, p50, p90
    spot_hours_mean: float  # instance-hours
    on_demand_hours_mean: float
    losses_mean: float
    lost_work_s_mean: float  # repeated work, without restarts


class SpotAdvice(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    work_s: float
    deadline_s: float
    checkpoint_interval_s: float
    is_interval_youngs: bool  # from Young's formula with the trace's mean time to loss
    checkpoint_cost_s: float
    restart_s: float
    spot_usd_per_h: float  # per instance
    on_demand_usd_per_h: float
    num_instances: int
    num_apart: int  # starts at least one deadline apart
    availability: Availability
    outcomes: tuple[StrategyResult, ...]
    wanted_met_share: float
    advice: Strategy | None  # None: no strategy met the deadline often enough
    why: str
