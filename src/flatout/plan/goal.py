"""A goal ("100B tokens in 30 days") and how a plan reaches it: numbers of GPUs, days, interruptions.

In: the goal's text and a setting. Out: records with intervals. Money, energy and carbon are not counted here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec
from scipy.special import pdtrik  # type: ignore[import-untyped]

from flatout.catalog.interruptions import Interruptions
from flatout.errors import InputError, UsageError
from flatout.plan.counts import training_flops_per_token
from flatout.plan.search import Setting
from flatout.plan.search import plan as search
from flatout.records.goal import Goal, GoalEstimate
from flatout.records.plan import PlannedLayout

S_PER_DAY = 86400.0
GPUS_PER_NODE = 8  # of the nodes whose failures were counted
EXAMPLES = '--goal "100B tokens in 30 days", --goal "1.5T tokens for $2M", --goal "50k steps within 2 weeks"'
_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_WORDS = {"thousand": "k", "million": "m", "billion": "b", "trillion": "t"}
_DAYS = {"hour": 1 / 24, "day": 1.0, "week": 7.0, "month": 365.25 / 12, "year": 365.25}
_NUMBER = r"(\d+(?:,\d{3})*(?:\.\d+)?(?:e[+]?\d+)?|\.\d+)\s*(k|m|b|t|thousand|million|billion|trillion)?"
_WORK = re.compile(rf"{_NUMBER}\s*(tokens?|steps?|sequences?|samples?)\b")
_TIME = re.compile(rf"(?:in|within)\s+{_NUMBER}\s*(hours?|days?|weeks?|months?|years?)\b")
_MONEY = re.compile(rf"(?:for|under)\s+(?:\$|usd\s*){_NUMBER}(?:\s*usd)?(?=\s|$)")
# Numbers of nodes that are tried: each power of two, and halfway between two.
MOST_TIMES_AS_MANY = 64


def parse_goal(text: str, *, global_batch: int, seq: int) -> Goal:
    """UsageError: it is no goal."""
    rest = " ".join(text.lower().split())
    found: dict[str, re.Match[str]] = {}
    for name, pattern in (("work", _WORK), ("time", _TIME), ("money", _MONEY)):
        match = pattern.match(rest)
        if match:
            found[name] = match
            rest = rest[match.end() :].strip(" ,")
    if rest and "work" in found and "time" not in found:  # money first, then time
        match = _TIME.match(rest)
        if match:
            found["time"] = match
            rest = rest[match.end() :].strip()
    if "work" not in found or rest:
        what = f"`{rest}` is not understood in `{text}`" if rest else f"got `{text}`"
        raise UsageError(
            f"a goal is an amount of tokens or steps, then a time, a sum of money, or both, but {what}",
            hint=f"for example: {EXAMPLES}",
        )
    amount, unit = _value(found["work"]), found["work"][3].rstrip("s")
    tokens = amount * {"token": 1, "step": global_batch * seq, "sequence": seq, "sample": seq}[unit]
    days = _value(found["time"]) * _DAYS[found["time"][3].rstrip("s")] if "time" in found else None
    usd = _value(found["money"]) if "money" in found else None
    for name, value in (("amount", tokens), ("time", days), ("sum", usd)):
        if value is not None and not 0 < value < 1e30:
            raise UsageError(f"the {name} of a goal must be above 0, but got `{text}`", hint=f"for example: {EXAMPLES}")
    return Goal(text=" ".join(text.split()), tokens=tokens, days=days, usd=usd)


def _value(match: re.Match[str]) -> float:
    scale = match[2] or ""
    return float(match[1].replace(",", "")) * _SCALES[_WORDS.get(scale, scale)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The goal on so many GPUs."""

    num_gpus: int
    planned: PlannedLayout
    num_steps: int
    days: GoalEstimate
    interruptions: GoalEstimate
    effective_share: GoalEstimate


def attempts(setting: Setting, goal: Goal, rates: Interruptions, fixed: tuple[str, ...] = ()) -> Iterator[Attempt]:
    """From the fewest GPUs on; numbers on which no layout is valid or fits are left out.

    Those so few that not even their peak would do in time are not tried.
    """
    job = setting.job
    least = 1.0
    if goal.days is not None:
        peaks = job.cluster.peak_flops_per_s
        peak = peaks.get(setting.precision) or max(peaks.get("bf16", 0.0), peaks.get("fp16", 0.0))
        flops = training_flops_per_token(job.workload, job.seq) * goal.tokens
        least = flops / (peak * goal.days * S_PER_DAY)
    for num_gpus in numbers_of_gpus(job.cluster.num_gpus, job.cluster.gpus_per_node):
        if num_gpus >= least or num_gpus == job.cluster.num_gpus:
            try:
                yield attempt(setting, goal, rates, num_gpus, fixed)
            except InputError:
                continue  # too few to hold the model, or a batch that does not divide


