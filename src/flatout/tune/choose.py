"""Choose the candidates of a round: the user's own arguments, then the changes with the highest estimated gain."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import msgspec

from flatout.change.arguments import knob_changes, parse_knob
from flatout.change.candidates import MIN_SPEEDUP, candidates, regular_share, share_in_trial
from flatout.change.dataloader import lacks_cores
from flatout.errors import UsageError
from flatout.nccl_tuner.in_tuning import FAMILIES, with_measured_collectives
from flatout.predict.bucket_plan import best_bucket_mib, best_first_bucket_mib
from flatout.predict.predict import predict_all, situation_of
from flatout.predict.prefetch_depth import best_prefetch_depth
from flatout.predict.situation import Situation
from flatout.records.change import Change, JobFacts
from flatout.records.prediction import NoPrediction, Prediction
from flatout.tune.budget import num_affordable
from flatout.tune.bundle import independent_changes
from flatout.tune.codec_times import with_codec_times
from flatout.tune.loader_model import note_on_workers
from flatout.tune.not_allowed import note_on_not_allowed
from flatout.tune.profiled import Profiled
from flatout.tune.progress import Progress, Promise, Round, Setup
from flatout.tune.tried import not_reached

LOADING = "data-loading"


class _Estimates(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What the models say about the possible changes of a round."""

    predictions: Mapping[str, Prediction] = {}
    promises: Mapping[str, Promise] = {}
    situation: Situation | NoPrediction | None = None


def choose(setup: Setup, progress: Progress, number: int, profiled: Profiled) -> tuple[Progress, Round]:
    """Return the round's candidates: the user's own changes, then those with the highest estimated gain.

    Only a few values of each knob are among them.
    """
    profiled = _with_values_from_the_trace(_with_loader_load(_with_limited_batch(setup, progress, profiled)))
    progress, profiled = _with_measured_collectives(setup, progress, profiled)
    profiled = _with_codec_times(setup, profiled)
    progress = _with_note_on_workers(setup, progress, profiled)
    progress = _with_note_on_not_allowed(setup, progress, profiled)
    progress, own = _own_changes(setup, progress, profiled)
    is_for_memory = progress.objective == "peak_memory_bytes"
    applied = progress.applied.changes.changes
    possible = candidates(
        profiled.done.diagnosis,
        profiled.facts,
        setup.options.allowed_safety,
        applied=applied,
        own=own,
        for_memory=is_for_memory,
    )
    if setup.options.nccl.is_only:
        possible = [change for change in possible if change.family in FAMILIES]
    possible = [change for change in possible if change.name not in progress.outcomes.excluded]
    progress = _without_impossible(progress, possible)
    estimates = _Estimates()
    if not is_for_memory:  # a replay predicts time, not memory
        estimates = _estimate(setup, progress, possible, profiled)
        possible.sort(key=lambda change: -expected_speedup(change, estimates.predictions, profiled.facts))
    # The changes that the user named come first: their gain cannot be estimated, so if sorted by estimate they would
    # come last, after changes that are known to gain almost nothing.
    possible.sort(key=lambda change: change.argument is None)
    possible, not_paying = split_by_gain(possible, estimates.predictions)
    num_wanted = min(setup.options.max_screened, num_affordable(setup, progress))
    chosen = spread_over_knobs(possible, num_wanted, {change.knob.name for change in applied})
    this_round = Round(
        number=number,
        facts=profiled.facts,
        candidates=tuple(chosen),
        promises=estimates.promises,
        predictions=estimates.predictions,
        situation=estimates.situation,
    )
    if not any(change.argument is not None for change in chosen):
        this_round = msgspec.structs.replace(this_round, bundle=independent_changes(progress, this_round, possible))
    outcomes = progress.outcomes
    for change in possible:
        if change in chosen or change.argument is not None:  # the user named it, so the report mentions it
            outcomes = outcomes.with_pending(not_reached(setup, this_round, change, "it was not tried"))
    for change in not_paying:
        speedup = estimates.predictions[change.name].speedup
        reason = f"it is predicted not to pay: {speedup:.2f}x, and it costs accuracy"
        outcomes = outcomes.with_pending(not_reached(setup, this_round, change, reason))
    return progress.with_outcomes(outcomes), this_round


