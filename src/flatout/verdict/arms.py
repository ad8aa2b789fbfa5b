"""Judge a candidate by all trials of both arms: better, worse, equivalent or undecided, with a fixed error rate.

`judge_arms` takes the trials of a tuning in whatever order they ran: noise floor, screening and confirmation together.
It analyses them after certain numbers of fresh trials of the candidate, each time from the first analysis on, and stops
at the first that decides: asking again with more trials does not change a verdict, and asking after each trial does not
raise the error rate. `effect` has the model, `docs/concepts/verdicts.md` the reasoning. It runs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from flatout.errors import UsageError
from flatout.records.trial import BASELINE, TrialResult
from flatout.records.verdict import Objective, Verdict, VerdictName
from flatout.units import percent
from flatout.verdict.cost import TIMES, are_spikes_rare, missing, trial_cost
from flatout.verdict.effect import Effect, as_speedup, fit_effect

MIN_EFFECT = 0.01
ERROR_RATE = 0.05
MIN_CANDIDATES = 2  # a single trial says nothing about the candidate's own spread
MIN_BASELINES = 2
HOPE_LEVEL = 0.1  # one-sided


class Analysis(msgspec.Struct, frozen=True, kw_only=True):
    """One look at the trials so far."""

    num_fresh: int  # fresh trials of the candidate: those that did not choose it
    level: float  # two-sided, of better and worse
    equivalence_level: float  # one-sided, of each of the two tests for equivalence


# The levels sum to 6.7 %; because the analyses share most of their trials, at most 5 % of tunings with identical arms
# have a false claim at any of them (`benchmarks/verdict_error_rates.py`).
ANALYSES = (
    Analysis(num_fresh=1, level=0.009, equivalence_level=0.003),
    Analysis(num_fresh=2, level=0.009, equivalence_level=0.003),
    Analysis(num_fresh=3, level=0.011, equivalence_level=0.004),
    Analysis(num_fresh=4, level=0.011, equivalence_level=0.005),
    Analysis(num_fresh=6, level=0.009, equivalence_level=0.006),
    Analysis(num_fresh=8, level=0.008, equivalence_level=0.008),
    Analysis(num_fresh=12, level=0.005, equivalence_level=0.010),
    Analysis(num_fresh=20, level=0.005, equivalence_level=0.011),
)


class _Arms(msgspec.Struct, frozen=True, kw_only=True):
    """The trials of both arms that count, in running order."""

    logs: tuple[float, ...]
    positions: tuple[int, ...]
    is_candidate: tuple[bool, ...]
    is_fresh: tuple[bool, ...]  # a candidate's trial that did not choose it
    blocks: tuple[int, ...]

    @property
    def num_candidates(self) -> int:
        return sum(self.is_candidate)

    @property
    def num_baselines(self) -> int:
        return len(self.is_candidate) - self.num_candidates

    @property
    def num_fresh(self) -> int:
        return sum(self.is_fresh)

    @property
    def order(self) -> str:
        """The arms in running order, A for the baseline: `AAABAB`."""
        return "".join("B" if candidate else "A" for candidate in self.is_candidate)

    def up_to_fresh(self, count: int) -> _Arms:
        """Return the trials up to the candidate's fresh trial number `count`."""
        end = [place for place, fresh in enumerate(self.is_fresh) if fresh][count - 1] + 1
        return _Arms(
            logs=self.logs[:end],
            positions=self.positions[:end],
            is_candidate=self.is_candidate[:end],
            is_fresh=self.is_fresh[:end],
            blocks=self.blocks[:end],
        )

    def fit(self) -> Effect | None:
        if self.num_candidates < MIN_CANDIDATES or self.num_baselines < MIN_BASELINES:
            return None
        return fit_effect(np.array([self.logs]), self.positions, self.is_candidate, self.blocks)


