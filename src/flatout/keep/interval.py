"""Find the checkpoint interval and the most useful improvement, from measured costs and the failure rate distribution.

In: `Costs` in seconds, the number of nodes, and a `FailureRate`, a Gamma distribution: a published rate at first, which
the job's own failures and node-days soon outweigh. Out: the interval with the highest expected goodput over that
distribution, the closed forms of Young, Daly and NVIDIA, and the gain from a shorter write time, detection time or
restart time or a lower failure rate, in GPU-hours and money. This module measures and saves nothing.

Goodput is the share of the job's time that its work would have taken without failures and checkpoints. Failures occur
at a constant rate, during restarts too; goodput is averaged over the distribution of that rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaincinv  # type: ignore[import-untyped]

DAY_S, HOUR_S = 86_400.0, 3_600.0
_NUM_QUANTILES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The measured costs of checkpoints and failures, in seconds.

    `stall_s`: time for which a checkpoint blocks the training. `write_s`: time from the start of a checkpoint until it
    is committed; a checkpoint written in the background does not block the training, but a failure before the commit
    loses it. `detect_s`: time from a failure until its detection. `restart_s`: from then until the first new step.
    """

    stall_s: float
    write_s: float
    detect_s: float
    restart_s: float

    @property
    def after_failure_s(self) -> float:
        """Return the part of a failure's cost that does not depend on the interval, in seconds."""
        return self.detect_s + self.restart_s + max(self.write_s - self.stall_s, 0.0)