def split_by_gain(
    possible: Sequence[Change], predictions: Mapping[str, Prediction]
) -> tuple[list[Change], list[Change]]:
    """Return the changes to choose from, and those that are tried only if they pay and are predicted not to."""
    not_paying = [
        change
        for change in possible
        if change.knob.only_if_it_pays and change.name in predictions and predictions[change.name].speedup < MIN_SPEEDUP
    ]
    return [change for change in possible if change not in not_paying], not_paying


def _with_limited_batch(setup: Setup, progress: Progress, profiled: Profiled) -> Profiled:
    """Return the profile with the samples of a call, where their latency is limited and no own knob sets them."""
    if setup.options.latency is None:
        return profiled
    samples = progress.evidence.baselines[0].samples_per_step
    has_own_knob = any("batch" in parse_knob(text).name for text in setup.options.knobs)
    if not samples or has_own_knob:
        return profiled
    facts = msgspec.structs.replace(profiled.facts, limited_batch=max(round(samples), 1))
    return msgspec.structs.replace(profiled, facts=facts)


def _with_loader_load(profiled: Profiled) -> Profiled:
    """Return the profile with how long batches take relative to the rest of a step, if no worker makes them."""
    diagnosis = profiled.done.diagnosis
    share = sum(share_in_trial(diagnosis, finding) for finding in diagnosis.findings if finding.name == LOADING)
    if profiled.facts.loader_workers != 0 or not 0 < share < 1:
        return profiled
    facts = msgspec.structs.replace(profiled.facts, loader_load=share / (1 - share))
    return msgspec.structs.replace(profiled, facts=facts)


def _with_note_on_workers(setup: Setup, progress: Progress, profiled: Profiled) -> Progress:
    """Return the progress with what the model of the loader says, if workers are not what helps."""
    note = None if profiled.loaders is None else note_on_workers(profiled.facts, profiled.loaders)
    if note is None or note in progress.notes:
        return progress
    setup.say(note)
    return progress.with_note(note)


def _with_note_on_not_allowed(setup: Setup, progress: Progress, profiled: Profiled) -> Progress:
    """Return the progress with the best change that the allowed class excludes, once: that of the unchanged job."""
    if progress.applied.changes.changes or progress.objective == "peak_memory_bytes" or setup.options.nccl.is_only:
        return progress
    note = note_on_not_allowed(profiled.done.diagnosis, profiled.facts, setup.options.allowed_safety)
    if note is None or note in progress.notes:
        return progress
    setup.say(note)
    return progress.with_note(note)


def _with_measured_collectives(setup: Setup, progress: Progress, profiled: Profiled) -> tuple[Progress, Profiled]:
    """Return the profile with what was measured for the job's collectives, where they are exposed."""
    runner = setup.runner
    left_s = setup.options.budget_s - runner.spent_s()
    facts, note = with_measured_collectives(
        profiled.facts, profiled.done, runner.out, setup.options.nccl, setup.say, left_s=left_s
    )
    if note is not None and note not in progress.notes:
        setup.say(note)
        progress = progress.with_note(note)
    return progress, msgspec.structs.replace(profiled, facts=facts)


def _with_codec_times(setup: Setup, profiled: Profiled) -> Profiled:
    """Return the profile with what compressing gradients costs on this machine, where it may be tried."""
    runner = setup.runner
    facts = with_codec_times(
        profiled.facts,
        profiled.done.diagnosis,
        runner.out,
        setup.options.allowed_safety,
        left_s=setup.options.budget_s - runner.spent_s(),
        say=setup.say,
    )
    return msgspec.structs.replace(profiled, facts=facts)


