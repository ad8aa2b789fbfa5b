"""Answer `flatout plan --goal` from the plan's times and the prices of the catalogue or the user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from flatout.catalog.carbon import GridCarbon, all_grids, grid_carbon
from flatout.catalog.interruptions import interruptions
from flatout.catalog.prices import TERMS, Prices, Range, Terms, all_prices, exactly, read_prices
from flatout.cost import bill
from flatout.errors import InputError, UsageError
from flatout.plan.goal import GoalCandidate, usable_context
from flatout.plan.goal import candidate as goal_candidate
from flatout.plan.goal import candidates as goal_candidates
from flatout.plan.goal_probability import PricePerHour, probability
from flatout.plan.goal_text import parse_goal
from flatout.plan.search import plan as search
from flatout.plan.search_context import SearchContext
from flatout.records.cost import Bill
from flatout.records.cost import Estimate as Cost
from flatout.records.goal import Goal, GoalAnswer, GoalEstimate, GoalOption
from flatout.records.plan import Plan
from flatout.report.goal_text import calendar, usd
from flatout.report.phrases import counted
from flatout.report.plan_text import layout_text
from flatout.report.progress import ProgressLine

MOST_OPTIONS = 8
LIKELY = 0.9  # probability above which a goal counts as likely to be reached
S_PER_DAY = 86_400.0
_EXAMPLE = '--goal "100B tokens in 30 days"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The prices of GPU time."""

    prices: Prices
    terms: Terms
    usd_per_gpu_hour: Range | None
    grid: GridCarbon | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GoalRequest:
    """A goal and the prices for answering it, as given by the user."""

    text: str | None
    usd_per_gpu_hour: float | None = None
    prices: Path | None = None
    terms: str = "on-demand"
    region: str | None = None


def requested_goal(request: GoalRequest, *, global_batch: int, seq: int) -> tuple[Goal, Rates] | None:
    """Return the goal and its rates; None without a goal. Raises UsageError for prices without a goal."""
    if request.text is None:
        options = {
            "--gpu-price": request.usd_per_gpu_hour,
            "--prices": request.prices,
            "--region": request.region,
        }
        for name, value in options.items():
            if value is not None:
                raise UsageError(f"{name} is for --goal, which is not given", hint=_EXAMPLE)
        return None
    terms = next((name for name in TERMS if name == request.terms), None)
    if terms is None:
        raise UsageError(f"--terms must be one of {', '.join(TERMS)}, but is `{request.terms}`")
    price = request.usd_per_gpu_hour
    rates = Rates(
        prices=read_prices(request.prices) if request.prices else all_prices(),
        terms=terms,
        usd_per_gpu_hour=exactly(price, "--gpu-price") if price is not None else None,
        grid=grid_carbon(request.region) if request.region else None,
    )
    return parse_goal(request.text, global_batch=global_batch, seq=seq), rates


def planned(
    context: SearchContext,
    request: tuple[Goal, Rates] | None,
    *,
    num_layouts: int,
    fixed: tuple[str, ...],
    note: Callable[[str], object],
) -> tuple[Plan, SearchContext]:
    """Return the plan and its context.

    For a goal, the context is one of fewer GPUs, with a note, if no layout divides all GPUs of the cluster. Raises
    InputError if no layout is valid, or none fits.
    """
    try:
        return search(context, num_layouts=num_layouts, fixed=fixed), context
    except InputError:
        if request is None:
            raise
    usable = usable_context(context, fixed)
    note(
        f"note: no layout of `{context.spec.workload.name}` that fits divides {context.spec.cluster.num_gpus:,} GPUs: "
        f"the plan uses {usable.spec.cluster.num_gpus:,} of them"
    )
    return search(usable, num_layouts=num_layouts, fixed=fixed), usable


def with_goal(plan: Plan, context: SearchContext, request: tuple[Goal, Rates] | None, fixed: tuple[str, ...]) -> Plan:
    """Return the plan with the goal's answer if there is a goal. Raises InputError if no layout fits."""
    if request is None:
        return plan
    goal, rates = request
    return msgspec.structs.replace(plan, goal=_GoalSearch(context, goal, rates, fixed).answer())


