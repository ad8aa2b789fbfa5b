"""Candidates of a round: the user's own arguments, then for what costs most now, those that promise most first."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import msgspec

from flatout.change.arguments import knob_changes, parse_knob
from flatout.change.candidates import candidates
from flatout.errors import UsageError
from flatout.predict.predict import predict_all, situation_of
from flatout.records.change import Change, JobFacts
from flatout.records.prediction import Prediction
from flatout.tune.budget import num_affordable
from flatout.tune.result import note_open
from flatout.tune.runner import Profiled
from flatout.tune.state import TuningState


def choose(state: TuningState, profiled: Profiled) -> list[Change]:
    """The user's own, then those for what costs most now, the most promising first; each knob with few values."""
    own = [change for text in state.options.knobs for change in _own(state, text, profiled.facts)]
    is_for_memory = state.objective == "peak_memory_bytes"
    state.promises, state.max_speedup = {}, {}
    found = candidates(
        profiled.done.diagnosis,
        profiled.facts,
        state.options.allowed_safety,
        applied=state.applied,
        own=own,
        for_memory=is_for_memory,
    )
    found = [change for change in found if change.name not in state.excluded]
    for name in (state.deferred & state.open.keys()).difference(change.name for change in found):
        reason = "another change for the same cause brought more than it promised, and beside that it is no candidate"
        state.open[name] = msgspec.structs.replace(state.open[name], reason=reason)
    if not is_for_memory:  # a replay tells of time
        found = _predicted(state, found, profiled)
    most = min(state.options.max_screened, num_affordable(state))
    # What the user asked for by name comes first: nothing is known of what it brings, so it could only come last else,
    # behind what is known to bring next to nothing.
    found.sort(key=lambda change: change.argument is None)
    chosen = spread_over_knobs(found, most, {change.knob.name for change in state.applied})
    for change in found:
        if change.argument is not None and change not in chosen:  # and it does not go unmentioned
            note_open(state, change, "no trial was made of it")
    return chosen


def _own(state: TuningState, text: str, facts: JobFacts) -> Sequence[Change]:
    """Of a knob of the user's own. What is known of the job only now may make it one that is not allowed."""
    knob = parse_knob(text)
    try:
        found = knob_changes(knob, state.runner.command, facts, state.options.allowed_safety)
    except UsageError as error:
        note = f"{error}: not tried" + (f" ({error.hint})" if error.hint else "")
        if note not in state.notes:
            state.notes.append(note)
            state.say(note)
        return ()
    if state.objective == "step_s" and knob.safety is None and len(knob.names) == 1:
        note = (
            f"the samples of a step are not known, or were not asked for, so steps are compared: if `{knob.name}`"
            " changes how much a step does, its ratio says nothing"
        )
        if note not in state.notes:
            state.notes.append(note)
    return found


def _predicted(state: TuningState, found: Sequence[Change], profiled: Profiled) -> list[Change]:
    """In the order of what a replay of the trace with each says it brings; where it says nothing, by its bound.

    What counts is halfway between what is likely and the most that it may be, as a trial is cheap beside what it may
    find; without a replay nothing is likely.

    Models are of a knob that is turned for the first time: none tells one value's gain over another one that is on.
    """
    step_s = profiled.recording.measured.step_s
    turned = {change.knob.name for change in state.applied}
    first = [change for change in found if change.knob.name not in turned]
    made = predict_all(profiled.done.job, first, profiled.facts, untraced_step_s=step_s, calibration=state.calibration)
    state.predictions = {name: one for name, one in made.items() if isinstance(one, Prediction)}
    state.situation = situation_of(profiled.done.job, profiled.facts, step_s)

    def most(change: Change) -> float:
        prediction = state.predictions.get(change.name)
        if prediction is None:
            return change.predicted_speedup or 1.0
        return min(prediction.high, prediction.bound or prediction.high)

    def promise(change: Change) -> float:
        prediction = state.predictions.get(change.name)
        return math.sqrt((prediction.speedup if prediction is not None else 1.0) * most(change))

    ours = [change for change in found if change.argument is None]  # of the user's own nothing is known
    state.promises = {change.name: promise(change) for change in ours}
    state.max_speedup = {change.name: most(change) for change in ours}
    return sorted(found, key=lambda change: -promise(change))


def spread_over_knobs(found: Sequence[Change], most: int, turned: Collection[str] = ()) -> list[Change]:
    """The first value of each knob, then the second of each, ..., in the order of what they promise.

    Of the knobs that are `turned` already, what is found are second values at best.
    """
    depth: dict[str, int] = dict.fromkeys(turned, 0)
    ordered = []
    for place, change in enumerate(found):
        depth[change.knob.name] = depth.get(change.knob.name, -1) + 1
        ordered.append((depth[change.knob.name], place, change))
    return [change for _, _, change in sorted(ordered, key=lambda entry: entry[:2])][:most]
