"""Compare buying GPUs with renting them over the life of the hardware.

In: `Ownership`, and the catalogue for what it does not give. Out: `BuyOrRent`. With n GPUs that work a share u of the
hours, and money discounted by month:

    own(u)  = price - residual + sum of months [fixed + n hours (u busy + (1 - u) idle) PUE electricity]
    rent(u) = sum of months [n hours u rent]

Both are linear in u, so they cross at most once. Each is computed for the typical inputs, and with all inputs at the
bounds that favour buying and that favour renting. It compares cost alone: not when machines come, nor what they do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from flatout.catalog.prices import Prices, Range, Terms, gpu_named
from flatout.cost.energy import busy_power, idle_power
from flatout.cost.estimates import exact, of_range, product, total, unknown
from flatout.records.buying import BuyOrRent, Ownership, OwnershipCost
from flatout.records.cost import Estimate

HOURS_PER_MONTH = 365.25 * 24 / 12
_USD = "USD"
_YEARLY = {
    "cooling": "cooling_per_year",
    "people": "people_per_year",
    "space": "space_per_year",
    "maintenance": "maintenance_per_year",
}
_Bound = Literal["typical", "buying", "renting"]  # all inputs typical, or at the bounds that favour one
_FAVOURED: tuple[_Bound, ...] = ("typical", "buying", "renting")


class _Inputs(NamedTuple):
    """Estimates of what is needed; one of them may be unknown."""

    busy_w: Estimate
    idle_w: Estimate
    pue: Estimate
    electricity: Estimate
    rent: Estimate
    sources: Mapping[str, str]

    @property
    def unknown_reason(self) -> str | None:
        """Return why the comparison is impossible; None if it is possible."""
        for estimate in (self.busy_w, self.idle_w, self.pue, self.electricity, self.rent):
            if estimate.value is None:
                return estimate.reason
        return None


class _Case(NamedTuple):
    """One set of numbers: money, and the costs of a month."""

    price: float
    residual: float
    fixed: float  # per month, whatever the utilisation
    idle: float  # electricity per month if no GPU works
    busy: float  # what electricity costs more per month if all work
    rent: float  # per month if all work
    rate: float  # interest per month
    months: int

    def own(self, utilisation: float, months: int) -> float:
        running = self.fixed + self.idle + utilisation * self.busy
        end = self.residual * (1 + self.rate) ** -months if months == self.months else 0.0
        return self.price + running * self.months_of_money(months) - end

    def rented(self, utilisation: float, months: int) -> float:
        return utilisation * self.rent * self.months_of_money(months)

    def months_of_money(self, months: int) -> float:
        """Return what 1 at the end of each month is worth on the first day."""
        if not self.rate:
            return float(months)
        return (1 - (1 + self.rate) ** -months) / self.rate

    def break_even_utilisation(self) -> float | None:
        """Return the share of the hours at which both cost the same; None if renting costs less at any."""
        slope = (self.rent - self.busy) * self.months_of_money(self.months)
        at_rest = self.own(0.0, self.months)
        if at_rest <= 0:
            return 0.0
        return at_rest / slope if slope > 0 else None

    def break_even_month(self, utilisation: float) -> float | None:
        """Return the first month by whose end buying has cost no more; None if there is none in the life."""
        for month in range(1, self.months + 1):
            if self.own(utilisation, month) <= self.rented(utilisation, month):
                return float(month)
        return None


def buy_or_rent(
    ownership: Ownership,
    *,
    path: str,
    prices: Prices,
    terms: Terms = "on-demand",
    rent_per_gpu_hour: Range | None = None,
) -> BuyOrRent:
    """Return the comparison; `rent_per_gpu_hour` replaces the file's and the catalogue's."""
    currency = ownership.currency or _USD
    inputs = _inputs(ownership, prices, terms, rent_per_gpu_hour, currency)
    reason = inputs.unknown_reason
    cases = None if reason is not None else {bound: _case(ownership, inputs, bound) for bound in _FAVOURED}
    not_counted = tuple(item for item, field in _YEARLY.items() if getattr(ownership, field) is None)
    notes = _notes(ownership, not_counted, terms, is_rent_given=rent_per_gpu_hour is not None)
    utilisation = ownership.utilisation
    return BuyOrRent(
        path=path,
        currency=currency,
        num_gpus=ownership.num_gpus,
        gpu=ownership.gpu,
        life_months=ownership.life_months,
        utilisation=utilisation,
        price=ownership.price,
        residual_value=ownership.residual_value or exact(0.0),
        interest_per_year=ownership.interest_per_year or 0.0,
        costs=tuple(_costs(ownership, inputs)),
        not_counted=not_counted,
        own_per_gpu_hour=_own_per_hour(ownership, cases, reason),
        rent_per_gpu_hour=inputs.rent,
        break_even_utilisation=_break_even_utilisation(cases, reason),
        break_even_month=_break_even_month(cases, utilisation, reason),
        own_total=_total(cases, utilisation, reason, is_owned=True),
        rent_total=_total(cases, utilisation, reason, is_owned=False),
        verdict=_verdict(cases, utilisation),
        spare_per_year=_spare_per_year(cases, utilisation, not_counted),
        notes=tuple(notes),
    )


def _inputs(
    ownership: Ownership, prices: Prices, terms: Terms, rent_per_gpu_hour: Range | None, currency: str
) -> _Inputs:
    sources = {"power": "as given", "electricity": "as given", "rent": "as given"}
    gpu = gpu_named(ownership.gpu) if ownership.gpu is not None else None
    if ownership.power_w_per_gpu is not None:
        busy_w = ownership.power_w_per_gpu
    elif ownership.gpu is None:
        busy_w = unknown("the power is unknown (give power_w_per_gpu, or gpu)")
    else:
        busy_w = product(busy_power(gpu, prices), of_range(prices.host))
        sources["power"] = f"assumed share of the power limit of {ownership.gpu}, with its server"
    if ownership.idle_power_w_per_gpu is not None:
        idle_w = ownership.idle_power_w_per_gpu
    elif ownership.power_w_per_gpu is not None:
        share = prices.idle_power_share.typical / prices.busy_power_share.typical
        idle_w = product(ownership.power_w_per_gpu, exact(share, "assumed"))
        sources["power"] += f", when idle {share:.0%} of it"
    else:
        idle_w = product(idle_power(gpu, prices), of_range(prices.host))
    return _Inputs(
        busy_w=busy_w,
        idle_w=idle_w if busy_w.value is not None else busy_w,
        pue=ownership.pue or of_range(prices.pue),
        electricity=_electricity(ownership, prices, currency, sources),
        rent=_rent(ownership, prices, terms, rent_per_gpu_hour, currency, sources),
        sources=sources,
    )


def _electricity(ownership: Ownership, prices: Prices, currency: str, sources: dict[str, str]) -> Estimate:
    if ownership.electricity_per_kwh is not None:
        return ownership.electricity_per_kwh
    if currency != _USD:
        return unknown(f"the price of electricity in {currency} is unknown (give electricity_per_kwh)")
    sources["electricity"] = f"the catalogue's {prices.electricity.typical:g} USD per kWh"
    return of_range(prices.electricity)


def _rent(
    ownership: Ownership,
    prices: Prices,
    terms: Terms,
    rent_per_gpu_hour: Range | None,
    currency: str,
    sources: dict[str, str],
) -> Estimate:
    if rent_per_gpu_hour is not None:
        return of_range(rent_per_gpu_hour)
    if ownership.rent_per_gpu_hour is not None:
        return ownership.rent_per_gpu_hour
    if currency != _USD:
        return unknown(f"the rent in {currency} is unknown (give rent_per_gpu_hour)")
    price = prices.gpu(ownership.gpu, terms) if ownership.gpu is not None else None
    if price is None:
        named = f"`{ownership.gpu}` {terms}" if ownership.gpu is not None else "these GPUs"
        return unknown(f"the rent of {named} is unknown (give rent_per_gpu_hour, or pass --gpu-price)")
    sources["rent"] = f"the catalogue's for {terms}"
    return of_range(price)


def _case(ownership: Ownership, inputs: _Inputs, bound: _Bound) -> _Case:
    num_gpu_hours = ownership.num_gpus * HOURS_PER_MONTH

    def cost(estimate: Estimate) -> float:
        """Return the value of a cost of owning, which is low where buying is favoured."""
        value = {"typical": estimate.value, "buying": estimate.low, "renting": estimate.high}[bound]
        assert value is not None
        return value

    def gain(estimate: Estimate) -> float:
        """Return the value of what buying saves, which is high where buying is favoured."""
        value = {"typical": estimate.value, "buying": estimate.high, "renting": estimate.low}[bound]
        assert value is not None
        return value

    per_watt = num_gpu_hours / 1000 * cost(inputs.pue) * cost(inputs.electricity)
    idle_w, busy_w = cost(inputs.idle_w), cost(inputs.busy_w)
    yearly = [getattr(ownership, field) for field in _YEARLY.values()]
    fixed = sum(cost(amount) for amount in yearly if amount is not None) / 12
    residual = ownership.residual_value or exact(0.0)
    return _Case(
        price=cost(ownership.price),
        residual=gain(residual),
        fixed=fixed,
        idle=per_watt * idle_w,
        busy=per_watt * (busy_w - idle_w),
        rent=num_gpu_hours * gain(inputs.rent),
        rate=(1 + (ownership.interest_per_year or 0.0)) ** (1 / 12) - 1,
        months=ownership.life_months,
    )


def _costs(ownership: Ownership, inputs: _Inputs) -> list[OwnershipCost]:
    costs = [OwnershipCost(item="electricity", per_year=_energy_per_year(ownership, inputs), source=_source(inputs))]
    for item, field in _YEARLY.items():
        amount = getattr(ownership, field)
        if amount is not None:
            costs.append(OwnershipCost(item=item, per_year=amount, source="as given"))
    return costs


def _source(inputs: _Inputs) -> str:
    return f"power: {inputs.sources['power']}; price: {inputs.sources['electricity']}"


def _energy_per_year(ownership: Ownership, inputs: _Inputs) -> Estimate:
    if ownership.utilisation is None:
        return unknown("the utilisation is unknown (give utilisation)")
    working = product(exact(ownership.utilisation), inputs.busy_w)
    resting = product(exact(1 - ownership.utilisation), inputs.idle_w)
    kilohours = exact(ownership.num_gpus * HOURS_PER_MONTH * 12 / 1000)
    return product(kilohours, total([working, resting]), inputs.pue, inputs.electricity)


def _bounded(values: Mapping[_Bound, float | None]) -> Estimate:
    """Return the estimate with these values; a bound is None if the inputs that favour one side have no value."""
    known = [value for value in values.values() if value is not None]
    has_all = len(known) == len(values)
    return Estimate(
        value=values["typical"],
        low=min(known),
        high=max(known) if has_all else None,
        provenance="predicted",
    )


def _break_even_utilisation(cases: Mapping[_Bound, _Case] | None, reason: str | None) -> Estimate:
    if cases is None:
        return unknown(reason or "")
    values = {bound: case.break_even_utilisation() for bound, case in cases.items()}
    if values["typical"] is None:
        return unknown("renting costs less at any utilisation: an hour costs less than the electricity for it")
    return _bounded(values)


def _break_even_month(cases: Mapping[_Bound, _Case] | None, utilisation: float | None, reason: str | None) -> Estimate:
    if cases is None or utilisation is None:
        return unknown(reason or "the utilisation is unknown (give utilisation)")
    months = {bound: case.break_even_month(utilisation) for bound, case in cases.items()}
    if months["typical"] is None:
        return unknown(f"buying costs more than renting in each of the {cases['typical'].months} months of the life")
    return _bounded(months)


def _own_per_hour(ownership: Ownership, cases: Mapping[_Bound, _Case] | None, reason: str | None) -> Estimate:
    if cases is None or not ownership.utilisation:
        return unknown(reason or "the utilisation is unknown (give utilisation)")
    utilisation = ownership.utilisation
    values: dict[_Bound, float | None] = {}
    for bound, case in cases.items():
        hours = ownership.num_gpus * HOURS_PER_MONTH * utilisation * case.months_of_money(case.months)
        values[bound] = case.own(utilisation, case.months) / hours
    return _bounded(values)


def _total(
    cases: Mapping[_Bound, _Case] | None, utilisation: float | None, reason: str | None, *, is_owned: bool
) -> Estimate:
    if cases is None or utilisation is None:
        return unknown(reason or "the utilisation is unknown (give utilisation)")
    values: dict[_Bound, float | None] = {
        bound: case.own(utilisation, case.months) if is_owned else case.rented(utilisation, case.months)
        for bound, case in cases.items()
    }
    return _bounded(values)


def _savings(cases: Mapping[_Bound, _Case], utilisation: float) -> list[float]:
    """Return what buying saves over the life, in each case."""
    return [case.rented(utilisation, case.months) - case.own(utilisation, case.months) for case in cases.values()]


def _verdict(
    cases: Mapping[_Bound, _Case] | None, utilisation: float | None
) -> Literal["buy", "rent", "undecided", "unknown"]:
    if cases is None or utilisation is None:
        return "unknown"
    savings = _savings(cases, utilisation)
    if all(saving > 0 for saving in savings):
        return "buy"
    return "rent" if all(saving < 0 for saving in savings) else "undecided"


def _spare_per_year(
    cases: Mapping[_Bound, _Case] | None, utilisation: float | None, not_counted: Sequence[str]
) -> float | None:
    """Return what the items that were not counted may cost per year, in the case that favours renting."""
    if cases is None or utilisation is None or not not_counted:
        return None
    case = cases["renting"]
    saving = case.rented(utilisation, case.months) - case.own(utilisation, case.months)
    return saving / case.months_of_money(case.months) * 12 if saving > 0 else None


def _notes(ownership: Ownership, not_counted: Sequence[str], terms: Terms, *, is_rent_given: bool) -> list[str]:
    notes = []
    if ownership.currency is None:
        notes.append("the file names no currency: USD is assumed")
    if not_counted:
        notes.append(f"not given, so not counted: {', '.join(not_counted)}; owning costs more by them")
    if ownership.pue is None:
        notes.append("no pue is given: the catalogue's is assumed")
    if ownership.residual_value is None:
        notes.append("no residual_value is given: the hardware is worth nothing at the end")
    if ownership.interest_per_year is None:
        notes.append("no interest_per_year is given: money costs nothing")
    if ownership.rent_per_gpu_hour is None and not is_rent_given and terms != "reserved":
        notes.append("a machine that is bought is comparable to one that is reserved: --terms reserved")
    return notes
