"""The emissions of a grid by the hour, and when a job should start so that it causes least."""

from __future__ import annotations

import msgspec


class CarbonHours(msgspec.Struct, frozen=True, kw_only=True):
    """Grams of CO2 equivalent per kWh, hour by hour without a gap."""

    hours: tuple[str, ...]  # as the file writes them
    g_per_kwh: tuple[float, ...]
    is_daily: bool  # the 24 hours of a day, which repeat


class CarbonStart(msgspec.Struct, frozen=True, kw_only=True):
    """A start at a full hour, and what the job emits from there."""

    hour: str
    delay_h: int
    g_per_kwh: float  # mean over the job
    less: float  # share of the emissions of a start now; below 0: more
    kg_co2: float | None = None  # null: the power is not given


class CarbonAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """What waiting would save. The grid is the same; only the time differs."""

    path: str
    duration_h: float
    most_delay_h: int
    now: CarbonStart
    best: CarbonStart  # the least emissions, of these the soonest
    starts: tuple[CarbonStart, ...]  # by time
    power_w: float | None  # of the whole job
