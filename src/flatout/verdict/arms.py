"""Judge a candidate by all trials of both arms: better, worse, equivalent or undecided, with a fixed error rate.

`judge_arms` takes the trials of a tuning in whatever order they ran: noise floor, screening and confirmation together.
It analyses them after certain numbers of fresh trials of the candidate, each time from the first analysis on, and stops
at the first that decides: asking again with more trials does not change a verdict, and asking after each trial does not
raise the error rate. `effect` has the model, `analyses` the rules, `docs/concepts/verdicts.md` the reasoning. It runs
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TypedDict, Unpack

import msgspec
import numpy as np

from flatout.errors import UsageError
from flatout.records.trial import BASELINE, SpellKind, TrialResult
from flatout.records.verdict import Objective, Verdict, VerdictName
from flatout.units import percent
from flatout.verdict.analyses import (
    ANALYSES,
    BETTER,
    EQUIVALENT,
    UNDECIDED,
    WORSE,
    Analysis,
    Fitted,
    analyse,
    next_analysis,
)
from flatout.verdict.arrangement import Arrangement
from flatout.verdict.cost import TrialCost, missing, trial_costs, without_work
from flatout.verdict.effect import Effect, Floats, as_speedup, fit_effect
from flatout.verdict.invalid_trials import invalid_reasons, load_shifts
from flatout.verdict.quoted import claim_of, quoted
from flatout.verdict.shared_error import SharedError, shared_error

MIN_EFFECT = 0.01
ERROR_RATE = 0.05
HOPE_LEVEL = 0.1  # one-sided

_NAMES: dict[int, VerdictName] = {
    BETTER: "better",
    WORSE: "worse",
    EQUIVALENT: "equivalent",
    UNDECIDED: "undecided",
}


class _Trials:
    """Trials as the key of a cache: equal to others if they are the same objects."""

    def __init__(self, trials: Sequence[TrialResult]) -> None:
        self.trials = tuple(trials)

    def __hash__(self) -> int:
        return hash(tuple(id(trial) for trial in self.trials))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Trials) and [*map(id, self.trials)] == [*map(id, other.trials)]


@lru_cache(maxsize=64)
def _costs(of: _Trials, objective: Objective) -> dict[int, TrialCost]:
    """Return the costs of the trials of all arms, because the periods belong to the job."""
    return trial_costs(of.trials, objective)


class Arms(msgspec.Struct, frozen=True, kw_only=True):
    """The trials of a baseline and a candidate that count."""

    arrangement: Arrangement
    logs: Floats  # log costs; (1, trials)
    shared: SharedError
    shifts: tuple[float, ...]  # how far the loads of other processes may have moved each log cost, at most
    num_run: int  # fresh trials of the candidate that completed, whether they count or not
    unmeasured_work: tuple[SpellKind, ...]  # that an arm's trials did not show
    void_reasons: tuple[str, ...]  # why the others do not count, one for each


class Asked(TypedDict, total=False):
    """What is asked about a candidate, as keywords; those that are not given have the defaults of `Question`."""

    baseline: str
    objective: Objective
    num_screened: int
    chosen_by: frozenset[int]
    min_effect: float


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked about the trials."""

    candidate: str
    baseline: str = BASELINE
    objective: Objective = "step_s"
    num_screened: int = 1  # sets of changes that had a chance to be the candidate
    chosen_by: frozenset[int] = frozenset()  # indices of the trials by which it was chosen among them
    min_effect: float = MIN_EFFECT

    def __post_init__(self) -> None:
        if not 0 < self.min_effect < 1:
            raise UsageError(f"`min_effect` is a share between 0 and 1, but got {self.min_effect:g}")
        if self.num_screened < 1:
            raise UsageError(f"`num_screened` must be at least 1, but got {self.num_screened}")

    def is_fresh(self, trial: TrialResult) -> bool:
        """Whether the trial is the candidate's and did not choose it."""
        return trial.arm == self.candidate and trial.index not in self.chosen_by

    def arms(self, trials: Sequence[TrialResult]) -> Arms:
        """Return the trials of both arms that count, in running order, and why others do not."""
        of_both = [trial for trial in trials if trial.arm in (self.baseline, self.candidate)]
        of_both.sort(key=lambda trial: trial.index)
        problems = [missing(trial, self.objective) for trial in of_both]
        complete = [trial for trial, problem in zip(of_both, problems, strict=True) if problem is None]
        reasons = invalid_reasons(complete)
        counted = [trial for trial, reason in zip(complete, reasons, strict=True) if reason is None]
        costs, unmeasured = _measured_costs(_costs(_Trials(trials), self.objective), counted)
        arms = (
            [costs[trial.index] for trial in counted if trial.arm == arm] for arm in (self.baseline, self.candidate)
        )
        return Arms(
            arrangement=self._arrangement(counted),
            logs=np.array([[costs[trial.index].log for trial in counted]]),
            shared=shared_error(list(arms)),
            shifts=load_shifts(counted),
            num_run=sum(self.is_fresh(trial) for trial in complete),
            unmeasured_work=unmeasured,
            void_reasons=tuple(reason for reason in problems + reasons if reason is not None),
        )

    def _arrangement(self, counted: Sequence[TrialResult]) -> Arrangement:
        """Return which trials are the candidate's and fresh; those of one session and its nodes are a block."""
        machines = [(trial.session, trial.covariates.nodes) for trial in counted]
        block_of = {machine: number for number, machine in enumerate(dict.fromkeys(machines))}
        return Arrangement(
            positions=tuple(trial.index for trial in counted),
            is_candidate=tuple(trial.arm == self.candidate for trial in counted),
            is_fresh=tuple(self.is_fresh(trial) for trial in counted),
            blocks=tuple(block_of[machine] for machine in machines),
        )


