"""Weigh draining a node now against waiting for its failure, in GPU-hours.

In: the range of the probability that the node fails within the horizon, and what a stop costs the job. Out: both
costs. A failure costs all GPUs of the job the work since the last checkpoint (half an interval on average), its
detection and a restart. Draining costs a checkpoint and a restart, and the node's GPUs while they are unused.

On Titan's GPUs, 3.3 % of the cards with an event had another one within 30 days: at that probability draining pays
only if a planned stop costs less than a thirtieth of a failure.
"""

from __future__ import annotations

import msgspec

from flatout.records.watch import DrainCost

# Probability of a failure within a week after strong evidence. Assumed: no published rates exist for these.
DRAIN_PROBABILITY = (0.5, 0.95)
RESET_PROBABILITY = (0.05, 0.5)
NO_EVIDENCE_PROBABILITY = (0.004, 0.033)  # measured on Titan, per 30 days: any card, and cards with an event
_HOUR_S = 3600.0


class StopCosts(msgspec.Struct, frozen=True, kw_only=True):
    """What stops cost the job on this node."""

    job_gpus: int
    node_gpus: int
    checkpoint_interval_s: float
    save_s: float
    restart_s: float
    detect_s: float
    repair_s: float  # the node's GPUs are unused for this long, also without a job


def drain_cost(probability: tuple[float, float], costs: StopCosts) -> DrainCost:
    """Return the expected GPU-hours of draining now and of waiting, and whether draining costs less."""
    failure_s = costs.checkpoint_interval_s / 2 + costs.detect_s + costs.restart_s
    failure_h = failure_s * costs.job_gpus / _HOUR_S
    drain_h = ((costs.save_s + costs.restart_s) * costs.job_gpus + costs.repair_s * costs.node_gpus) / _HOUR_S
    low, high = probability
    repair_h = costs.repair_s * costs.node_gpus / _HOUR_S  # a failed node is repaired, too
    wait = (low * (failure_h + repair_h), high * (failure_h + repair_h))
    return DrainCost(drain_gpu_h=drain_h, wait_gpu_h=wait, pays=drain_h < wait[0], may_pay=drain_h < wait[1])
