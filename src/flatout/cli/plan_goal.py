"""What `flatout plan --goal` answers: the plan's times with the prices of the catalogue or the user's own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flatout.cli.progress import Progress
from flatout.records.cost import Estimate as Cost
from flatout.records.goal import Goal, GoalAnswer, GoalEstimate, GoalOption

if TYPE_CHECKING:
    from flatout.catalog.carbon import GridCarbon
    from flatout.catalog.prices import Prices, Range, Terms
    from flatout.plan.goal import Attempt
    from flatout.plan.search import Setting
    from flatout.records.cost import Bill
    from flatout.records.plan import Plan

MOST_OPTIONS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What GPU time costs."""

    prices: Prices
    terms: Terms
    usd_per_gpu_hour: Range | None
    grid: GridCarbon | None


def wanted_goal(
    text: str | None,
    global_batch: int,
    seq: int,
    gpu_price: float | None,
    prices: Path | None,
    terms: str,
    region: str | None,
) -> tuple[Goal, Rates] | None:
    """UsageError: no goal, or prices without one."""
    from flatout.errors import UsageError

    if text is None:
        given = {"--gpu-price": gpu_price, "--prices": prices, "--region": region}
        for name, value in given.items():
            if value is not None:
                raise UsageError(f"{name} is for --goal, which is not given", hint='--goal "100B tokens in 30 days"')
        return None
    from flatout.catalog.carbon import grid_carbon
    from flatout.catalog.prices import TERMS, all_prices, exactly, read_prices
    from flatout.plan.goal import parse_goal

    known = next((each for each in TERMS if each == terms), None)
    if known is None:
        raise UsageError(f"--terms must be one of {', '.join(TERMS)}, but is `{terms}`")
    if gpu_price is not None and not math.isfinite(gpu_price):
        raise UsageError(f"--gpu-price must be a number of USD, but is {gpu_price}", hint="--gpu-price 2.10")
    rates = Rates(
        prices=read_prices(prices) if prices else all_prices(),
        terms=known,
        usd_per_gpu_hour=exactly(gpu_price, "--gpu-price") if gpu_price is not None else None,
        grid=grid_carbon(region) if region else None,
    )
    return parse_goal(text, global_batch=global_batch, seq=seq), rates


def with_goal(plan: Plan, setting: Setting, wanted: tuple[Goal, Rates] | None, fixed: tuple[str, ...]) -> Plan:
    """The plan with the goal's answer, where one is wanted."""
    if wanted is None:
        return plan
    import msgspec

    return msgspec.structs.replace(plan, goal=answer(setting, *wanted, fixed))


def answer(setting: Setting, goal: Goal, rates: Rates, fixed: tuple[str, ...]) -> GoalAnswer:
    """The fewest GPUs of the cluster that reach the goal; where none do, all of them, and the nearest that works.

    InputError: no layout fits on the cluster.
    """
    from flatout.catalog.interruptions import interruptions
    from flatout.plan.goal import attempt, attempts

    published = interruptions()
    given = setting.job.cluster.num_gpus
    has_target = goal.days is not None or goal.usd is not None
    tried = []
    if has_target:
        with Progress("numbers of GPUs") as progress:
            for one in attempts(setting, goal, published, fixed):
                tried.append(one)
                progress.show(len(tried), max(MOST_OPTIONS, len(tried)))
                if one.num_gpus >= given and _is_reached(one, setting, goal, rates):
                    break
    if not any(one.num_gpus == given for one in tried):
        tried.append(attempt(setting, goal, published, given, fixed))
    tried.sort(key=lambda one: one.num_gpus)
    reaching = [one for one in tried if _is_reached(one, setting, goal, rates)]
    within = [one for one in reaching if one.num_gpus <= given]
    chosen = within[0] if within else next(one for one in tried if one.num_gpus == given)
    return _answer(chosen, tried, reaching, setting, goal, rates)


def _answer(
    chosen: Attempt, tried: list[Attempt], reaching: list[Attempt], setting: Setting, goal: Goal, rates: Rates
) -> GoalAnswer:
    from flatout.report.plan_text import layout_text

    gpu = setting.job.cluster.gpu
    is_reached = chosen in reaching
    low, typical, high = (_bill(chosen, days, gpu, rates) for days in _extremes(chosen))
    price = rates.usd_per_gpu_hour or rates.prices.gpu(gpu, rates.terms)
    notes = []
    if price is None:
        notes.append(f"No price of {gpu} ({rates.terms}) is known: --gpu-price or --prices gives one.")
    if rates.grid is None:
        notes.append("The grid is not known, so carbon spans all of the catalogue: --region names yours.")
    return GoalAnswer(
        goal=goal,
        is_reached=is_reached,
        nearest="" if is_reached else _nearest(chosen, reaching, setting, goal, rates),
        num_gpus=chosen.num_gpus,
        global_batch=setting.job.global_batch,
        num_steps=chosen.num_steps,
        layout=layout_text(chosen.planned.layout),
        days=chosen.days,
        gpu_hours=GoalEstimate(
            value=chosen.days.value * 24 * chosen.num_gpus,
            low=chosen.days.low * 24 * chosen.num_gpus,
            high=chosen.days.high * 24 * chosen.num_gpus,
            source="GPUs x days",
        ),
        usd=_spread(low.rent_usd, typical.rent_usd, high.rent_usd, 1.0, _price_source(price, rates.terms)),
        energy_mwh=_spread(
            low.kwh,
            typical.kwh,
            high.kwh,
            1e-3,
            "assumed: share of the power limit, host and PUE",
        ),
        carbon_t=_carbon(low, typical, high, rates.grid),
        interruptions=chosen.interruptions,
        effective_share=chosen.effective_share,
        options=_options(chosen, tried, setting, goal, rates),
        notes=tuple(notes),
    )


