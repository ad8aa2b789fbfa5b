"""Find the knee of measured power-cap curves, and whether capping pays at today's prices.

All ratios are relative to the highest limit measured, for each configuration. An owner pays for a job

    time x (USD per GPU-hour + (power of the GPU + its share of the host) x PUE x USD per kWh)

with the host's share taken without a cap, because capping a GPU does not lower its host's power. A renter pays only for
time, regardless of power.

Intervals resample complete workloads, 1,000 times from a fixed seed, because batch sizes of one network are not
independent evidence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from flatout.catalog.prices import Prices
from flatout.errors import InputError
from flatout.records.power import CapAdvice, CapPoint, PowerSample, Ratio

NUM_DRAWS = 1_000
SEED = 7
INTERVAL = (2.5, 97.5)
W_PER_KW = 1000.0
S_PER_H = 3600.0


class _Curve:
    """The curve of one configuration: time and power by limit, and both without a cap."""

    def __init__(self, workload: tuple[str, ...], points: dict[float, tuple[float, float]], no_cap_w: float) -> None:
        self.workload = workload
        self.points = points
        self.time_s, self.power_w = points[no_cap_w]


class _Money:
    """The owner's costs of a GPU-hour and a kWh."""

    def __init__(self, usd_per_gpu_hour: float | None, usd_per_kwh: float, prices: Prices) -> None:
        self.usd_per_gpu_hour = usd_per_gpu_hour
        self.usd_per_kwh = usd_per_kwh
        self.host = prices.host.typical
        self.pue = prices.pue.typical

    def energy_usd_per_s(self, power_w: float, uncapped_w: float) -> float:
        drawn_w = (power_w + (self.host - 1) * uncapped_w) * self.pue
        return drawn_w / W_PER_KW / S_PER_H * self.usd_per_kwh

    def usd(self, time_s: float, power_w: float, uncapped_w: float) -> float:
        assert self.usd_per_gpu_hour is not None
        return time_s * (self.usd_per_gpu_hour / S_PER_H + self.energy_usd_per_s(power_w, uncapped_w))


def cap_advice(
    samples: Sequence[PowerSample],
    *,
    path: str,
    prices: Prices,
    usd_per_gpu_hour: float | None = None,
    usd_per_kwh: float | None = None,
) -> CapAdvice:
    """Compare all limits. Raises InputError if no configuration was measured at two limits, one of them the highest."""
    no_cap_w = max(sample.limit_w for sample in samples)
    curves, num_left_out = _curves(samples, no_cap_w)
    limits = sorted({limit for curve in curves for limit in curve.points}, reverse=True)
    if len(limits) < 2:
        raise InputError(
            f"`{path}` must have a configuration at {no_cap_w:g} W and at a lower limit, but has none",
            hint="measure the same job at both",
        )
    money = _Money(usd_per_gpu_hour, prices.electricity.typical if usd_per_kwh is None else usd_per_kwh, prices)
    workloads = sorted({curve.workload for curve in curves})
    draws = _draws(workloads)
    points = tuple(_point(limit, curves, draws, money) for limit in limits)
    knee = min(points, key=lambda point: point.time.value * point.energy.value)
    cheapest = _cheapest(points)
    return CapAdvice(
        path=path,
        no_cap_w=no_cap_w,
        num_configurations=len(curves),
        num_workloads=len(workloads),
        num_left_out=num_left_out,
        points=points,
        knee_w=knee.limit_w,
        cheapest_w=cheapest.limit_w if cheapest is not None else None,
        pays=_is_cheaper(cheapest) if cheapest is not None else None,
        break_even_usd_per_gpu_hour=_break_even(knee.limit_w, curves, money),
        usd_per_gpu_hour=usd_per_gpu_hour,
        usd_per_kwh=money.usd_per_kwh,
        host=money.host,
        pue=money.pue,
    )


def _cheapest(points: Sequence[CapPoint]) -> CapPoint | None:
    """Return the limit at which a job costs its owner least, the highest if several do; None without a price."""
    priced = [(point.owned.value, -point.limit_w, point) for point in points if point.owned is not None]
    return min(priced)[2] if priced else None