def judge_arms(
    trials: Sequence[TrialResult],
    candidate: str,
    *,
    baseline: str = BASELINE,
    objective: Objective = "step_s",
    num_screened: int = 1,
    chosen_by: frozenset[int] = frozenset(),
    min_effect: float = MIN_EFFECT,
    is_last: bool = False,
) -> Verdict:
    """Return the verdict on a candidate from all complete trials of it and of the baseline.

    `trials` may hold those of other arms too. `chosen_by` are the indices of the trials by which the candidate was
    chosen among `num_screened`. They count, but each level is divided by `num_screened`: so the error rate holds for
    whichever looked best. `is_last` means that no more trials will come, for a reason other than their result (a
    budget): the trials since the last analysis are then judged too, at the level of the analysis that was not reached.
    """
    if not 0 < min_effect < 1:
        raise UsageError(f"`min_effect` is a share between 0 and 1, but got {min_effect:g}")
    if num_screened < 1:
        raise UsageError(f"`num_screened` must be at least 1, but got {num_screened}")
    arms, void_reasons = _arms(trials, candidate, baseline, objective, chosen_by)
    name: VerdictName = "undecided"
    reason, used, effect, interval = _too_few(arms), arms, arms.fit(), None
    for analysis in _due(arms, is_last):
        seen = arms.up_to_fresh(analysis.num_fresh) if not _is_extra(analysis) else arms
        fitted = seen.fit()
        if fitted is None:
            continue
        used, effect = seen, fitted
        interval = _bounds(effect, analysis.level / num_screened)
        name, reason = _claim(effect, interval, analysis, num_screened, min_effect)
        if name != "undecided":
            break
    following = next((analysis for analysis in ANALYSES if analysis.num_fresh > used.num_fresh), None)
    is_final = name != "undecided" or is_last or following is None
    mean = as_speedup(float(effect.estimate[0])) if effect is not None else None
    return Verdict(
        verdict=name,
        objective=objective,
        speedup=mean,
        mean_speedup=mean,
        interval=(as_speedup(interval[0]), as_speedup(interval[1])) if interval is not None else None,
        best_case=as_speedup(_bounds(effect, 2 * HOPE_LEVEL)[1]) if effect is not None else None,
        error_rate=ERROR_RATE,
        min_effect=min_effect,
        num_pairs=min(used.num_baselines, used.num_candidates),
        num_baselines=used.num_baselines,
        num_candidates=used.num_candidates,
        num_void=len(void_reasons),
        void_reasons=tuple(dict.fromkeys(void_reasons)),
        order=used.order,
        next_analysis=None if is_final or following is None else following.num_fresh,
        probability_better=_probability_better(effect, num_screened) if effect is not None else None,
        reason=reason,
    )


def _arms(
    trials: Sequence[TrialResult], candidate: str, baseline: str, objective: Objective, chosen_by: frozenset[int]
) -> tuple[_Arms, list[str]]:
    """Return the trials that count, and why others do not."""
    of_both = sorted((trial for trial in trials if trial.arm in (baseline, candidate)), key=lambda trial: trial.index)
    problems = [missing(trial, objective) for trial in of_both]
    counted = [trial for trial, problem in zip(of_both, problems, strict=True) if problem is None]
    costs = [trial_cost(trial, objective) for trial in counted]
    is_candidate = [trial.arm == candidate for trial in counted]
    drop_spikes = objective in TIMES and are_spikes_rare(
        *([cost for cost, is_its in zip(costs, is_candidate, strict=True) if is_its == arm] for arm in (False, True))
    )
    places = [(trial.session, trial.covariates.nodes) for trial in counted]
    numbers = {place: number for number, place in enumerate(dict.fromkeys(places))}
    arms = _Arms(
        logs=tuple(cost.log(drop_spikes=drop_spikes) for cost in costs),
        positions=tuple(trial.index for trial in counted),
        is_candidate=tuple(is_candidate),
        is_fresh=tuple(trial.arm == candidate and trial.index not in chosen_by for trial in counted),
        blocks=tuple(numbers[place] for place in places),
    )
    return arms, [problem for problem in problems if problem is not None]


def _due(arms: _Arms, is_last: bool) -> list[Analysis]:
    """Return the analyses that are due, and, if these are the last trials, one of all of them (without a number)."""
    due = [analysis for analysis in ANALYSES if analysis.num_fresh <= arms.num_fresh]
    following = next((analysis for analysis in ANALYSES if analysis.num_fresh > arms.num_fresh), None)
    if is_last and following is not None:
        due.append(msgspec.structs.replace(following, num_fresh=0))
    return due


def _is_extra(analysis: Analysis) -> bool:
    return analysis.num_fresh == 0


def _bounds(effect: Effect, level: float) -> tuple[float, float]:
    low, high = effect.interval(level)
    return float(low[0]), float(high[0])


def _claim(
    effect: Effect, interval: tuple[float, float], analysis: Analysis, num_screened: int, min_effect: float
) -> tuple[VerdictName, str]:
    margin, mean = math.log1p(min_effect), float(effect.estimate[0])
    excludes_1 = interval[0] > 0 or interval[1] < 0
    if excludes_1 and abs(mean) > margin:
        side: VerdictName = "better" if mean > 0 else "worse"
        return side, f"the interval excludes 1, and the difference is above {percent(min_effect)}"
    # Two one-sided tests (Schuirmann 1987): the effect is above -margin, and below it.
    low, high = _bounds(effect, 2 * analysis.equivalence_level / num_screened)
    if -margin < low and high < margin:
        return "equivalent", f"any difference is within {percent(min_effect)}"
    if excludes_1:
        return "undecided", f"there is a difference, but it is not above {percent(min_effect)}"
    return "undecided", "the interval includes 1, and is too wide to show that the arms are equivalent"


def _too_few(arms: _Arms) -> str:
    candidates = "1 trial" if arms.num_candidates == 1 else f"{arms.num_candidates or 'no'} trials"
    baselines = "1 baseline" if arms.num_baselines == 1 else f"{arms.num_baselines or 'no'} baselines"
    return f"{candidates} of the candidate and {baselines} are too few for a verdict"


def _probability_better(effect: Effect, num_screened: int) -> float:
    """Return the probability that the candidate is faster; the best of several would look better by chance."""
    doubt = 1 - float(effect.probability_above(0.0)[0])
    return float((1 - doubt) ** num_screened)