def numbers_of_gpus(given: int, per_node: int) -> list[int]:
    """The given one; whole nodes, by powers of two and halfway between them, up to many times as many."""
    found = {given}
    nodes = 1
    while nodes * per_node <= given * MOST_TIMES_AS_MANY:
        found |= {nodes * per_node, nodes * per_node * 3 // 2 if nodes > 1 else nodes * per_node}
        nodes *= 2
    return sorted(found)


def attempt(setting: Setting, goal: Goal, rates: Interruptions, num_gpus: int, fixed: tuple[str, ...] = ()) -> Attempt:
    """InputError: no layout on so many GPUs is valid and fits."""
    job = setting.job
    cluster = msgspec.structs.replace(job.cluster, num_gpus=num_gpus)
    planned = search(replace(setting, job=replace(job, cluster=cluster)), num_layouts=1, fixed=fixed).layouts[0]
    num_steps = math.ceil(goal.tokens / (job.global_batch * job.seq))
    return estimated(goal, rates, num_gpus, num_steps, planned)


def estimated(goal: Goal, rates: Interruptions, num_gpus: int, num_steps: int, planned: PlannedLayout) -> Attempt:
    """The calendar of so many steps. Both extremes of a rate, of a restart and of a checkpoint come together."""
    nodes = num_gpus / GPUS_PER_NODE
    low_s, high_s = planned.step_time_interval_s
    typical, lowest, highest = rates.typical, rates.lowest, rates.highest
    restart, checkpoint = rates.restart_s, rates.checkpoint_s
    share = effective_share(nodes, typical.per_1000_node_days, restart.typical, checkpoint.typical)
    best = effective_share(nodes, lowest.per_1000_node_days, restart.low, checkpoint.low)
    worst = effective_share(nodes, highest.per_1000_node_days, restart.high, checkpoint.high)

    def days(step_s: float, effective: float) -> float:
        return num_steps * step_s / effective / S_PER_DAY

    calendar = GoalEstimate(
        value=days(planned.step_time_s, share),
        low=days(low_s, best),
        high=days(high_s, worst),
        source="predicted step time, published rates of interruptions",
    )

    def expected(duration_days: float, rate: float) -> float:
        return nodes * duration_days * rate / 1000.0

    most = expected(calendar.high, highest.per_1000_node_days)
    interruptions = GoalEstimate(
        value=expected(calendar.value, typical.per_1000_node_days),
        low=poisson_quantile(0.05, expected(calendar.low, lowest.per_1000_node_days)),
        # Of a rare event the quantile is 0: the expected number is then what can be said.
        high=max(poisson_quantile(0.95, most), most),
        source=f"{lowest.per_1000_node_days:g} to {highest.per_1000_node_days:g} per 1,000 node-days: "
        f"{', '.join(rate.name for rate in rates.rate)}",
    )
    return Attempt(
        num_gpus=num_gpus,
        planned=planned,
        num_steps=num_steps,
        days=calendar,
        interruptions=interruptions,
        effective_share=GoalEstimate(
            value=share,
            low=worst,
            high=best,
            source=f"a restart of {restart.low / 60:.0f} to {restart.high / 60:.0f} minutes, a checkpoint of "
            f"{checkpoint.low:.0f} to {checkpoint.high:.0f} s, at Young's interval",
        ),
    )


def effective_share(num_nodes: float, per_1000_node_days: float, restart_s: float, checkpoint_s: float) -> float:
    """Of the time: E[ETTR] = (1 - N r (u + dt / 2)) / (1 + w / dt) (Kokolis et al., arXiv 2410.21680).

    With the checkpoint interval of Young, dt = sqrt(2 w / (N r)). Where interruptions come faster than restarts, the
    formula is below what it was made for: at least 5 %.
    """
    rate = num_nodes * per_1000_node_days / 1000.0 / S_PER_DAY
    interval_s = math.sqrt(2.0 * checkpoint_s / rate)
    return max(0.05, (1.0 - rate * (restart_s + interval_s / 2.0)) / (1.0 + checkpoint_s / interval_s))


def poisson_quantile(share: float, mean: float) -> float:
    """The smallest number that is not exceeded with this probability."""
    if mean <= 0 or share <= math.exp(-mean):
        return 0.0
    return float(max(0, math.ceil(pdtrik(share, mean) - 1e-9)))