def measured_costs(lines: Iterable[Mapping[str, Any]], *, detect_s: float, restart_s: float) -> Costs | None:
    """Return the median costs over the lines of `checkpoints.jsonl`; None if no checkpoint was committed yet."""
    committed = [line for line in lines if line.get("outcome") == "committed"]
    if not committed:
        return None
    return Costs(
        stall_s=float(np.median([line["stall_s"] for line in committed])),
        write_s=float(np.median([line["until_committed_s"] for line in committed])),
        detect_s=detect_s,
        restart_s=restart_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate:
    """Failures per node-day, a Gamma distribution: `failures` seen in `node_days`, both including the prior's."""

    failures: float
    node_days: float
    source: str

    @property
    def mean(self) -> float:
        return self.failures / self.node_days

    def after(self, failures: int, node_days: float) -> FailureRate:
        """Return the distribution updated with these observations."""
        return replace(self, failures=self.failures + failures, node_days=self.node_days + node_days)

    def interval(self, probability: float = 0.9) -> tuple[float, float]:
        tail = (1 - probability) / 2
        low, high = gammaincinv(self.failures, [tail, 1 - tail]) / self.node_days
        return float(low), float(high)

    def rates_per_s(self, num_nodes: int) -> NDArray[np.float64]:
        """Return equally probable failure rates of the whole job: the midpoints of equal parts of the distribution."""
        middles = (np.arange(_NUM_QUANTILES) + 0.5) / _NUM_QUANTILES
        rates = gammaincinv(self.failures, middles) / self.node_days
        rates *= self.mean / rates.mean()  # the midpoints of the outermost parts slightly underestimate the mean
        return np.asarray(rates * num_nodes / DAY_S, dtype=np.float64)


def published(per_1000_node_days: float, source: str, *, failures: float = 2.0) -> FailureRate:
    """Return a prior with this mean, whose weight equals `failures` of the job's own failures.

    Clusters differ by a factor of up to three, as the two clusters with detailed publications do; a rate estimated from
    two failures is about as uncertain.
    """
    return FailureRate(failures=failures, node_days=1000 * failures / per_1000_node_days, source=source)


RSC_1 = published(6.50, "Meta RSC-1, 2023-24, A100: Kokolis et al., HPCA 2025")
RSC_2 = published(2.34, "Meta RSC-2, 2023-24, A100: Kokolis et al., HPCA 2025")
LLAMA_3 = published(3.79, "Llama 3 405B, 16,384 H100 over 54 days, 419 unexpected interruptions: Meta, 2024")


# Closed forms.


def young_s(stall_s: float, mean_time_to_failure_s: float) -> float:
    """Return the interval of Young 1974: sqrt(2 C M)."""
    return sqrt(2 * stall_s * mean_time_to_failure_s)


def daly_s(stall_s: float, mean_time_to_failure_s: float) -> float:
    """Return the interval of Daly 2006, equation 37: better than Young's if the stall is long relative to the MTTF."""
    if stall_s >= 2 * mean_time_to_failure_s:
        return mean_time_to_failure_s
    part = stall_s / (2 * mean_time_to_failure_s)
    return young_s(stall_s, mean_time_to_failure_s) * (1 + sqrt(part) / 3 + part / 9) - stall_s


def nvidia_s(stall_s: float, mean_time_to_failure_s: float, recovery_s: float) -> float:
    """Return the interval with the best availability by arXiv 2410.18124: Ts + sqrt(2 (Tf + Tr) Ts + Ts^2)."""
    return stall_s + sqrt(2 * (mean_time_to_failure_s + recovery_s) * stall_s + stall_s**2)


def published_ettr(interval_s: float, costs: Costs, rate_per_s: float) -> float:
    """Return the ETTR by Kokolis et al., HPCA 2025: (1 - N r_f (u0 + dt/2)) / (1 + w/dt).

    This is a first-order formula: it is below 0 if the job makes no progress.
    """
    lost = rate_per_s * (costs.after_failure_s + interval_s / 2)
    return (1 - lost) / (1 + costs.stall_s / interval_s)


# The model that is optimized.


def goodput(interval_s: float, costs: Costs, rate_per_s: float) -> float:
    """Return the goodput, exact for failures at a constant rate that can also occur during restarts.

    By Daly's renewal argument, a segment of work `t` with its stall `w` takes e^(r u) (e^(r (t + w)) - 1) / r on
    average, if each failure costs `u`, and more if the next failure occurs before the recovery is complete.
    """
    return expected_goodput(interval_s, costs, [rate_per_s])


def expected_goodput(interval_s: float, costs: Costs, rates_per_s: Sequence[float] | NDArray[np.float64]) -> float:
    """Return the expected goodput over equally probable rates."""
    return float(_expected_goodputs(np.array([interval_s]), costs, np.asarray(rates_per_s, dtype=np.float64))[0])


def _expected_goodputs(
    intervals_s: NDArray[np.float64], costs: Costs, rates_per_s: NDArray[np.float64]
) -> NDArray[np.float64]:
    spans = intervals_s[:, None] + costs.stall_s
    exponents = np.minimum(rates_per_s * spans, 700.0)
    # (e^x - 1) / x, which is 1 without failures.
    slowdowns = np.divide(np.expm1(exponents), exponents, out=np.ones_like(exponents), where=exponents > 0)
    each = intervals_s[:, None] / spans / slowdowns * np.exp(-rates_per_s * costs.after_failure_s)
    return np.asarray(each.mean(axis=1), dtype=np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The best interval. Any interval from `low_s` to `high_s` has a goodput within 0.1 % of the best."""

    interval_s: float
    low_s: float
    high_s: float
    goodput: float
    mean_time_to_failure_s: float
    young_s: float
    daly_s: float
    nvidia_s: float


def best_interval(costs: Costs, rate: FailureRate, num_nodes: int) -> Interval:
    rates = rate.rates_per_s(num_nodes)
    mean_s = 1 / (rate.mean * num_nodes / DAY_S)
    stall_s = max(costs.stall_s, 1e-3)  # if checkpoints were free, the best interval would be 0
    costs = replace(costs, stall_s=stall_s)
    center, width = log(young_s(stall_s, mean_s)), 5.0
    for _ in range(4):  # goodput has a single maximum
        tried = np.exp(np.linspace(center - width, center + width, 101))
        goodputs = _expected_goodputs(tried, costs, rates)
        center, width = log(tried[goodputs.argmax()]), width / 20
    interval_s = exp(center)
    best = expected_goodput(interval_s, costs, rates)
    around = interval_s * np.exp(np.linspace(-3, 3, 601))
    good = around[_expected_goodputs(around, costs, rates) >= best - 0.001]
    return Interval(
        interval_s=interval_s,
        low_s=float(good.min()),
        high_s=float(good.max()),
        goodput=best,
        mean_time_to_failure_s=mean_s,
        young_s=young_s(stall_s, mean_s),
        daly_s=daly_s(stall_s, mean_s),
        nvidia_s=nvidia_s(stall_s, mean_s, costs.detect_s + costs.restart_s),
    )


# The most useful improvements.


@dataclass(frozen=True, slots=True, kw_only=True)
class Improvement:
    """The gain over `hours` of the job from halving one of the four costs and choosing the interval again."""

    name: str  # "write time", "detection time", "restart time" or "failure rate"
    value: float  # present value: seconds, or failures per 1,000 node-days
    goodput: float  # with half this value
    gpu_hours: float
    money: float | None  # None if no price is known


def improvements(
    costs: Costs,
    rate: FailureRate,
    *,
    num_nodes: int,
    gpus_per_node: float,
    hours: float,
    price_per_gpu_hour: float | None = None,
    interval_s: float | None = None,
) -> list[Improvement]:
    """Return the improvements, largest gain first.

    `interval_s` is the present interval if it is not the best one; each of the four gains then also includes the gain
    from the better interval.
    """
    now = (
        best_interval(costs, rate, num_nodes).goodput
        if interval_s is None
        else expected_goodput(interval_s, costs, rate.rates_per_s(num_nodes))
    )
    half_as_often = replace(rate, node_days=2 * rate.node_days)
    changed = [
        ("write time", costs.write_s, replace(costs, stall_s=costs.stall_s / 2, write_s=costs.write_s / 2), rate),
        ("detection time", costs.detect_s, replace(costs, detect_s=costs.detect_s / 2), rate),
        ("restart time", costs.restart_s, replace(costs, restart_s=costs.restart_s / 2), rate),
        ("failure rate", 1000 * rate.mean, costs, half_as_often),
    ]
    found = []
    for name, value, new_costs, new_rate in changed:
        then = best_interval(new_costs, new_rate, num_nodes).goodput
        gpu_hours = (then - now) * hours * num_nodes * gpus_per_node
        money = None if price_per_gpu_hour is None else gpu_hours * price_per_gpu_hour
        found.append(Improvement(name=name, value=value, goodput=then, gpu_hours=gpu_hours, money=money))
    return sorted(found, key=lambda improvement: -improvement.gpu_hours)
