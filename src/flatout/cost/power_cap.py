"""Measured power-cap curves -> where the knee is, and whether capping pays at today's prices.

All ratios are against the highest limit measured, configuration by configuration. An owner pays for a job

    time x (USD a GPU-hour + (power of the GPU + its share of the host) x PUE x USD a kWh)

where the host's share is what it draws without a cap: a capped GPU does not make its host draw less. Who rents pays for
time, whatever it draws.

Intervals draw whole workloads anew, 1,000 times from a fixed seed: batch sizes of one network are no independent
evidence.
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
    """One configuration: time and power by limit, and both without a cap."""

    def __init__(self, workload: tuple[str, ...], points: dict[float, tuple[float, float]], no_cap_w: float) -> None:
        self.workload = workload
        self.points = points
        self.time_s, self.power_w = points[no_cap_w]


class _Money:
    """What an hour of GPU and a kWh cost its owner."""

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
    """InputError where no configuration was measured at two limits, one of them the highest."""
    no_cap_w = max(sample.limit_w for sample in samples)
    curves, num_left_out = _curves(samples, no_cap_w)
    money = _Money(usd_per_gpu_hour, prices.electricity.typical if usd_per_kwh is None else usd_per_kwh, prices)
    limits = sorted({limit for curve in curves for limit in curve.points}, reverse=True)
    if len(limits) < 2:
        raise InputError(
            f"`{path}` must have a configuration at {no_cap_w:g} W and at a lower limit, but has none",
            hint="measure the same job at both",
        )
    draws = _draws(sorted({curve.workload for curve in curves}))
    points = tuple(_point(limit, curves, draws, money) for limit in limits)
    knee = min(points, key=lambda each: each.time.value * each.energy.value)
    owned = [(each.owned.value, -each.limit_w, each) for each in points if each.owned is not None]
    cheapest = min(owned)[2] if owned else None
    return CapAdvice(
        path=path,
        no_cap_w=no_cap_w,
        num_configurations=len(curves),
        num_workloads=len({curve.workload for curve in curves}),
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


def _curves(samples: Sequence[PowerSample], no_cap_w: float) -> tuple[list[_Curve], int]:
    """Repeated measurements of a point are averaged. Also how many configurations lack the highest limit."""
    found: dict[tuple[tuple[str, ...], tuple[str, ...]], dict[float, list[tuple[float, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for sample in samples:
        found[sample.workload, sample.configuration][sample.limit_w].append((sample.time_s, sample.power_w))
    curves = [
        _Curve(
            workload,
            {
                limit: (sum(t for t, _ in each) / len(each), sum(t * p for t, p in each) / sum(t for t, _ in each))
                for limit, each in points.items()
            },
            no_cap_w,
        )
        for (workload, _), points in found.items()
        if no_cap_w in points
    ]
    return curves, len(found) - len(curves)


def _draws(workloads: Sequence[tuple[str, ...]]) -> list[dict[tuple[str, ...], int]]:
    """How often each workload is in each of the draws."""
    generator = np.random.default_rng(SEED)
    chosen = generator.integers(0, len(workloads), size=(NUM_DRAWS, len(workloads)))
    return [
        {workload: int((row == place).sum()) for place, workload in enumerate(workloads) if (row == place).any()}
        for row in chosen
    ]


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
    """The median over configurations of the price at which the energy saved is worth the time lost.

    None where the median configuration loses no time there, so that any price will do, and at no cap.
    """
    prices = []
    for curve in curves:
        if limit_w in curve.points and limit_w != max(curve.points):
            time_s, power_w = curve.points[limit_w]
            saved_usd = curve.time_s * money.energy_usd_per_s(curve.power_w, curve.power_w) - (
                time_s * money.energy_usd_per_s(power_w, curve.power_w)
            )
            lost_h = (time_s - curve.time_s) / S_PER_H
            prices.append(saved_usd / lost_h if lost_h > 0 else np.inf)
    found = float(np.median(prices)) if prices else np.inf
    return max(found, 0.0) if np.isfinite(found) else None
