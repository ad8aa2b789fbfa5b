"""Predict the speedup of an attributed job by a change: the middle of three replays, with an interval.

A change without a model has no prediction: `NoPrediction` gives the reason, and only the findings' bound is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import chain

from flatout.predict.calibrate import PredictionCalibration, calibrate
from flatout.predict.families import MODELS
from flatout.predict.situation import HIDDEN_HOST_SCALE, Scenarios, Situation
from flatout.records.change import Change, JobFacts
from flatout.records.job import JobAttribution
from flatout.records.prediction import NoPrediction, Prediction

UNSURE_EFFECT = 0.15  # share of the log speedup: durations that depend on concurrent work are not replayed
UNSURE = 0.03  # share of the speedup: normal variation between steps
MAX_SAVED_SHARE = 0.99  # share of the step
MIN_STALL_SHARE = 0.05  # share of the job that a prediction mentions
UNKNOWN_DILATION = 0.1  # added if the recorder's cost is unknown


def situation_of(
    job: JobAttribution, facts: JobFacts, untraced_step_s: float | None = None, regular_share: float = 1.0
) -> Situation | NoPrediction:
    """Prepare the job for `predict`; with the untraced step time, host times are scaled to it.

    `regular_share` is the share of the job's mean step that its regular step takes: a replay shows no stalls, so a
    predicted speedup is that of a job in which they stay.
    """
    try:
        return Situation(job, facts, untraced_step_s, regular_share)
    except ValueError as error:
        return NoPrediction(change="", family="", reason=str(error))


def predict(
    situation: Situation, change: Change, calibration: PredictionCalibration | None = None
) -> Prediction | NoPrediction:
    """Predict a change's speedup, never above the findings' bound (`Change.predicted_speedup`, see `_bound`).

    Its interval can reach above: the cost of a finding is itself known from only a few steps under the recorder.
    """
    return predict_together(situation, (change,), calibration, bound=change.predicted_speedup)


def predict_together(
    situation: Situation,
    changes: Sequence[Change],
    calibration: PredictionCalibration | None = None,
    *,
    bound: float | None = None,
) -> Prediction | NoPrediction:
    """Predict the speedup of several changes together, in one replay with all of them, since their savings overlap.

    Changes without a model count as no gain, and are named; if no change has a model, there is no prediction.
    """
    modelled, left_out = _modelled(situation, changes)
    name = " + ".join(change.name for change in changes)
    family = "+".join(dict.fromkeys(change.family for change in changes))
    if not modelled:
        return NoPrediction(change=name, family=family, reason="; ".join(left_out) or "there is no change")
    bound = _bound(situation, modelled, bound)
    most = bound if bound is not None else math.inf
    try:
        replayed = _replayed(situation, modelled, most)
    except ValueError as error:
        return NoPrediction(change=name, family=family, reason=str(error))
    if calibration is None:
        calibration = calibrate(())
    learned = calibration.of(family, name, replayed)
    speedup = min(learned.speedup, most)
    # A replay has no stalls, so it cannot say how many of them a change saves: none, or all that the findings allow.
    has_stalls = situation.regular_share < 1 - MIN_STALL_SHARE
    high = max(learned.high, bound) if has_stalls and bound is not None else learned.high
    return Prediction(
        change=name,
        family=family,
        speedup=speedup,
        low=min(learned.low, speedup),
        high=high,
        how="; ".join(scenarios.how for scenarios in modelled),
        assumptions=(
            *chain.from_iterable(scenarios.assumptions for scenarios in modelled),
            *left_out,
            *_assumptions_of(situation),
        ),
        bound=bound,
        correction=speedup / replayed[0],
        model=replayed,
        num_behind=learned.num_behind,
    )


def _modelled(situation: Situation, changes: Sequence[Change]) -> tuple[list[Scenarios], list[str]]:
    """Return the scenarios of the changes that have a model, and why the other changes have none."""
    modelled: list[Scenarios] = []
    left_out: list[str] = []
    for change in changes:
        model = MODELS.get(change.knob.name)
        scenarios = model(situation, change) if model is not None else "there is no model for it"
        if not isinstance(scenarios, str):
            modelled.append(scenarios)
        elif len(changes) == 1:
            left_out.append(scenarios)
        else:
            left_out.append(f"{change.name} is not included: {scenarios}")
    return modelled, left_out


def _replayed(situation: Situation, modelled: Sequence[Scenarios], most: float) -> tuple[float, float, float]:
    """Return the likely speedup by replay, at most `most`, and its interval, widened by what no replay contains."""
    likely, worst, best = (_speedup(situation, which, modelled) for which in ("likely", "worst", "best"))
    unsure = min(situation.error, 0.5) + (0.0 if situation.is_untraced_known else UNKNOWN_DILATION)
    # A change without any effect in the replay is known to have no gain, except for the variation between steps.
    width = 1.0 + UNSURE + unsure * min(1.0, 0.3 + 2 * abs(likely - 1.0))
    low, high = min(likely, worst, best), max(likely, worst, best)
    low_exponent = 1 - UNSURE_EFFECT if low > 1 else 1 + UNSURE_EFFECT
    high_exponent = 1 + UNSURE_EFFECT if high > 1 else 1 - UNSURE_EFFECT
    low = low**low_exponent / width
    high = high**high_exponent * width
    if likely > most:
        return most, min(low, most / width), high
    return likely, low, high


def predict_all(
    job: JobAttribution,
    changes: Iterable[Change],
    facts: JobFacts,
    *,
    untraced_step_s: float | None = None,
    regular_share: float = 1.0,
    calibration: PredictionCalibration | None = None,
) -> dict[str, Prediction | NoPrediction]:
    """Return the prediction of each change alone, by the change's name."""
    situation = situation_of(job, facts, untraced_step_s, regular_share)
    if isinstance(situation, NoPrediction):
        return {change.name: _none(change, situation.reason) for change in changes}
    return {change.name: predict(situation, change, calibration) for change in changes}