class _GoalSearch:
    """Finds the fewest GPUs that reach a goal, and their cost."""

    def __init__(self, context: SearchContext, goal: Goal, rates: Rates, fixed: tuple[str, ...]) -> None:
        self._context = context
        self._goal = goal
        self._rates = rates
        self._fixed = fixed
        self._gpu = context.spec.cluster.gpu
        self._num_gpus = context.spec.cluster.num_gpus
        self._price = rates.usd_per_gpu_hour or rates.prices.gpu(self._gpu, rates.terms)
        candidates = self._candidates()
        self._candidates_by_size = sorted(candidates, key=lambda candidate: candidate.num_gpus)
        self._reaching = [candidate for candidate in self._candidates_by_size if self._is_reached(candidate)]

    def answer(self) -> GoalAnswer:
        """Answer with the fewest GPUs of the cluster that reach the goal.

        If none do, answer with all of them and name the nearest number that does.
        """
        in_cluster = self._reaching_in_cluster()
        if in_cluster:
            return self._answer(in_cluster[0])
        return self._answer(
            next(candidate for candidate in self._candidates_by_size if candidate.num_gpus == self._num_gpus)
        )

    def _reaching_in_cluster(self) -> list[GoalCandidate]:
        """Return the candidates of the cluster that reach the goal, fewest GPUs first."""
        return [candidate for candidate in self._reaching if candidate.num_gpus <= self._num_gpus]

    def _candidates(self) -> list[GoalCandidate]:
        """Evaluate the goal on every number of GPUs of the cluster, and if none reaches it, on larger numbers."""
        published = interruptions()
        candidates: list[GoalCandidate] = []
        has_target = self._goal.days is not None or self._goal.usd is not None
        if has_target:
            with ProgressLine("numbers of GPUs") as progress:
                is_reached = False
                for candidate in goal_candidates(self._context, self._goal, published, self._fixed):
                    if candidate.num_gpus > self._num_gpus and is_reached:
                        break
                    candidates.append(candidate)
                    progress.show(len(candidates), max(MOST_OPTIONS, len(candidates)))
                    is_reached = is_reached or self._is_reached(candidate)
        if not any(candidate.num_gpus == self._num_gpus for candidate in candidates):
            candidates.append(goal_candidate(self._context, self._goal, published, self._num_gpus, self._fixed))
        return candidates

    def _is_reached(self, candidate: GoalCandidate) -> bool:
        goal = self._goal
        if goal.days is not None and candidate.days.value > goal.days:
            return False
        if goal.usd is None:
            return True
        cost_usd = self._typical_usd(candidate)
        return cost_usd is not None and cost_usd <= goal.usd

    def _bill(self, candidate: GoalCandidate, days: float) -> Bill:
        return bill(
            self._gpu,
            candidate.num_gpus,
            days * S_PER_DAY,
            prices=self._rates.prices,
            terms=self._rates.terms,
            usd_per_gpu_hour=self._rates.usd_per_gpu_hour,
            grid=self._rates.grid,
        )

    def _bills(self, candidate: GoalCandidate) -> tuple[Bill, Bill, Bill]:
        """Return the bills of the shortest, the typical and the longest duration."""
        days = candidate.days
        return self._bill(candidate, days.low), self._bill(candidate, days.value), self._bill(candidate, days.high)

    def _typical_usd(self, candidate: GoalCandidate) -> float | None:
        return self._bill(candidate, candidate.days.value).rent_usd.value

    def _answer(self, chosen: GoalCandidate) -> GoalAnswer:
        is_reached = chosen in self._reaching
        low, typical, high = self._bills(chosen)
        price = self._price
        days = chosen.days
        cheapest, fastest, likely = self._named()
        return GoalAnswer(
            goal=self._goal,
            is_reached=is_reached,
            nearest="" if is_reached else self._nearest(chosen),
            num_gpus=chosen.num_gpus,
            global_batch=self._context.spec.global_batch,
            num_steps=chosen.num_steps,
            layout=layout_text(chosen.planned.layout),
            days=days,
            gpu_hours=GoalEstimate(
                value=days.value * 24 * chosen.num_gpus,
                low=days.low * 24 * chosen.num_gpus,
                high=days.high * 24 * chosen.num_gpus,
                source="GPUs x days",
            ),
            usd=_spread(low.rent_usd, typical.rent_usd, high.rent_usd, source=_price_source(price, self._rates.terms)),
            energy_mwh=_spread(
                low.kwh, typical.kwh, high.kwh, scale=1e-3, source="assumed: share of the power limit, host and PUE"
            ),
            carbon_t=_carbon(low, typical, high, self._rates.grid),
            interruptions=chosen.interruptions,
            effective_share=chosen.effective_share,
            options=self._options([each for each in (chosen, cheapest, fastest, likely) if each is not None]),
            notes=self._notes(price),
            probability=self._probability(chosen),
            cheapest=cheapest.num_gpus if cheapest else None,
            fastest=fastest.num_gpus if fastest else None,
            fewest_likely=likely.num_gpus if likely else None,
        )

    def _named(self) -> tuple[GoalCandidate | None, GoalCandidate | None, GoalCandidate | None]:
        """Return the cheapest, the fastest, and the smallest likely candidate of the cluster that reaches the goal."""
        in_cluster = self._reaching_in_cluster()
        if not in_cluster:
            return None, None, None
        # All GPUs have the same price, so the cheapest candidate uses the fewest GPU-hours.
        cheapest = min(in_cluster, key=lambda candidate: candidate.num_gpus * candidate.days.value)
        fastest = min(in_cluster, key=lambda candidate: candidate.days.value)
        likely = next((each for each in in_cluster if (self._probability(each) or 0.0) >= LIKELY), None)
        return cheapest, fastest, likely

    def _probability(self, candidate: GoalCandidate) -> float | None:
        price = self._price
        per_hour = PricePerHour(price.low, price.typical, price.high) if price is not None else None
        return probability(candidate, days=self._goal.days, usd=self._goal.usd, price=per_hour)

    def _notes(self, price: Range | None) -> tuple[str, ...]:
        notes = []
        num_tried = sum(candidate.num_gpus <= self._num_gpus for candidate in self._candidates_by_size)
        if num_tried > 1:
            notes.append(
                f"All numbers of whole nodes up to {self._num_gpus:,} GPUs that could do it in time were tried; of "
                f"these, {num_tried} have a layout that divides the model and the global batch, and that fits."
            )
        if price is None:
            notes.append(f"No price of {self._gpu} ({self._rates.terms}) is known: --gpu-price or --prices sets one.")
        if self._rates.grid is None:
            notes.append("The grid is unknown, so carbon spans all grids of the catalogue: --region names yours.")
        return tuple(notes)

    def _nearest(self, chosen: GoalCandidate) -> str:
        """Return a sentence that says which part of the goal would have to change."""
        goal = self._goal
        cost_usd = self._typical_usd(chosen)
        alone = f"{counted(chosen.num_gpus, 'GPU')} take {calendar(chosen.days.value)}"
        if cost_usd is not None and goal.usd is not None:
            alone += f" and {usd(cost_usd)}"
        if self._reaching:
            smallest = self._reaching[0]
            return f"{counted(smallest.num_gpus, 'GPU')} reach it in {calendar(smallest.days.value)}; {alone}"
        is_in_time = goal.days is None or chosen.days.value <= goal.days
        if goal.usd is not None and is_in_time:
            return f"{alone}; no number of GPUs that was tried costs less than {usd(goal.usd)}"
        return f"no number of GPUs that was tried reaches the goal with this global batch; {alone}"

    def _options(self, named: list[GoalCandidate]) -> tuple[GoalOption, ...]:
        """Return the numbers of GPUs around the chosen one, which is the first of the named ones, and all of these."""
        candidates = self._candidates_by_size
        first = candidates.index(named[0]) - MOST_OPTIONS // 2
        first = max(0, min(first, len(candidates) - MOST_OPTIONS))
        shown = candidates[first : first + MOST_OPTIONS]
        for candidate in named:
            if candidate not in shown:
                shown.append(candidate)
        shown.sort(key=lambda candidate: candidate.num_gpus)
        return tuple(self._option(candidate) for candidate in shown)

    def _option(self, candidate: GoalCandidate) -> GoalOption:
        low, typical, high = self._bills(candidate)
        return GoalOption(
            num_gpus=candidate.num_gpus,
            step_time_s=candidate.planned.step_time_s,
            layout=layout_text(candidate.planned.layout),
            days=candidate.days,
            usd=_spread(low.rent_usd, typical.rent_usd, high.rent_usd, source=""),
            is_reached=self._is_reached(candidate),
            probability=self._probability(candidate),
        )