def _with_values_from_the_trace(profiled: Profiled) -> Profiled:
    """Return the profile with DDP's bucket sizes or FSDP2's depth of prefetch, as the trace's layers prefer them."""
    if profiled.facts.wrapper not in ("ddp", "fsdp2"):
        return profiled
    situation = situation_of(profiled.done.job, profiled.facts, profiled.recording.measured.step_s)
    if isinstance(situation, NoPrediction):
        return profiled
    if profiled.facts.wrapper == "ddp":
        best, first = best_bucket_mib(situation), best_first_bucket_mib(situation)
        facts = msgspec.structs.replace(profiled.facts, best_bucket_mib=best, best_first_bucket_mib=first)
    else:
        facts = msgspec.structs.replace(profiled.facts, best_prefetch_depth=best_prefetch_depth(situation))
    return msgspec.structs.replace(profiled, facts=facts)


def _without_impossible(progress: Progress, possible: Sequence[Change]) -> Progress:
    """Return the progress with the reason why deferred changes cannot be tried any more."""
    outcomes = progress.outcomes
    gone = (outcomes.deferred & outcomes.pending.keys()).difference(change.name for change in possible)
    reason = "another change for the same cause gained more than this one's estimate, and the two cannot be combined"
    for name in sorted(gone):
        outcomes = outcomes.with_pending(msgspec.structs.replace(outcomes.pending[name], reason=reason))
    return progress.with_outcomes(outcomes)


def _own_changes(setup: Setup, progress: Progress, profiled: Profiled) -> tuple[Progress, list[Change]]:
    """Return the changes of the user's knobs; of a knob that the job's facts do not allow only a note."""
    own: list[Change] = []
    for text in setup.options.knobs:
        knob = parse_knob(text)
        try:
            own += knob_changes(knob, setup.runner.command, profiled.facts, setup.options.allowed_safety)
        except UsageError as error:
            note = f"{error}: not tried" + (f" ({error.hint})" if error.hint else "")
            if note not in progress.notes:
                setup.say(note)
            progress = progress.with_note(note)
            continue
        if progress.objective == "step_s" and knob.safety is None and len(knob.names) == 1:
            progress = progress.with_note(
                f"the samples per step are unknown, or were not asked for, so steps are compared: if `{knob.name}`"
                " changes how much work one step does, its ratio is meaningless"
            )
    return progress, own


def _estimate(setup: Setup, progress: Progress, possible: Sequence[Change], profiled: Profiled) -> _Estimates:
    """Predict the changes, and say what each may bring.

    The models predict the effect of setting a knob for the first time, not of replacing one value by another.
    """
    step_s = profiled.recording.measured.step_s
    share = regular_share(profiled.done.diagnosis)
    applied_knobs = {change.knob.name for change in progress.applied.changes.changes}
    predictable = [change for change in possible if change.knob.name not in applied_knobs]
    predicted = predict_all(
        profiled.done.job,
        predictable,
        profiled.facts,
        untraced_step_s=step_s,
        regular_share=share,
        calibration=setup.calibration,
    )
    predictions = {name: result for name, result in predicted.items() if isinstance(result, Prediction)}
    estimated = [change for change in possible if change.argument is None]  # a user's own change has no estimate
    promises = {
        change.name: Promise(
            expected_speedup=expected_speedup(change, predictions, profiled.facts),
            max_speedup=_max_speedup(change, predictions),
        )
        for change in estimated
    }
    situation = situation_of(profiled.done.job, profiled.facts, step_s, share)
    return _Estimates(predictions=predictions, promises=promises, situation=situation)


def _max_speedup(change: Change, predictions: Mapping[str, Prediction]) -> float:
    prediction = predictions.get(change.name)
    if prediction is None:
        return change.predicted_speedup or 1.0
    return min(prediction.high, prediction.bound or prediction.high)


def expected_speedup(change: Change, predictions: Mapping[str, Prediction], facts: JobFacts) -> float:
    """Return a speedup halfway between the predicted one and its upper bound.

    A trial costs little compared with what it can find. Without a prediction, the gain is assumed to be between nothing
    and the bound. Workers that have to share a core seldom reach what is predicted, so there is nothing to find.
    """
    prediction = predictions.get(change.name)
    predicted = prediction.speedup if prediction is not None else 1.0
    if prediction is not None and lacks_cores(change, facts):
        return predicted
    return math.sqrt(predicted * _max_speedup(change, predictions))


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