def _measured_costs(
    costs: Mapping[int, TrialCost], counted: Sequence[TrialResult]
) -> tuple[dict[int, TrialCost], tuple[SpellKind, ...]]:
    """Return the costs of the trials without the work that an arm did not measure, and the kinds of that work."""
    of_both = {trial.index: costs[trial.index] for trial in counted}
    unmeasured = tuple(dict.fromkeys(kind for cost in of_both.values() for kind in cost.unknown))
    return {index: without_work(cost, unmeasured) for index, cost in of_both.items()}, unmeasured


def judge_arms(
    trials: Sequence[TrialResult], candidate: str, *, is_last: bool = False, **asked: Unpack[Asked]
) -> Verdict:
    """Return the verdict on a candidate from all complete trials of it and of the baseline.

    `trials` may hold those of other arms too. `asked` has the fields of `Question`: `analyses` allows for the choice of
    the candidate by some of its trials. `is_last` means that no more trials will come, for a reason other than their
    result (a budget): the trials since the last analysis are then judged too, at the level of the analysis that was not
    reached.
    """
    question = Question(candidate=candidate, **asked)
    analyses, arms = analyses_of(question, trials, is_last=is_last)
    if not analyses:
        return _not_analysed(question, arms, is_last)
    last = analyses[-1]
    name = _NAMES[int(last.claims[0])]
    following = next_analysis(last.analysis.num_fresh)
    is_final = name != "undecided" or is_last or following is None
    mean = as_speedup(float(last.effect.estimate[0]))
    return Verdict(
        verdict=name,
        objective=question.objective,
        speedup=_speedup(question, analyses, arms),
        mean_speedup=mean,
        interval=(as_speedup(float(last.low[0])), as_speedup(float(last.high[0]))),
        best_case=as_speedup(float(last.effect.interval(2 * HOPE_LEVEL)[1][0])),
        error_rate=ERROR_RATE,
        min_effect=question.min_effect,
        num_pairs=min(last.arrangement.num_baselines, last.arrangement.num_candidates),
        num_baselines=last.arrangement.num_baselines,
        num_candidates=last.arrangement.num_candidates,
        num_void=len(arms.void_reasons),
        void_reasons=tuple(dict.fromkeys(arms.void_reasons)),
        order=last.arrangement.order,
        unmeasured_work=arms.unmeasured_work,
        next_analysis=following.num_fresh if following is not None and not is_final else None,
        probability_better=_probability_better(last.effect, last.divisor),
        reason=_reason(last, question.min_effect),
    )


