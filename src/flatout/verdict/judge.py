"""Pairs of trials -> Verdict: better, worse, equivalent or undecided, at fixed looks with a fixed error rate.

`judge` replays the looks from the first pair on, and stops at the first that decides: asking again with more pairs
does not change a verdict, and asking after each pair costs nothing. Claims of better or worse are false in at most 5 %
of comparisons of identical arms, at all looks together, and so are claims of equivalence where the effect is 1 % or
more.
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
from flatout.verdict.cost import TIMES, TrialCost, are_spikes_rare, trial_cost
from flatout.verdict.looks import DEFAULT_LOOKS, Look, Looks
from flatout.verdict.paired import Estimate, estimate
from flatout.verdict.student import t_quantile
from flatout.verdict.voids import mark_void

MIN_EFFECT = 0.01
MIN_PAIRS = 3  # for a slope, a mean and a spread
# With fewer pairs than this their own spread may be small by chance (four runs that happened to fall on the same of two
# values): the noise floor is its least value, and without a noise floor they are not judged. Its runs came before, so
# that what they tell of the spread counts beside the pairs' own.
TRUSTED_PAIRS = 6
OPPOSITE_LEVEL = 0.05
HOPE_LEVEL = 0.1  # one-sided


def judge(
    pairs: Sequence[Pair],
    *,
    objective: Objective = "step_s",
    looks: Looks = DEFAULT_LOOKS,
    floor: NoiseFloor | None = None,
    min_effect: float = MIN_EFFECT,
    is_last: bool = False,
    fresh_after: int | None = None,
) -> Verdict:
    """The verdict on the candidate of `pairs`, which are in the order in which they ran.

    `is_last` says that no more pairs will come, for a reason that is not their result (a budget): what has come since
    the last look is then judged too, at the level of the look that it did not reach. `fresh_after` is the index of the
    last trial that was used to choose the candidate: a UsageError if a pair is not newer, because the best of many
    looks good by chance in the trials that it was chosen by.
    """
    _check(pairs, min_effect, fresh_after)
    if floor is not None and floor.objective != objective:
        floor = None
    marked = mark_void(pairs, objective)
    positions = [position for position, pair in enumerate(marked) if pair.void_reason is None]
    counted = [marked[position] for position in positions]
    looks = looks if floor is not None else looks.starting_at(TRUSTED_PAIRS)
    due = _due(looks, len(counted), is_last, MIN_PAIRS if floor is not None else TRUSTED_PAIRS)
    name: VerdictName = "undecided"
    reason, found, interval, num_pairs = _too_few(len(counted), looks), None, None, len(counted)
    costs: list[tuple[TrialCost, TrialCost]] = []
    for look in due:
        costs += [_costs(pair, objective) for pair in counted[len(costs) : look.num_pairs]]
        num_pairs = look.num_pairs
        name, reason, found = _at(look, costs, [p.order for p in counted[:num_pairs]], objective, floor, min_effect)
        half = found.half_width(look.level)
        interval = (math.exp(found.mean - half), math.exp(found.mean + half))
        if name != "undecided":
            break
    used = counted[:num_pairs]
    following = looks.after(num_pairs)
    seen = marked if name == "undecided" else marked[: positions[num_pairs - 1] + 1]
    void = [pair.void_reason for pair in seen if pair.void_reason is not None]
    mean = math.exp(found.mean) if found is not None else _rough_speedup(used, objective)
    speedup = mean
    if found is not None and name in ("better", "worse"):
        # Had a planned look not decided, the later ones would have followed; after one that a budget forced, none.
        is_planned = any(look.num_pairs == num_pairs for look in looks.looks)
        speedup = _quoted(found, looks.looks if is_planned else due, costs, used, floor, min_effect)
    return Verdict(
        verdict=name,
        objective=objective,
        speedup=speedup,
        mean_speedup=mean,
        interval=interval,
        best_case=math.exp(found.mean + found.half_width(2 * HOPE_LEVEL)) if found is not None else None,
        error_rate=looks.error_rate,
        min_effect=min_effect,
        num_pairs=num_pairs,
        num_void=len(void),
        void_reasons=tuple(dict.fromkeys(void)),
        order=" ".join(pair.order for pair in used),
        next_look=None if name != "undecided" or is_last or following is None else following.num_pairs,
        reason=reason,
    )


def is_worth_more_pairs(verdict: Verdict) -> bool:
    """Whether the candidate is still likely to become better.

    Stopping where it is not saves half of the trials that identical arms would take. It adds no false claim, because
    the verdict stays what it is: `undecided`, although with more pairs it might have become `equivalent` or `worse`.
    """
    if verdict.next_look is None:
        return False
    return verdict.best_case is None or verdict.best_case > 1 + verdict.min_effect


def _due(looks: Looks, num_pairs: int, is_last: bool, min_pairs: int) -> list[Look]:
    """The looks that so many pairs have reached; if they are the last, also what lies behind the last look."""
    due = [look for look in looks.looks if look.num_pairs <= num_pairs]
    reached = due[-1].num_pairs if due else 0
    following = looks.after(reached)
    if is_last and following is not None and num_pairs >= max(reached + 1, min_pairs):
        due.append(msgspec.structs.replace(following, num_pairs=num_pairs))
    return due


def _costs(pair: Pair, objective: Objective) -> tuple[TrialCost, TrialCost]:
    return trial_cost(pair.baseline, objective), trial_cost(pair.candidate, objective)


def _log_ratios(costs: Sequence[tuple[TrialCost, TrialCost]], *, drop_spikes: bool) -> list[float]:
    """Log of the baseline's cost over the candidate's, of each pair: above 0, the candidate is better."""
    return [a.log(drop_spikes=drop_spikes) - b.log(drop_spikes=drop_spikes) for a, b in costs]


def _at(
    look: Look,
    costs: Sequence[tuple[TrialCost, TrialCost]],
    orders: Sequence[str],
    objective: Objective,
    floor: NoiseFloor | None,
    min_effect: float,
) -> tuple[VerdictName, str, Estimate]:
    """What this look says, why, and the estimate."""
    drop_spikes = objective in TIMES and are_spikes_rare((a for a, _ in costs), (b for _, b in costs))
    found = estimate(_log_ratios(costs, drop_spikes=drop_spikes), orders)
    if floor is not None and len(costs) < TRUSTED_PAIRS:
        found = found.with_other_sd(floor.pair_sd(_num_steps(costs)), floor.degrees_of_freedom)
    name, reason = _claim(found, look, min_effect)
    if drop_spikes and name != "undecided":
        everything = estimate(_log_ratios(costs, drop_spikes=False), orders)
        if _is_opposite(name, everything, min_effect):
            return "undecided", "typical steps and the mean with all long steps say different things", found
    return name, reason, found


def _quoted(
    found: Estimate,
    looks: Sequence[Look],
    costs: Sequence[tuple[TrialCost, TrialCost]],
    pairs: Sequence[Pair],
    floor: NoiseFloor | None,
    min_effect: float,
) -> float:
    """The speedup to quote of a claim."""
    spread = (floor.pair_sd(_num_steps(costs)), floor.degrees_of_freedom) if floor is not None else None
    orders = [pair.order for pair in pairs]
    return math.exp(corrected(found, looks, orders, min_effect=min_effect, floor=spread, floor_below=TRUSTED_PAIRS))


def _num_steps(costs: Sequence[tuple[TrialCost, TrialCost]]) -> int:
    """Of the shortest trial."""
    return min(cost.num_steps for pair in costs for cost in pair)


def _claim(found: Estimate, look: Look, min_effect: float) -> tuple[VerdictName, str]:
    margin = math.log1p(min_effect)
    half = found.half_width(look.level)
    if abs(found.mean) > half and abs(found.mean) > margin:
        side: VerdictName = "better" if found.mean > 0 else "worse"
        return side, f"the interval excludes 1, and the difference is above {percent(min_effect)}"
    # Two one-sided tests (Schuirmann 1987): the effect is above -margin, and below it.
    width = t_quantile(look.equivalence_level, found.degrees_of_freedom) * found.standard_error
    if abs(found.mean) + width < margin:
        return "equivalent", f"any difference is within {percent(min_effect)}"
    if abs(found.mean) > half:
        return "undecided", f"there is a difference, but it is not above {percent(min_effect)}"
    return "undecided", "the interval includes 1, and is too wide to say that the arms are equivalent"


def _is_opposite(name: VerdictName, everything: Estimate, min_effect: float) -> bool:
    """Whether the mean with all spikes clearly contradicts a claim about the steps without them."""
    width = t_quantile(OPPOSITE_LEVEL, everything.degrees_of_freedom) * everything.standard_error
    low, high = everything.mean - width, everything.mean + width
    margin = math.log1p(min_effect)
    return {"better": high < 0, "worse": low > 0, "equivalent": low > margin or high < -margin}[name]


def _too_few(num_pairs: int, looks: Looks) -> str:
    count = "1 pair counts" if num_pairs == 1 else f"{num_pairs or 'no'} pairs count"
    return f"{count}, and the first look is at {looks.looks[0].num_pairs}"


def _rough_speedup(pairs: Sequence[Pair], objective: Objective) -> float | None:
    """The mean of a few pairs, for those who watch; it claims nothing."""
    if len(pairs) < 2:
        return None
    ratios = _log_ratios([_costs(pair, objective) for pair in pairs], drop_spikes=False)
    return math.exp(sum(ratios) / len(ratios))


def _check(pairs: Sequence[Pair], min_effect: float, fresh_after: int | None) -> None:
    if not 0 < min_effect < 1:
        raise UsageError(f"`min_effect` is a share between 0 and 1, but got {min_effect:g}")
    arms = {pair.candidate.arm for pair in pairs}
    if len(arms) > 1:
        raise UsageError(f"a verdict is on one candidate, but the pairs have {len(arms)}: {', '.join(sorted(arms))}")
    if fresh_after is not None:
        old = [i for pair in pairs for i in (pair.baseline.index, pair.candidate.index) if i <= fresh_after]
        if old:
            raise UsageError(
                f"the candidate was chosen by the trials up to {fresh_after}, and trial {min(old)} is one of them",
                hint="confirm it on fresh pairs: the best of many looks good by chance in the trials it was chosen by",
            )
