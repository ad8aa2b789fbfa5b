"""The cost of computing: estimates with their provenance, and the bills of a job, a team or a plan."""

from __future__ import annotations

from typing import Literal

import msgspec

Provenance = Literal["measured", "vendor", "assumed", "predicted"]


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A number with its extremes: `low` and `high` result if every factor is at its bound. They are not quantiles.

    `provenance` is that of the weakest factor. Unknown is None with a reason, never 0.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    provenance: Provenance | None = None
    reason: str = ""  # why the value is unknown


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of GPU time. Rent includes electricity: whoever rents pays only `rent_usd`."""

    gpu_hours: float
    rent_usd: Estimate
    kwh: Estimate  # at the meter: GPUs, their hosts and the data centre
    electricity_usd: Estimate  # the price of those kWh for an owner
    kg_co2: Estimate