def analyses_of(question: Question, trials: Sequence[TrialResult], *, is_last: bool) -> tuple[list[Fitted], Arms]:
    """Return the analyses up to the first that decides, with the trials up to the last one.

    Each analysis sees the trials that ran until then: those that follow change neither which trials count, nor what
    they cost. Returns no analysis and all trials if there are too few.
    """
    everything = question.arms(trials)
    analyses, of_last = [], everything
    for analysis, until in _due(question, trials, is_last):
        arms = question.arms([trial for trial in trials if trial.index <= until])
        fitted = analyse(
            arms.logs,
            arms.arrangement,
            analysis,
            num_screened=question.num_screened,
            min_effect=question.min_effect,
            shared=arms.shared,
            shifts=arms.shifts,
        )
        if fitted is None:
            continue
        analyses.append(fitted)
        of_last = arms
        if fitted.claims[0] != UNDECIDED:
            return analyses, of_last
    return analyses, msgspec.structs.replace(of_last, void_reasons=everything.void_reasons)


def _due(question: Question, trials: Sequence[TrialResult], is_last: bool) -> list[tuple[Analysis, int]]:
    """Return the analyses that are due, each with the index of the last trial that it covers."""
    fresh = sorted(
        trial.index for trial in trials if question.is_fresh(trial) and missing(trial, question.objective) is None
    )
    due = [(analysis, fresh[analysis.num_fresh - 1]) for analysis in ANALYSES if analysis.num_fresh <= len(fresh)]
    following = next_analysis(len(fresh))
    if is_last and following is not None and trials:
        due.append((following, max(trial.index for trial in trials)))
    return due


def _not_analysed(question: Question, arms: Arms, is_last: bool) -> Verdict:
    """Return the verdict on too few trials; speedup and probability are shown if there are any, and claim nothing."""
    arrangement = arms.arrangement
    effect = None
    if arrangement.positions:
        effect = fit_effect(arms.logs, arrangement, shared=arms.shared, shifts=arms.shifts)
    mean = as_speedup(float(effect.estimate[0])) if effect is not None else None
    following = next_analysis(arms.num_run)
    return Verdict(
        verdict="undecided",
        objective=question.objective,
        speedup=mean,
        mean_speedup=mean,
        interval=None,
        best_case=None,
        error_rate=ERROR_RATE,
        min_effect=question.min_effect,
        num_pairs=min(arrangement.num_baselines, arrangement.num_candidates),
        num_baselines=arrangement.num_baselines,
        num_candidates=arrangement.num_candidates,
        num_void=len(arms.void_reasons),
        void_reasons=tuple(dict.fromkeys(arms.void_reasons)),
        order=arrangement.order,
        unmeasured_work=arms.unmeasured_work,
        next_analysis=following.num_fresh if following is not None and not is_last else None,
        probability_better=_probability_better(effect, question.num_screened) if effect is not None else None,
        reason=_too_few(arrangement),
    )


def _reason(last: Fitted, min_effect: float) -> str:
    claim = int(last.claims[0])
    if claim in (BETTER, WORSE):
        return f"the interval excludes 1, and the difference is above {percent(min_effect)}"
    if claim == EQUIVALENT:
        return f"any difference is within {percent(min_effect)}"
    if last.low[0] > 0 or last.high[0] < 0:
        return f"there is a difference, but it is not above {percent(min_effect)}"
    return "the interval includes 1, and is too wide to show that the arms are equivalent"


def _too_few(arrangement: Arrangement) -> str:
    num_candidates, num_baselines = arrangement.num_candidates, arrangement.num_baselines
    candidates = "1 trial" if num_candidates == 1 else f"{num_candidates or 'no'} trials"
    baselines = "1 baseline" if num_baselines == 1 else f"{num_baselines or 'no'} baselines"
    return f"{candidates} of the candidate and {baselines} are too few for a verdict"


def _probability_better(effect: Effect, num_screened: int) -> float:
    """Return the probability that the candidate is faster; the best of several would look better by chance."""
    doubt = 1 - float(effect.probability_above(0.0)[0])
    return float((1 - doubt) ** num_screened)


def _speedup(question: Question, analyses: Sequence[Fitted], arms: Arms) -> float:
    """Return the speedup to quote: of a claim, corrected for the selection of such claims; else the estimate."""
    last = analyses[-1]
    if last.claims[0] not in (BETTER, WORSE):
        return as_speedup(float(last.effect.estimate[0]))
    claim = claim_of(
        analyses,
        arms.arrangement,
        num_run=arms.num_run,
        num_screened=question.num_screened,
        min_effect=question.min_effect,
    )
    return as_speedup(quoted(claim))