def _price_source(price: Range | None, terms: str) -> str:
    if price is None:
        return ""
    when = f", {price.date}" if price.date else ""
    return f"${price.low:g} to ${price.high:g} a GPU-hour, {terms}{when}: {price.provenance}"


def _extremes(one: Attempt) -> tuple[float, float, float]:
    return one.days.low, one.days.value, one.days.high


def _bill(one: Attempt, days: float, gpu: str, rates: Rates) -> Bill:
    from flatout.cost import bill

    return bill(
        gpu,
        one.num_gpus,
        days * 86400.0,
        prices=rates.prices,
        terms=rates.terms,
        usd_per_gpu_hour=rates.usd_per_gpu_hour,
        grid=rates.grid,
    )


def _spread(low: Cost, typical: Cost, high: Cost, scale: float, source: str) -> GoalEstimate | None:
    """Both extremes together; None where it is unknown."""
    if typical.value is None or low.low is None or high.high is None:
        return None
    return GoalEstimate(value=typical.value * scale, low=low.low * scale, high=high.high * scale, source=source)


def _carbon(low: Bill, typical: Bill, high: Bill, grid: GridCarbon | None) -> GoalEstimate | None:
    """kg to t. Without a grid, between the cleanest and the dirtiest one of the catalogue."""
    if grid is not None:
        source = f"{grid.g_per_kwh:g} g/kWh: {grid.name}, {grid.year}"
        return _spread(low.kg_co2, typical.kg_co2, high.kg_co2, 1e-3, source)
    from flatout.catalog.carbon import all_grids

    energy = _spread(low.kwh, typical.kwh, high.kwh, 1.0, "")
    if energy is None:
        return None
    grids = sorted(each.g_per_kwh for each in all_grids())
    cleanest, middle, dirtiest = grids[0], grids[len(grids) // 2], grids[-1]
    return GoalEstimate(
        value=energy.value * middle / 1e6,
        low=energy.low * cleanest / 1e6,
        high=energy.high * dirtiest / 1e6,
        source=f"{cleanest:g} to {dirtiest:g} g/kWh: any of {len(grids)} grids (--region)",
    )


def _is_reached(one: Attempt, setting: Setting, goal: Goal, rates: Rates) -> bool:
    if goal.days is not None and one.days.value > goal.days:
        return False
    if goal.usd is None:
        return True
    cost = _bill(one, one.days.value, setting.job.cluster.gpu, rates).rent_usd.value
    return cost is not None and cost <= goal.usd


def _nearest(chosen: Attempt, reaching: list[Attempt], setting: Setting, goal: Goal, rates: Rates) -> str:
    """What of the goal would have to give way."""
    from flatout.report.goal_text import calendar, usd
    from flatout.report.phrases import counted

    cost = _bill(chosen, chosen.days.value, setting.job.cluster.gpu, rates).rent_usd.value
    alone = f"{counted(chosen.num_gpus, 'GPU')} take {calendar(chosen.days.value)}"
    alone += f" and {usd(cost)}" if cost is not None and goal.usd is not None else ""
    if reaching:
        first = reaching[0]
        return f"{counted(first.num_gpus, 'GPU')} do it in {calendar(first.days.value)}; {alone}"
    if goal.usd is not None and (goal.days is None or chosen.days.value <= goal.days):
        return f"{alone}; no number of GPUs that was tried costs less than {usd(goal.usd)}"
    return f"no number of GPUs that was tried does it with this global batch; {alone}"


def _options(
    chosen: Attempt, tried: list[Attempt], setting: Setting, goal: Goal, rates: Rates
) -> tuple[GoalOption, ...]:
    from flatout.report.plan_text import layout_text

    at = tried.index(chosen)
    first = max(0, min(at - MOST_OPTIONS // 2, len(tried) - MOST_OPTIONS))
    options = []
    for one in tried[first : first + MOST_OPTIONS]:
        low, typical, high = (_bill(one, days, setting.job.cluster.gpu, rates) for days in _extremes(one))
        options.append(
            GoalOption(
                num_gpus=one.num_gpus,
                step_time_s=one.planned.step_time_s,
                layout=layout_text(one.planned.layout),
                days=one.days,
                usd=_spread(low.rent_usd, typical.rent_usd, high.rent_usd, 1.0, ""),
                is_reached=_is_reached(one, setting, goal, rates),
            )
        )
    return tuple(options)
