"""Judge pairs of trials: better, worse, equivalent or undecided, at fixed interim analyses with a fixed error rate.

`judge` replays the analyses from the first one, and stops at the first that decides: asking again with more pairs does
not change a verdict, and asking after each pair does not raise the error rate. Over all analyses together, claims of
better or worse are false in at most 5 % of comparisons of identical arms, and claims of equivalence in at most 5 % of
comparisons whose effect is 1 % or more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from flatout.errors import UsageError
from flatout.records.trial import Pair
from flatout.records.verdict import NoiseFloor, Objective, Verdict, VerdictName
from flatout.units import percent
from flatout.verdict.corrected import corrected
from flatout.verdict.cost import TIMES
from flatout.verdict.interim import DEFAULT_INTERIM, InterimAnalysis, InterimPlan
from flatout.verdict.invalid_pairs import mark_invalid
from flatout.verdict.paired import Estimate, estimate
from flatout.verdict.plain_cost import PlainCost, are_spikes_rare, trial_cost
from flatout.verdict.student import t_quantile

MIN_EFFECT = 0.01
MIN_PAIRS = 3  # number of pairs needed to estimate a slope, a mean and a spread
# The spread of fewer pairs than this may be small by chance (four runs that happened to take the same of two values):
# it is assumed to be at least the noise floor's, and without a noise floor the pairs are not judged. The noise floor
# comes from earlier runs, so it is additional information on the spread.
TRUSTED_PAIRS = 6
OPPOSITE_LEVEL = 0.05
HOPE_LEVEL = 0.1  # one-sided


def judge(
    pairs: Sequence[Pair],
    *,
    objective: Objective = "step_s",
    interim: InterimPlan = DEFAULT_INTERIM,
    floor: NoiseFloor | None = None,
    min_effect: float = MIN_EFFECT,
    is_last: bool = False,
    fresh_after: int | None = None,
) -> Verdict:
    """Return the verdict on the candidate of `pairs`, which are in the order in which they ran.

    `is_last` means that no more pairs will come, for a reason other than their result (a budget): the pairs since the
    last analysis are then judged too, at the level of the analysis that was not reached. `fresh_after` is the index of
    the last trial that was used to choose the candidate. Raises UsageError if a pair is not newer: the best of many
    candidates looks good by chance in the trials by which it was chosen.
    """
    _check(pairs, min_effect, fresh_after)
    if floor is not None and floor.objective != objective:
        floor = None
    marked = mark_invalid(pairs, objective)
    positions = [position for position, pair in enumerate(marked) if pair.invalid_reason is None]
    counted = [marked[position] for position in positions]
    interim = interim if floor is not None else interim.starting_at(TRUSTED_PAIRS)
    due = _due(interim, len(counted), is_last, MIN_PAIRS if floor is not None else TRUSTED_PAIRS)
    name: VerdictName = "undecided"
    reason, found, interval, num_pairs = _too_few(len(counted), interim), None, None, len(counted)
    costs: list[tuple[PlainCost, PlainCost]] = []
    for analysis in due:
        costs += [_costs(pair, objective) for pair in counted[len(costs) : analysis.num_pairs]]
        num_pairs = analysis.num_pairs
        name, reason, found = _at(analysis, costs, [p.order for p in counted[:num_pairs]], objective, floor, min_effect)
        half = found.half_width(analysis.level)
        interval = (math.exp(found.mean - half), math.exp(found.mean + half))
        if name != "undecided":
            break
    used = counted[:num_pairs]
    following = interim.after(num_pairs)
    seen = marked if name == "undecided" else marked[: positions[num_pairs - 1] + 1]
    void = [pair.invalid_reason for pair in seen if pair.invalid_reason is not None]
    mean = math.exp(found.mean) if found is not None else _rough_speedup(used, objective)
    speedup = mean
    if found is not None and name in ("better", "worse"):
        # If a planned analysis had not decided, later analyses would have followed; after an analysis forced by a
        # budget, none.
        is_planned = any(analysis.num_pairs == num_pairs for analysis in interim.analyses)
        speedup = _quoted(found, interim.analyses if is_planned else due, costs, used, floor, min_effect)
    return Verdict(
        verdict=name,
        objective=objective,
        speedup=speedup,
        mean_speedup=mean,
        interval=interval,
        best_case=math.exp(found.mean + found.half_width(2 * HOPE_LEVEL)) if found is not None else None,
        error_rate=interim.error_rate,
        min_effect=min_effect,
        num_pairs=num_pairs,
        num_void=len(void),
        void_reasons=tuple(dict.fromkeys(void)),
        order=" ".join(pair.order for pair in used),
        next_analysis=None if name != "undecided" or is_last or following is None else following.num_pairs,
        reason=reason,
    )


def is_worth_more_pairs(verdict: Verdict) -> bool:
    """Whether more pairs can still change the verdict to `better`.

    Stopping if that is unlikely saves half of the trials that identical arms would take. It adds no false claim,
    because the verdict stays `undecided`, although with more pairs it might have become `equivalent` or `worse`.
    """
    if verdict.next_analysis is None:
        return False
    return verdict.best_case is None or verdict.best_case > 1 + verdict.min_effect


def _due(interim: InterimPlan, num_pairs: int, is_last: bool, min_pairs: int) -> list[InterimAnalysis]:
    """Return the analyses that are due after `num_pairs` pairs, and, if these are the last pairs, one of all pairs."""
    due = [analysis for analysis in interim.analyses if analysis.num_pairs <= num_pairs]
    reached = due[-1].num_pairs if due else 0
    following = interim.after(reached)
    if is_last and following is not None and num_pairs >= max(reached + 1, min_pairs):
        due.append(msgspec.structs.replace(following, num_pairs=num_pairs))
    return due


def _costs(pair: Pair, objective: Objective) -> tuple[PlainCost, PlainCost]:
    return trial_cost(pair.baseline, objective), trial_cost(pair.candidate, objective)


def _log_ratios(costs: Sequence[tuple[PlainCost, PlainCost]], *, drop_spikes: bool) -> list[float]:
    """Return the log of baseline cost over candidate cost for each pair: above 0, the candidate is better."""
    return [a.log(drop_spikes=drop_spikes) - b.log(drop_spikes=drop_spikes) for a, b in costs]


def _at(
    analysis: InterimAnalysis,
    costs: Sequence[tuple[PlainCost, PlainCost]],
    orders: Sequence[str],
    objective: Objective,
    floor: NoiseFloor | None,
    min_effect: float,
) -> tuple[VerdictName, str, Estimate]:
    """Return the claim made by this analysis, the reason, and the estimate."""
    drop_spikes = objective in TIMES and are_spikes_rare((a for a, _ in costs), (b for _, b in costs))
    found = estimate(_log_ratios(costs, drop_spikes=drop_spikes), orders)
    if floor is not None and len(costs) < TRUSTED_PAIRS:
        found = found.with_other_sd(floor.pair_sd(_num_steps(costs)), floor.degrees_of_freedom)
    name, reason = _claim(found, analysis, min_effect)
    if drop_spikes and name != "undecided":
        everything = estimate(_log_ratios(costs, drop_spikes=False), orders)
        if _is_opposite(name, everything, min_effect):
            return "undecided", "typical steps and the mean of all steps contradict each other", found
    return name, reason, found


def _quoted(
    found: Estimate,
    analyses: Sequence[InterimAnalysis],
    costs: Sequence[tuple[PlainCost, PlainCost]],
    pairs: Sequence[Pair],
    floor: NoiseFloor | None,
    min_effect: float,
) -> float:
    """Return the speedup to quote for a claim."""
    spread = (floor.pair_sd(_num_steps(costs)), floor.degrees_of_freedom) if floor is not None else None
    orders = [pair.order for pair in pairs]
    return math.exp(corrected(found, analyses, orders, min_effect=min_effect, floor=spread, floor_below=TRUSTED_PAIRS))


def _num_steps(costs: Sequence[tuple[PlainCost, PlainCost]]) -> int:
    """Return the number of steps of the shortest trial."""
    return min(cost.num_steps for pair in costs for cost in pair)


def _claim(found: Estimate, analysis: InterimAnalysis, min_effect: float) -> tuple[VerdictName, str]:
    margin = math.log1p(min_effect)
    half = found.half_width(analysis.level)
    if abs(found.mean) > half and abs(found.mean) > margin:
        side: VerdictName = "better" if found.mean > 0 else "worse"
        return side, f"the interval excludes 1, and the difference is above {percent(min_effect)}"
    # Two one-sided tests (Schuirmann 1987): the effect is above -margin, and below it.
    width = t_quantile(analysis.equivalence_level, found.degrees_of_freedom) * found.standard_error
    if abs(found.mean) + width < margin:
        return "equivalent", f"any difference is within {percent(min_effect)}"
    if abs(found.mean) > half:
        return "undecided", f"there is a difference, but it is not above {percent(min_effect)}"
    return "undecided", "the interval includes 1, and is too wide to show that the arms are equivalent"


def _is_opposite(name: VerdictName, everything: Estimate, min_effect: float) -> bool:
    """Whether the mean including spikes clearly contradicts a claim based on the steps without spikes."""
    width = t_quantile(OPPOSITE_LEVEL, everything.degrees_of_freedom) * everything.standard_error
    low, high = everything.mean - width, everything.mean + width
    margin = math.log1p(min_effect)
    return {"better": high < 0, "worse": low > 0, "equivalent": low > margin or high < -margin}[name]


def _too_few(num_pairs: int, interim: InterimPlan) -> str:
    count = "1 pair counts" if num_pairs == 1 else f"{num_pairs or 'no'} pairs count"
    return f"{count}, and the first interim analysis is at {interim.analyses[0].num_pairs}"


def _rough_speedup(pairs: Sequence[Pair], objective: Objective) -> float | None:
    """Return the mean of a few pairs, as a rough estimate for display; it claims nothing."""
    if len(pairs) < 2:
        return None
    ratios = _log_ratios([_costs(pair, objective) for pair in pairs], drop_spikes=False)
    return math.exp(sum(ratios) / len(ratios))


def _check(pairs: Sequence[Pair], min_effect: float, fresh_after: int | None) -> None:
    if not 0 < min_effect < 1:
        raise UsageError(f"`min_effect` is a share between 0 and 1, but got {min_effect:g}")
    arms = {pair.candidate.arm for pair in pairs}
    if len(arms) > 1:
        raise UsageError(f"a verdict is about one candidate, but the pairs have {len(arms)}: {', '.join(sorted(arms))}")
    if fresh_after is not None:
        old = [i for pair in pairs for i in (pair.baseline.index, pair.candidate.index) if i <= fresh_after]
        if old:
            raise UsageError(
                f"the candidate was chosen by the trials up to {fresh_after}, and trial {min(old)} is one of them",
                hint="confirm it on fresh pairs: the best of many looks good by chance in the trials that selected it",
            )
