"""A comparison of buying GPUs with renting them: the costs of owning by item, and where both cost the same."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.records.cost import Estimate


class Ownership(msgspec.Struct, frozen=True, kw_only=True):
    """What owning some GPUs costs, as the user gives it. None: not given."""

    num_gpus: int
    life_months: int
    price: Estimate
    gpu: str | None = None
    currency: str | None = None
    residual_value: Estimate | None = None  # at the end of the life
    interest_per_year: float | None = None
    utilisation: float | None = None  # share of the hours in which the GPUs work
    power_w_per_gpu: Estimate | None = None
    idle_power_w_per_gpu: Estimate | None = None
    pue: Estimate | None = None
    electricity_per_kwh: Estimate | None = None
    cooling_per_year: Estimate | None = None
    people_per_year: Estimate | None = None
    space_per_year: Estimate | None = None
    maintenance_per_year: Estimate | None = None
    rent_per_gpu_hour: Estimate | None = None


class OwnershipCost(msgspec.Struct, frozen=True, kw_only=True):
    """What one item of owning costs per year, at the utilisation that was given."""

    item: str
    per_year: Estimate
    source: str  # where the number is from


class BuyOrRent(msgspec.Struct, frozen=True, kw_only=True):
    """Amounts are in `currency`. `low` and `high` of an estimate are its values where all inputs are at a bound."""

    path: str
    currency: str
    num_gpus: int
    gpu: str | None
    life_months: int
    utilisation: float | None  # share of the hours in which the GPUs work; None: not given
    price: Estimate
    residual_value: Estimate  # of the hardware at the end of its life
    interest_per_year: float
    costs: tuple[OwnershipCost, ...]  # of running the hardware; the price is not among them
    not_counted: tuple[str, ...]  # items that were not given
    own_per_gpu_hour: Estimate  # per hour in which a GPU works, over the life
    rent_per_gpu_hour: Estimate
    # Above it, buying costs less over the life; above 1: never. `high` is None where no utilisation is enough.
    break_even_utilisation: Estimate
    # The first month by whose end buying has cost less; unknown, or `high` None, where no month of the life is.
    break_even_month: Estimate
    own_total: Estimate  # over the life, in money of the first day
    rent_total: Estimate
    verdict: Literal["buy", "rent", "undecided", "unknown"]
    spare_per_year: float | None  # what the items not counted may cost per year for buying to pay still
    notes: tuple[str, ...]