def _curves(samples: Sequence[PowerSample], no_cap_w: float) -> tuple[list[_Curve], int]:
    """Average repeated measurements of a point. Also return the number of configurations without the highest limit."""
    configurations: dict[tuple[tuple[str, ...], tuple[str, ...]], dict[float, list[PowerSample]]] = {}
    for sample in samples:
        by_limit = configurations.setdefault((sample.workload, sample.configuration), defaultdict(list))
        by_limit[sample.limit_w].append(sample)
    curves = []
    for (workload, _), by_limit in configurations.items():
        if no_cap_w in by_limit:
            points = {limit: _mean_time_and_power(repeats) for limit, repeats in by_limit.items()}
            curves.append(_Curve(workload, points, no_cap_w))
    return curves, len(configurations) - len(curves)


def _mean_time_and_power(repeats: Sequence[PowerSample]) -> tuple[float, float]:
    """Return the mean time, and the mean power over that time."""
    total_s = sum(sample.time_s for sample in repeats)
    total_j = sum(sample.time_s * sample.power_w for sample in repeats)
    return total_s / len(repeats), total_j / total_s


def _draws(workloads: Sequence[tuple[str, ...]]) -> list[dict[tuple[str, ...], int]]:
    """Return the number of times that each workload is in each draw."""
    generator = np.random.default_rng(SEED)
    chosen = generator.integers(0, len(workloads), size=(NUM_DRAWS, len(workloads)))
    draws = []
    for row in chosen:
        counts = np.bincount(row, minlength=len(workloads))
        draws.append({workload: int(count) for workload, count in zip(workloads, counts, strict=True) if count})
    return draws


def _point(
    limit_w: float, curves: Sequence[_Curve], draws: Sequence[dict[tuple[str, ...], int]], money: _Money
) -> CapPoint:
    measured = [curve for curve in curves if limit_w in curve.points]

    def ratio(of: Callable[[float, float, float], float]) -> Ratio:
        values = np.array(
            [
                of(*curve.points[limit_w], curve.power_w) / of(curve.time_s, curve.power_w, curve.power_w)
                for curve in measured
            ]
        )
        return _ratio(values, [curve.workload for curve in measured], draws)

    time = ratio(lambda time_s, _, __: time_s)
    return CapPoint(
        limit_w=limit_w,
        num_configurations=len(measured),
        time=time,
        energy=ratio(lambda time_s, power_w, _: time_s * power_w),
        rented=time,
        owned=ratio(money.usd) if money.usd_per_gpu_hour is not None else None,
    )


def _ratio(
    values: NDArray[np.float64], workloads: Sequence[tuple[str, ...]], draws: Sequence[dict[tuple[str, ...], int]]
) -> Ratio:
    medians = []
    for draw in draws:
        counts = np.array([draw.get(workload, 0) for workload in workloads])
        if counts.any():
            medians.append(float(np.median(np.repeat(values, counts))))
    low, high = np.percentile(medians, INTERVAL)
    return Ratio(value=float(np.median(values)), low=float(low), high=float(high))


def _is_cheaper(point: CapPoint) -> bool:
    return point.owned is not None and point.owned.high < 1


def _break_even(limit_w: float, curves: Sequence[_Curve], money: _Money) -> float | None:
    """Return the median over configurations of the price at which the energy saved is worth the time lost.

    Return None without a cap, or if the median configuration loses no time, so that capping pays at any price.
    """
    prices = [
        _break_even_price(curve, limit_w, money)
        for curve in curves
        if limit_w in curve.points and limit_w != max(curve.points)
    ]
    median = float(np.median(prices)) if prices else np.inf
    return max(median, 0.0) if np.isfinite(median) else None


def _break_even_price(curve: _Curve, limit_w: float, money: _Money) -> float:
    """Return the USD per GPU-hour for one configuration; infinite if it loses no time."""
    time_s, power_w = curve.points[limit_w]
    uncapped_usd = curve.time_s * money.energy_usd_per_s(curve.power_w, curve.power_w)
    capped_usd = time_s * money.energy_usd_per_s(power_w, curve.power_w)
    lost_h = (time_s - curve.time_s) / S_PER_H
    return (uncapped_usd - capped_usd) / lost_h if lost_h > 0 else float(np.inf)
