"""Wording for what findings cost a step of a tuned job, and for the speedup that fixing them could bring at most.

In: findings of the profile and of the trials, and the `Bound` of each. Out: texts.
"""

from __future__ import annotations

from flatout.records.diagnosis import Finding
from flatout.records.prediction import Prediction
from flatout.records.tuning import ALL_BUT_COMPUTATION, Bound, TuneResult
from flatout.report.tuning_ratios import DEFAULT_OBJECTIVES, measured_text, ratio
from flatout.report.tuning_rows import adopted_rows, not_adopted
from flatout.units import percent, seconds

TRIALS_ONLY = "seen only by the trials"
NEGLIGIBLE = 0.03  # gain of which the report says that nothing brings it, where that is shown


def profile_finding_sentence(finding: Finding, summary: str) -> str:
    """Say what a finding costs: `finding: data-loading, 30.0 ms per step, 22 % of it. The training waits ...`."""
    return f"finding: {finding.name}, {_cost(finding)}. {summary}"


def trials_finding_sentence(finding: Finding) -> str:
    """Say what a finding costs that the profile did not hold, by its title, which has the numbers of the trials."""
    return f"finding: {finding.name}, {_cost(finding)}: {finding.title} ({TRIALS_ONLY})"


def _cost(finding: Finding) -> str:
    return f"{seconds(finding.cost_s_per_step)} per step, {percent(finding.share_of_step)} of it"


def bound_name(bound: Bound) -> str:
    """Name the finding of a bound, and say if only trials showed it."""
    return f"{bound.finding} ({TRIALS_ONLY})" if bound.is_of_trials_only else bound.finding


def nothing_helps_by(result: TuneResult) -> float | None:
    """Return the gain that no change brings which leaves the computation as it is; None if that is not shown."""
    most = _most_besides_computation(result)
    return NEGLIGIBLE if most is not None and most < 1 + NEGLIGIBLE else None


def besides_computation(result: TuneResult) -> str:
    """Say what changes that leave the computation as it is bring at most; empty if that has no limit."""
    most = _most_besides_computation(result)
    if most is None:
        return ""
    return (
        f"a change that leaves the computation as it is brings at most {percent(most - 1)} (limit at 95 % confidence)"
    )


def _most_besides_computation(result: TuneResult) -> float | None:
    if result.objective not in DEFAULT_OBJECTIVES:
        return None
    return next((bound.most for bound in result.bounds if bound.finding == ALL_BUT_COMPUTATION), None)


def above_bound_sentences(result: TuneResult) -> tuple[str, ...]:
    """Say which changes measured more than the cost of their findings, accepted or not, and why that can be."""
    if result.objective not in DEFAULT_OBJECTIVES:
        return ()
    sentences = []
    for row in adopted_rows(result):
        bound = _bound(row.prediction, row.bound)
        measured = None if row.verdict is None else row.verdict.speedup
        if bound is None or measured is None or measured <= bound:
            continue
        sentences.append(
            f"{row.name} brought {measured_text(row.verdict)}, more than the {ratio(bound)} that its findings cost: it"
            " also shortens other work of a step, or its trials have more of the finding than the recording."
        )
    return (*sentences, *_unaccepted_above_bound(result))


def _unaccepted_above_bound(result: TuneResult) -> list[str]:
    sentences = []
    for tried in not_adopted(result):
        bound = _bound(tried.prediction, tried.bound)
        is_judged = tried.verdict is not None and tried.verdict.speedup is not None
        measured = tried.verdict.speedup if tried.verdict is not None and is_judged else tried.screened
        if tried.outcome == "unsafe" or bound is None or measured is None or measured <= bound:
            continue
        verdict = "" if tried.verdict is None else f", {tried.verdict.verdict}"
        how = f"{measured_text(tried.verdict)}{verdict}" if is_judged else f"{ratio(measured)} in one trial"
        sentences.append(
            f"{tried.name} measured {how}: more than the {ratio(bound)} that its findings cost. That bound comes from"
            " the recording, whose steps may have less of the finding, and the measurement is noisy."
        )
    return sentences


def _bound(prediction: Prediction | None, of_findings: float | None) -> float | None:
    return of_findings if prediction is None or prediction.bound is None else prediction.bound
