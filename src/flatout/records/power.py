"""Measured power-cap curves, and what they say of capping."""

from __future__ import annotations

import msgspec


class PowerSample(msgspec.Struct, frozen=True, kw_only=True):
    """One configuration at one power limit: how long a fixed amount of its work took, and at what mean power."""

    configuration: tuple[str, ...]  # every column that is no number of the curve
    workload: tuple[str, ...]  # of them, what is trained; its configurations are no independent evidence
    limit_w: float
    time_s: float
    power_w: float


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """Against no cap. The median over configurations, and a 95 % interval from drawing whole workloads anew."""

    value: float
    low: float
    high: float


class CapPoint(msgspec.Struct, frozen=True, kw_only=True):
    limit_w: float
    num_configurations: int
    time: Ratio
    energy: Ratio  # of the GPU
    rented: Ratio  # what a job costs who rents: the time
    owned: Ratio | None  # ... who pays for the GPU by the hour and for electricity apart; None: no price was given


class CapAdvice(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    no_cap_w: float  # the highest limit measured, against which all is
    num_configurations: int
    num_workloads: int
    num_left_out: int  # configurations that were not measured without a cap
    points: tuple[CapPoint, ...]  # by limit, falling
    knee_w: float  # where energy x time is least
    cheapest_w: float | None  # where a job costs its owner least
    pays: bool | None  # whether the cheapest limit costs less than no cap, its whole interval
    break_even_usd_per_gpu_hour: float | None  # at the knee: with GPUs cheaper than this, capping there saves money
    usd_per_gpu_hour: float | None
    usd_per_kwh: float
    host: float
    pue: float
