"""Choose the candidates of a round: the user's own arguments, then the changes with the highest estimated gain."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import msgspec

from flatout.change.arguments import knob_changes, parse_knob
from flatout.change.candidates import candidates, regular_share
from flatout.errors import UsageError
from flatout.predict.predict import predict_all, situation_of
from flatout.records.change import Change, JobFacts
from flatout.records.prediction import Prediction
from flatout.tune.budget import num_affordable
from flatout.tune.result import record_pending
from flatout.tune.runner import Profiled
from flatout.tune.state import TuningState


def choose(state: TuningState, profiled: Profiled) -> list[Change]:
    """Return the user's own changes, then those with the highest estimated gain, with only a few values per knob."""
    own = [change for text in state.options.knobs for change in _own_changes(state, text, profiled.facts)]
    is_for_memory = state.objective == "peak_memory_bytes"
    state.expected_speedup, state.max_speedup = {}, {}
    possible = candidates(
        profiled.done.diagnosis,
        profiled.facts,
        state.options.allowed_safety,
        applied=state.applied,
        own=own,
        for_memory=is_for_memory,
    )
    possible = [change for change in possible if change.name not in state.excluded]
    for name in (state.deferred & state.pending.keys()).difference(change.name for change in possible):
        reason = (
            "another change for the same cause gained more than this one's estimate, and the two cannot be combined"
        )
        state.pending[name] = msgspec.structs.replace(state.pending[name], reason=reason)
    if not is_for_memory:  # a replay predicts time, not memory
        possible = _by_estimated_gain(state, possible, profiled)
    num_wanted = min(state.options.max_screened, num_affordable(state))
    # The changes that the user named come first: their gain cannot be estimated, so if sorted by estimate they would
    # come last, after changes that are known to gain almost nothing.
    possible.sort(key=lambda change: change.argument is None)
    chosen = spread_over_knobs(possible, num_wanted, {change.knob.name for change in state.applied})
    for change in possible:
        if change.argument is not None and change not in chosen:  # the user named it, so the report mentions it
            record_pending(state, change, "it was not tried")
    return chosen


def _own_changes(state: TuningState, text: str, facts: JobFacts) -> Sequence[Change]:
    """Return the changes of a user's knob; none, with a note, if the job's facts show that it is not allowed."""
    knob = parse_knob(text)
    try:
        changes = knob_changes(knob, state.runner.command, facts, state.options.allowed_safety)
    except UsageError as error:
        note = f"{error}: not tried" + (f" ({error.hint})" if error.hint else "")
        if note not in state.notes:
            state.notes.append(note)
            state.say(note)
        return ()
    if state.objective == "step_s" and knob.safety is None and len(knob.names) == 1:
        note = (
            f"the samples per step are unknown, or were not asked for, so steps are compared: if `{knob.name}` changes"
            " how much work one step does, its ratio is meaningless"
        )
        if note not in state.notes:
            state.notes.append(note)
    return changes


def _by_estimated_gain(state: TuningState, possible: Sequence[Change], profiled: Profiled) -> list[Change]:
    """Sort the changes by expected speedup, and store it with the predictions in the state.

    The expected speedup is halfway between the predicted speedup and its upper bound, because a trial costs little
    compared with what it can find. Without a prediction, the gain is assumed to be between nothing and the bound.

    The models predict the effect of setting a knob for the first time, not of replacing one value by another.
    """
    step_s = profiled.recording.measured.step_s
    share = regular_share(profiled.done.diagnosis)
    applied_knobs = {change.knob.name for change in state.applied}
    predictable = [change for change in possible if change.knob.name not in applied_knobs]
    predicted = predict_all(
        profiled.done.job,
        predictable,
        profiled.facts,
        untraced_step_s=step_s,
        regular_share=share,
        calibration=state.calibration,
    )
    state.predictions = {name: result for name, result in predicted.items() if isinstance(result, Prediction)}
    state.situation = situation_of(profiled.done.job, profiled.facts, step_s, share)

    def max_speedup(change: Change) -> float:
        prediction = state.predictions.get(change.name)
        if prediction is None:
            return change.predicted_speedup or 1.0
        return min(prediction.high, prediction.bound or prediction.high)

    def expected_speedup(change: Change) -> float:
        prediction = state.predictions.get(change.name)
        return math.sqrt((prediction.speedup if prediction is not None else 1.0) * max_speedup(change))

    estimated = [change for change in possible if change.argument is None]  # a user's own change has no estimate
    state.expected_speedup = {change.name: expected_speedup(change) for change in estimated}
    state.max_speedup = {change.name: max_speedup(change) for change in estimated}
    return sorted(possible, key=lambda change: -expected_speedup(change))


def spread_over_knobs(ordered: Sequence[Change], num_wanted: int, applied_knobs: Collection[str] = ()) -> list[Change]:
    """Return the first value of each knob, then the second value of each, and so on, in the order given.

    The values of `applied_knobs` count as second values at best, because their first value is already applied.
    """
    num_values: dict[str, int] = dict.fromkeys(applied_knobs, 0)
    ranked = []
    for place, change in enumerate(ordered):
        num_values[change.knob.name] = num_values.get(change.knob.name, -1) + 1
        ranked.append((num_values[change.knob.name], place, change))
    return [change for _, _, change in sorted(ranked, key=lambda entry: entry[:2])][:num_wanted]
