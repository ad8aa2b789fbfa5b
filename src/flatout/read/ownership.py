"""Read a TOML of what owning GPUs costs, for the comparison with renting them.

    num_gpus = 64
    gpu = "h100"                      # for its power and rent, if these are not given
    currency = "USD"
    price = 2_400_000                 # of all hardware, with its installation
    life_years = 5
    residual_value = 240_000          # at the end of its life
    interest_per_year = 0.06
    utilisation = 0.7                 # share of the hours in which the GPUs work
    power_w_per_gpu = 1_250           # at work, with its share of the server
    idle_power_w_per_gpu = 450
    pue = 1.3
    electricity_per_kwh = 0.11
    cooling_per_year = 0              # beyond what the PUE counts
    people_per_year = 200_000
    space_per_year = 60_000
    maintenance_per_year = 90_000
    rent_per_gpu_hour = 2.50

`num_gpus`, `price` and `life_years` are required. An amount is a number, or `{ low = 2.0, typical = 2.5, high = 4.0 }`.
Out: `Ownership`, in which what was not given is None. Impossible values are refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from flatout.errors import InputError
from flatout.input_records import read_record
from flatout.records.buying import Ownership
from flatout.records.cost import Estimate

_MOST = 1e13
# Name -> the least and the most that is possible
_BOUNDS: dict[str, tuple[float, float]] = {
    "price": (0.0, _MOST),
    "residual_value": (0.0, _MOST),
    "power_w_per_gpu": (1.0, 1e5),
    "idle_power_w_per_gpu": (0.0, 1e5),
    "pue": (1.0, 10.0),
    "electricity_per_kwh": (0.0, 100.0),
    "cooling_per_year": (0.0, _MOST),
    "people_per_year": (0.0, _MOST),
    "space_per_year": (0.0, _MOST),
    "maintenance_per_year": (0.0, _MOST),
    "rent_per_gpu_hour": (0.0, 1e5),
}
_EXAMPLE = "docs/how-to/cost.md has an example"


class _Range(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An amount with its bounds."""

    typical: float
    low: float | None = None  # None: the typical amount
    high: float | None = None


_Amount = float | _Range


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    num_gpus: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)]
    price: _Amount
    life_years: float
    gpu: str | None = None
    currency: (
        Annotated[str, msgspec.Meta(pattern="^[A-Z]{3}$", description='the three letters of a currency, such as "EUR"')]
        | None
    ) = None
    residual_value: _Amount | None = None
    interest_per_year: float | None = None
    utilisation: float | None = None
    power_w_per_gpu: _Amount | None = None
    idle_power_w_per_gpu: _Amount | None = None
    pue: _Amount | None = None
    electricity_per_kwh: _Amount | None = None
    cooling_per_year: _Amount | None = None
    people_per_year: _Amount | None = None
    space_per_year: _Amount | None = None
    maintenance_per_year: _Amount | None = None
    rent_per_gpu_hour: _Amount | None = None


def read_ownership(path: Path) -> Ownership:
    """Read the file. Raises a one-line InputError for a missing, unknown or impossible value."""
    file = read_record(path, _File, hint=_EXAMPLE)
    _check(path, "life_years", file.life_years, 1 / 12, 50.0)
    for name, most in (("interest_per_year", 1.0), ("utilisation", 1.0)):
        value = getattr(file, name)
        if value is not None:
            _check(path, name, value, 0.0, most)
    amounts = {name: _estimate(path, name, getattr(file, name)) for name in _BOUNDS}
    price = amounts.pop("price")
    assert price is not None and price.low is not None
    residual = amounts["residual_value"]
    if residual is not None and residual.high is not None and residual.high > price.low:
        raise InputError(
            f"`{path}`: `residual_value` must be at most the price, but they are {residual.high:,g} and {price.low:,g}",
            hint="it is what the hardware is worth at the end of its life",
        )
    return Ownership(
        num_gpus=file.num_gpus,
        life_months=max(round(file.life_years * 12), 1),
        price=price,
        gpu=file.gpu,
        currency=file.currency,
        interest_per_year=file.interest_per_year,
        utilisation=file.utilisation,
        **amounts,
    )


def _estimate(path: Path, name: str, amount: _Amount | None) -> Estimate | None:
    """Return the amount with its bounds. Raises InputError for an impossible one."""
    if amount is None:
        return None
    given = amount if isinstance(amount, _Range) else _Range(typical=amount)
    low = given.low if given.low is not None else given.typical
    high = given.high if given.high is not None else given.typical
    least, most = _BOUNDS[name]
    for value in (low, given.typical, high):
        _check(path, name, value, least, most)
    if not low <= given.typical <= high:
        raise InputError(
            f"`{path}`: `{name}` must have low <= typical <= high, but has {low:,g}, {given.typical:,g} and {high:,g}",
            hint=_EXAMPLE,
        )
    return Estimate(value=given.typical, low=low, high=high, provenance="measured")


def _check(path: Path, name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:  # false for nan
        raise InputError(f"`{path}`: `{name}` must be from {least:.3g} to {most:,g}, but is {value:,g}", hint=_EXAMPLE)