def _price_source(price: Range | None, terms: str) -> str:
    if price is None:
        return ""
    when = f", {price.date}" if price.date else ""
    return f"${price.low:g} to ${price.high:g} per GPU-hour, {terms}{when}: {price.provenance}"


def _spread(low: Cost, typical: Cost, high: Cost, *, scale: float = 1.0, source: str) -> GoalEstimate | None:
    """Combine both extremes; None if a cost is unknown."""
    if typical.value is None or low.low is None or high.high is None:
        return None
    return GoalEstimate(value=typical.value * scale, low=low.low * scale, high=high.high * scale, source=source)


def _carbon(low: Bill, typical: Bill, high: Bill, grid: GridCarbon | None) -> GoalEstimate | None:
    """Return tonnes of CO2; without a grid, a range from the catalogue's cleanest grid to its dirtiest."""
    if grid is not None:
        source = f"{grid.g_per_kwh:g} g/kWh: {grid.name}, {grid.year}"
        return _spread(low.kg_co2, typical.kg_co2, high.kg_co2, scale=1e-3, source=source)
    energy = _spread(low.kwh, typical.kwh, high.kwh, source="")
    if energy is None:
        return None
    intensities = sorted(each.g_per_kwh for each in all_grids())
    cleanest, middle, dirtiest = intensities[0], intensities[len(intensities) // 2], intensities[-1]
    return GoalEstimate(
        value=energy.value * middle / 1e6,
        low=energy.low * cleanest / 1e6,
        high=energy.high * dirtiest / 1e6,
        source=f"{cleanest:g} to {dirtiest:g} g/kWh: any of {len(intensities)} grids (--region)",
    )
