"""Estimate how a plan can reach a goal: the number of GPUs, days and interruptions.

In: a goal and a search context. Out: candidates, whose numbers have intervals. Money, energy and carbon are counted in
`cost`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec
from scipy.special import pdtrik  # type: ignore[import-untyped]

from flatout.catalog.interruptions import InterruptionRate, Interruptions
from flatout.errors import InputError
from flatout.plan.counts import training_flops_per_token
from flatout.plan.search import plan as search
from flatout.plan.search_context import SearchContext
from flatout.records.goal import Goal, GoalEstimate
from flatout.records.plan import PlannedLayout

S_PER_DAY = 86400.0
GPUS_PER_NODE = 8  # GPUs per node in the published failure counts
MOST_TIMES_AS_MANY = 64  # maximum number of GPUs to consider, as a multiple of the cluster's
LEAST_EFFECTIVE_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalCandidate:
    """A number of GPUs, with the time and the interruptions that reaching the goal on it takes."""

    num_gpus: int
    planned: PlannedLayout
    num_steps: int
    days: GoalEstimate
    interruptions: GoalEstimate
    effective_share: GoalEstimate


def candidates(
    context: SearchContext, goal: Goal, rates: Interruptions, fixed: tuple[str, ...] = ()
) -> Iterator[GoalCandidate]:
    """Yield candidates, fewest GPUs first.

    Numbers of GPUs without a valid layout that fits are skipped, and so are those that could not reach the goal in time
    even at the GPUs' peak.
    """
    cluster = context.spec.cluster
    least = _least_gpus_at_peak(context, goal)
    for num_gpus in numbers_of_gpus(cluster.num_gpus, cluster.gpus_per_node):
        if num_gpus < least and num_gpus != cluster.num_gpus:
            continue
        try:
            yield candidate(context, goal, rates, num_gpus, fixed)
        except InputError:
            continue  # too few to hold the model, or a batch that does not divide


def _least_gpus_at_peak(context: SearchContext, goal: Goal) -> float:
    """Return how many GPUs, computing at their peak, reach the goal in time."""
    if goal.days is None:
        return 1.0
    spec = context.spec
    peaks = spec.cluster.peak_flops_per_s
    peak = peaks.get(context.precision) or max(peaks.get("bf16", 0.0), peaks.get("fp16", 0.0))
    trains_weights = not spec.training.lora_rank
    flops = training_flops_per_token(spec.workload, spec.seq, trains_weights=trains_weights) * goal.tokens
    return flops / (peak * goal.days * S_PER_DAY)


def numbers_of_gpus(of_cluster: int, per_node: int) -> list[int]:
    """Return the numbers of GPUs to consider: every number of whole nodes up to the cluster's, and larger ones.

    The larger ones, for a goal that the cluster cannot reach, are powers of two of whole nodes and halfway between
    them, up to `MOST_TIMES_AS_MANY` times the cluster's number. In a cluster smaller than a node, powers of two count.
    """
    numbers = {of_cluster, *range(per_node, of_cluster + 1, per_node)}
    numbers |= {1 << power for power in range(of_cluster.bit_length()) if of_cluster < per_node}
    nodes = 1
    while nodes * per_node <= of_cluster * MOST_TIMES_AS_MANY:
        numbers.add(nodes * per_node)
        if nodes > 1:
            numbers.add(nodes * per_node * 3 // 2)
        nodes *= 2
    return sorted(numbers)


def usable_context(context: SearchContext, fixed: tuple[str, ...] = ()) -> SearchContext:
    """Return the context of the largest number of the cluster's GPUs for which a layout divides.

    InputError: there is none.
    """
    cluster = context.spec.cluster
    error: InputError | None = None
    for num_gpus in reversed(numbers_of_gpus(cluster.num_gpus, cluster.gpus_per_node)):
        if num_gpus > cluster.num_gpus:
            continue
        resized = _resized(context, num_gpus)
        try:
            search(resized, num_layouts=1, fixed=fixed)
        except InputError as raised:
            error = error or raised  # that of all GPUs
            continue
        return resized
    assert error is not None
    raise error


def _resized(context: SearchContext, num_gpus: int) -> SearchContext:
    cluster = msgspec.structs.replace(context.spec.cluster, num_gpus=num_gpus)
    return replace(context, spec=replace(context.spec, cluster=cluster))


def candidate(
    context: SearchContext, goal: Goal, rates: Interruptions, num_gpus: int, fixed: tuple[str, ...] = ()
) -> GoalCandidate:
    """Return the candidate for this number of GPUs. Raise InputError if no valid layout fits on them."""
    spec = context.spec
    best = search(_resized(context, num_gpus), num_layouts=1, fixed=fixed).layouts[0]
    num_steps = math.ceil(goal.tokens / (spec.global_batch * spec.seq))
    return estimated(goal, rates, num_gpus, num_steps, best)


def estimated(goal: Goal, rates: Interruptions, num_gpus: int, num_steps: int, planned: PlannedLayout) -> GoalCandidate:
    """Estimate the calendar time of the steps.

    Each end of an interval combines the extremes of all its inputs.
    """
    nodes = num_gpus / GPUS_PER_NODE
    share = _effective_share_estimate(rates, nodes)
    low_s, high_s = planned.step_time_interval_s

    def days(step_s: float, effective: float) -> float:
        return num_steps * step_s / effective / S_PER_DAY

    calendar = GoalEstimate(
        value=days(planned.step_time_s, share.value),
        low=days(low_s, share.high),
        high=days(high_s, share.low),
        source="predicted step time, published rates of interruptions",
    )
    return GoalCandidate(
        num_gpus=num_gpus,
        planned=planned,
        num_steps=num_steps,
        days=calendar,
        interruptions=_interruptions_estimate(rates, nodes, calendar),
        effective_share=share,
    )


def _effective_share_estimate(rates: Interruptions, nodes: float) -> GoalEstimate:
    restart, checkpoint = rates.restart_s, rates.checkpoint_s
    best = effective_share(nodes, rates.lowest.per_1000_node_days, restart.low, checkpoint.low)
    worst = effective_share(nodes, rates.highest.per_1000_node_days, restart.high, checkpoint.high)
    return GoalEstimate(
        value=effective_share(nodes, rates.typical.per_1000_node_days, restart.typical, checkpoint.typical),
        low=worst,
        high=best,
        source=f"a restart of {restart.low / 60:.0f} to {restart.high / 60:.0f} minutes, a checkpoint of "
        f"{checkpoint.low:.0f} to {checkpoint.high:.0f} s, at Young's interval",
    )


def _interruptions_estimate(rates: Interruptions, nodes: float, days: GoalEstimate) -> GoalEstimate:
    def expected(duration_days: float, rate: InterruptionRate) -> float:
        return nodes * duration_days * rate.per_1000_node_days / 1000.0

    lowest, highest = rates.lowest, rates.highest
    most_expected = expected(days.high, highest)
    return GoalEstimate(
        value=expected(days.value, rates.typical),
        low=poisson_quantile(0.05, expected(days.low, lowest)),
        # For a rare event, the quantile can be 0, so the upper end is at least the expected number.
        high=max(poisson_quantile(0.95, most_expected), most_expected),
        source=f"{lowest.per_1000_node_days:g} to {highest.per_1000_node_days:g} per 1,000 node-days: "
        f"{', '.join(rate.name for rate in rates.rate)}",
    )


def effective_share(num_nodes: float, per_1000_node_days: float, restart_s: float, checkpoint_s: float) -> float:
    """Return the share of the time in which the job makes progress.

    E[ETTR] = (1 - N r (u + dt / 2)) / (1 + w / dt) (Kokolis et al., arXiv 2410.21680), with the checkpoint interval of
    Young, dt = sqrt(2 w / (N r)). If interruptions are more frequent than restarts, the formula does not hold: at least
    5 % is returned.
    """
    rate = num_nodes * per_1000_node_days / 1000.0 / S_PER_DAY
    interval_s = math.sqrt(2.0 * checkpoint_s / rate)
    share = (1.0 - rate * (restart_s + interval_s / 2.0)) / (1.0 + checkpoint_s / interval_s)
    return max(LEAST_EFFECTIVE_SHARE, share)


def poisson_quantile(share: float, mean: float) -> float:
    """Return the quantile of a Poisson distribution: the smallest number not exceeded with probability `share`."""
    if mean <= 0 or share <= math.exp(-mean):
        return 0.0
    return float(max(0, math.ceil(pdtrik(share, mean) - 1e-9)))
