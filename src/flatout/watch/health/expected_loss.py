"""Weigh draining a node now against waiting for its failure, in GPU-hours.

In: how probable a failure of the node within a week is, and what a stop costs the job. Out: both costs. A failure costs
all GPUs of the job the work since the last checkpoint (half an interval on average), its detection and a restart.
Draining costs a checkpoint and a restart, and the node's GPUs while they are unused.

Without a sign, the probability follows from published rates of interruptions. Signs that only warn multiply it by at
most `TITAN_LIFT`, which `benchmarks/titan_drain.py` measured on the lives of Titan's GPUs. After the strongest evidence
no rate is published: those probabilities are assumed.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from flatout.catalog.interruptions import interruptions
from flatout.records.watch import DrainCost, FailureProbability

HORIZON_DAYS = 7
TITAN_LIFT = 8.0  # an event on a card that had one in the last 180 days, relative to any card
_HOUR_S = 3600.0
Evidence = Literal["none", "warning", "reset", "drain"]

_ASSUMED: dict[Evidence, tuple[float, float, float]] = {"reset": (0.05, 0.2, 0.5), "drain": (0.5, 0.8, 0.95)}


class StopCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What stops cost the job on this node."""

    job_gpus: int
    node_gpus: int
    checkpoint_interval_s: float
    save_s: float
    restart_s: float
    detect_s: float
    repair_s: float  # the node's GPUs are unused for this long, also without a job


def failure_probability(evidence: Evidence) -> FailureProbability:
    """Return the probability that a node of 8 GPUs with this evidence fails within the horizon."""
    if evidence in _ASSUMED:
        low, typical, high = _ASSUMED[evidence]
        source = "assumed: no rate is published for nodes with such evidence"
        return FailureProbability(low=low, typical=typical, high=high, is_assumed=True, source=source)
    rates = interruptions()
    low, typical, high = (
        _within_horizon(rate.per_1000_node_days) for rate in (rates.lowest, rates.typical, rates.highest)
    )
    source = "from published interruptions of " + ", ".join(rate.name for rate in rates.rate)
    if evidence == "warning":
        source += f", up to {TITAN_LIFT:.0f} times as many: the lift of an earlier event on Titan"
        typical, high = min(typical * math.sqrt(TITAN_LIFT), 1.0), min(high * TITAN_LIFT, 1.0)
    return FailureProbability(low=low, typical=typical, high=high, is_assumed=False, source=source)


def _within_horizon(per_1000_node_days: float) -> float:
    return -math.expm1(-per_1000_node_days / 1000 * HORIZON_DAYS)


def drain_cost(probability: FailureProbability, costs: StopCosts) -> DrainCost:
    """Return the expected GPU-hours of draining now and of waiting, and whether draining costs less."""
    failure_s = costs.checkpoint_interval_s / 2 + costs.detect_s + costs.restart_s
    failure_h = failure_s * costs.job_gpus / _HOUR_S
    repair_h = costs.repair_s * costs.node_gpus / _HOUR_S  # a failed node is repaired, too
    drain_h = (costs.save_s + costs.restart_s) * costs.job_gpus / _HOUR_S + repair_h
    loss_h = failure_h + repair_h
    wait_low_h, wait_high_h = probability.low * loss_h, probability.high * loss_h
    return DrainCost(
        drain_gpu_h=drain_h,
        typical_wait_gpu_h=probability.typical * loss_h,
        wait_gpu_h=(wait_low_h, wait_high_h),
        probability=probability,
        horizon_days=HORIZON_DAYS,
        pays=drain_h < wait_low_h,
        may_pay=drain_h < wait_high_h,
    )