def _bound(situation: Situation, modelled: Sequence[Scenarios], bound: float | None) -> float | None:
    """Return the findings' bound, converted from the traced to the untraced step: the same seconds of a shorter step.

    In a job with stalls, the bound already refers to the job, of which no step is an example: it is never lowered.
    A job that waits for its loader's workers shows too little waiting in the trace, since the recorder fills the wait
    with its own work. For such a job, the bound is the time that the GPU computes.
    """
    if bound is None:
        return None
    if situation.pace_s and any(scenarios.frees_pace for scenarios in modelled):
        busy_s = situation.busy_s()
        return max(bound, situation.step_s / busy_s) if busy_s > 0 else None
    saved_s = situation.seen_step_s * (1.0 - 1.0 / max(bound, 1.0))
    converted = situation.step_s / max(situation.step_s - saved_s, (1.0 - MAX_SAVED_SHARE) * situation.step_s)
    return max(converted, bound) if situation.regular_share < 1.0 else converted


def _speedup(situation: Situation, which: str, modelled: Sequence[Scenarios]) -> float:
    edits = situation.edits(which)
    least_s = [scenarios.apply(edits, getattr(scenarios, which)) or 0.0 for scenarios in modelled]
    if not any(scenarios.frees_pace for scenarios in modelled):
        least_s.append(situation.pace_s)
    regular = situation.step_in(which) / max(situation.replay.step_s(edits), *least_s, 1e-9)
    return situation.speedup_of_job(regular)


def _assumptions_of(situation: Situation) -> tuple[str, ...]:
    assumptions = []
    if situation.pace_s:
        assumptions.append(
            "loader workers limit the speed, so the trace does not show how much the recorder prolongs host work"
        )
    elif not situation.is_untraced_known:
        assumptions.append("host times include the recorder's overhead, because the step time without it is unknown")
    elif situation.is_dilation_hidden:
        prolonged = 1 / HIDDEN_HOST_SCALE - 1
        assumptions.append(f"how much the recorder prolongs host work is unknown; assumed: {prolonged:.0%}")
    elif situation.error > 0.02:
        assumptions.append(f"the replay misses the untraced step by {situation.error:.0%}")
    if situation.regular_share < 1 - MIN_STALL_SHARE:
        assumptions.append(f"stalls are not replayed: the regular step is {situation.regular_share:.0%} of the job")
    if situation.job.missing_ranks:
        assumptions.append(f"{len(situation.job.missing_ranks)} ranks have no trace")
    return tuple(assumptions)


def _none(change: Change, reason: str) -> NoPrediction:
    return NoPrediction(change=change.name, family=change.family, reason=reason)
