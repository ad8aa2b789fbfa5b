"""Measured power-cap curves, and the advice derived from them."""

from __future__ import annotations

import msgspec


class PowerSample(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration at one power limit: the time and the mean power of a fixed amount of its work."""

    configuration: tuple[str, ...]  # all columns other than the numbers of the curve
    workload: tuple[str, ...]  # the columns that name what is trained; its configurations are not independent
    limit_w: float
    time_s: float
    power_w: float


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """A ratio relative to no cap: the median over configurations, with a 95 % bootstrap interval over workloads."""

    value: float
    low: float
    high: float


class CapPoint(msgspec.Struct, frozen=True, kw_only=True):
    limit_w: float
    num_configurations: int
    time: Ratio
    energy: Ratio  # of the GPU
    rented: Ratio  # cost of a job on rented GPUs, which is its time
    owned: Ratio | None  # cost on owned GPUs, with electricity separate; None without a price


class CapAdvice(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    no_cap_w: float  # the highest measured limit, the baseline of all ratios
    num_configurations: int
    num_workloads: int
    num_left_out: int  # configurations without a measurement at the highest limit
    points: tuple[CapPoint, ...]  # by limit, falling
    knee_w: float  # the limit with the least energy x time
    cheapest_w: float | None  # the limit with the lowest cost for an owner
    pays: bool | None  # whether the complete interval of the cheapest limit is below no cap
    break_even_usd_per_gpu_hour: float | None  # capping at the knee saves money if GPUs are cheaper than this
    usd_per_gpu_hour: float | None
    usd_per_kwh: float
    host: float
    pue: float
