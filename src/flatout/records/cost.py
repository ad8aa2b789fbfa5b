"""What computing cost: estimates that say how they are known, and what a job, a team or a plan is charged."""

from __future__ import annotations

from typing import Literal

import msgspec

Provenance = Literal["measured", "vendor", "assumed", "predicted"]


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A number with its extremes. `low` and `high` bound it where every factor is at its own bound: no probability.

    `provenance` is that of the weakest factor. Unknown is None with a reason, never 0.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    provenance: Provenance | None = None
    reason: str = ""  # why it is unknown


class Bill(msgspec.Struct, frozen=True, kw_only=True):
    """What GPU time costs. Rent has the electricity in it: who rents pays `rent_usd` and no more."""

    gpu_hours: float
    rent_usd: Estimate
    kwh: Estimate  # at the meter: GPUs, their hosts and the data centre
    electricity_usd: Estimate  # what those kWh cost who pays for them himself
    kg_co2: Estimate
