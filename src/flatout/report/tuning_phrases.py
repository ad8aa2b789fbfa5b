"""Wording that all reports of a tuning share: the verdict, ratios with their intervals, outcomes.

In: a `TuneResult`. Out: texts. A ratio that has an interval is never shown without it, and the speed of a change
that failed a gate is never shown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from flatout import units
from flatout.records.change import SAFETIES, Change, Safety
from flatout.records.prediction import Prediction
from flatout.records.tuning import (
    EndedBy,
    TriedOutcome,
    TriedSet,
    TunedChange,
    TuneResult,
    Tuning,
    TuningEnd,
    TuningStage,
)
from flatout.records.verdict import Objective, Verdict
from flatout.report.outlook_phrases import more_sentence, probability
from flatout.report.phrases import counted
from flatout.report.separation import separation_sentence
from flatout.report.step_phrases import step_sentences, work_name

UNKNOWN = "unknown"
NO_INTERVAL = "no interval"
TOLD = 0.02  # share of a gain; a larger correction is reported
LIKELY_GAIN = 0.9  # probability from which an undecided change is in the headline
LIKELY_CLAIM = 0.5  # the same for the probability that more trials show a change that had one trial
LONGEST_REASON = 200  # characters; the JSON has all of it

# The values of `--objective`. Energy per step is absent because a user cannot choose it.
OBJECTIVE_WORDS: Mapping[Objective, str] = {
    "s_per_sample": "samples/s",
    "s_per_token": "tokens/s",
    "step_s": "steps/s",
    "peak_memory_bytes": "memory",
    "j_per_sample": "energy",
    "j_per_step": "energy per step",
}
_SAVED: Mapping[Objective, str] = {
    "peak_memory_bytes": "peak memory",
    "j_per_sample": "energy per sample",
    "j_per_step": "energy per step",
}
DEFAULT_OBJECTIVES = ("s_per_sample", "step_s")

OUTCOME_MEANINGS: Mapping[TriedOutcome, str] = {
    "adopted": "better in repeated trials, and kept",
    "not confirmed": "looked better in one trial, but further trials did not confirm it",
    "not better": "not better in its own trial, which gives an estimate, not a verdict",
    "not reached": "chosen, but too few trials were run to judge its gain",
    "unsafe": "changes the training result, cannot be checked, or needs too much memory: it is not used",
    "out of memory": "a rank ran out of device memory",
    "failed": "the job ended with an error, or did not report the judged quantity",
    "not applied": "the setting did not reach the job, so its effect is unknown",
}
OUTCOME_ORDER: tuple[TriedOutcome, ...] = tuple(OUTCOME_MEANINGS)
_INTERRUPTED: Mapping[TuningStage, str] = {
    "noise_floor": ", before the job had made enough steps",
    "confirmation": ", while a change was being confirmed",
}


class Adopted(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the accepted changes: one change, or several that were confirmed only together."""

    changes: tuple[Change, ...]
    verdict: Verdict | None
    prediction: Prediction | None
    bound: float | None
    not_shown: tuple[str, ...] = ()  # names of changes that looked no better than noise alone
    only_together: tuple[str, ...] = ()  # names of changes that had no separate trial

    @property
    def name(self) -> str:
        return " + ".join(change.name for change in self.changes)

    @property
    def safety(self) -> Safety:
        return max((change.safety for change in self.changes), key=SAFETIES.index)


def adopted_rows(result: TuneResult) -> tuple[Adopted, ...]:
    """Return the rows of the final set's changes, in the order of their adoption; each change is in one row."""
    final = {change.name: change for change in result.tuning.changes.changes}
    tuned = {each.change.name: each for each in result.tuning.each}
    adopted_in: dict[str, TriedSet] = {}
    for tried in result.tried:
        if tried.outcome == "adopted":
            adopted_in.update(dict.fromkeys(tried.changes, tried))

    rows: list[Adopted] = []
    shown: set[str] = set()
    for name in final:
        if name in shown:
            continue
        alone, together = tuned.get(name), adopted_in.get(name)
        if together is not None and (alone is None or alone.verdict is None):
            names = [other for other in together.changes if other in final and other not in shown]
            verdict = together.verdict
        else:
            names = [name]
            verdict = alone.verdict if alone is not None else None
        shown.update(names)
        rows.append(
            Adopted(
                changes=tuple(final[other] for other in names),
                verdict=verdict,
                prediction=_adopted_prediction(names, alone, together),
                bound=_adopted_bound(final[name], together) if len(names) == 1 else None,
                not_shown=tuple(other for other in names if other in tuned and not tuned[other].is_shown_alone),
                only_together=tuple(other for other in names if other in tuned and not tuned[other].had_own_trial),
            )
        )
    return tuple(rows)


def _adopted_prediction(
    names: Sequence[str], alone: TunedChange | None, together: TriedSet | None
) -> Prediction | None:
    """Return the prediction for exactly these changes; the prediction for a subset of a tried set is unknown."""
    if len(names) == 1 and alone is not None and alone.prediction is not None:
        return alone.prediction
    if together is not None and sorted(together.changes) == sorted(names):
        return together.prediction
    return None


def _adopted_bound(change: Change, together: TriedSet | None) -> float | None:
    if together is not None and together.bound is not None:
        return together.bound
    return change.predicted_speedup


def not_shown_sentence(rows: Sequence[Adopted]) -> str:
    """Name the changes that may gain nothing; empty if there are none."""
    names = [name for row in rows for name in row.not_shown]
    if not names:
        return _only_together(rows)
    return f"Not shown alone: {', '.join(names)}. Its own trial was no better than noise, so it possibly gains nothing."


def _only_together(rows: Sequence[Adopted]) -> str:
    """Name the changes that had a trial only together with others; empty if there are none."""
    names = [name for row in rows for name in row.only_together]
    if not names:
        return ""
    return f"Tried only together: {', '.join(names)}. Any one of them possibly gains nothing."


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
            " also makes other work of a step shorter, or its trials have more of the finding than the recording has."
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
            f"{tried.name} measured {how}: more than the {ratio(bound)} that its findings cost. The bound is of the"
            " recording, whose steps may have less of the finding, and the measurement has noise."
        )
    return sentences


def _bound(prediction: Prediction | None, of_findings: float | None) -> float | None:
    return of_findings if prediction is None or prediction.bound is None else prediction.bound


def not_adopted(result: TuneResult) -> tuple[TriedSet, ...]:
    """Return the changes that were tried but are not in the final set, by outcome, then by trial order."""
    final = {change.name for change in result.tuning.changes.changes}
    left = [one for one in result.tried if one.outcome != "adopted" or not final.issuperset(one.changes)]
    return tuple(sorted(left, key=lambda one: OUTCOME_ORDER.index(one.outcome)))


def is_better(result: TuneResult) -> bool:
    return result.tuning.verdict is not None and result.tuning.verdict.verdict == "better"


# Ratios.


def ratio(value: float) -> str:
    """Format a ratio: `1.83x`. A ratio near 1 has three decimals, so that it does not read as 1."""
    return f"{value:.{_digits((value,))}f}x"


def ratio_range(low: float, high: float) -> str:
    """Format a range of ratios: `1.79-1.87`."""
    digits = _digits((low, high))
    return f"{low:.{digits}f}-{high:.{digits}f}"


class Estimate(NamedTuple):
    """A value and its interval, as texts: `1.83x` and `1.79-1.87`, or `no interval`."""

    value: str
    interval: str

    def __str__(self) -> str:
        return f"{self.value} ({self.interval})"


def ratio_estimate(value: float, interval: tuple[float, float] | None) -> Estimate:
    """Format a ratio with its interval: `1.83x (1.79-1.87)`, or `1.83x (no interval)`."""
    if interval is None:
        return Estimate(ratio(value), NO_INTERVAL)
    digits = _digits((value, *interval))
    return Estimate(f"{value:.{digits}f}x", f"{interval[0]:.{digits}f}-{interval[1]:.{digits}f}")


def _digits(values: Sequence[float]) -> int:
    if max(values) >= 19.995:
        return 1
    if any(value != 1 and abs(value - 1) < 0.0095 for value in values):
        return 3
    return 2


def measured_text(verdict: Verdict | None) -> str:
    """Format the measured ratio: `1.83x (1.79-1.87)`, or `unknown`."""
    if verdict is None or verdict.speedup is None:
        return UNKNOWN
    return str(ratio_estimate(verdict.speedup, verdict.interval))


def predicted_estimate(prediction: Prediction) -> Estimate:
    return ratio_estimate(prediction.speedup, (prediction.low, prediction.high))


def predicted_text(prediction: Prediction | None, bound: float | None, objective: Objective) -> str:
    """Format the predicted ratio: `1.60x (1.30-1.90)`, or `at most 3.70x` if only the findings' bound is known.

    Both are ratios of time: memory and energy are not predicted.
    """
    if objective in _SAVED:
        return UNKNOWN
    if prediction is not None:
        return str(predicted_estimate(prediction))
    if bound is not None and math.isfinite(bound):
        return f"at most {ratio(bound)}"
    return UNKNOWN


def gain(verdict: Verdict) -> Estimate:
    """Return the gain that a verdict claims: `1.83x faster (1.79-1.87)`, `44 % less peak memory (42 % to 46 %)`.

    The verdict must have a speedup.
    """
    assert verdict.speedup is not None
    saved = _SAVED.get(verdict.objective)
    if saved is not None:
        return _saving(saved, verdict.speedup, verdict.interval)
    if verdict.verdict == "worse" and verdict.speedup < 1:
        slowdown_interval = (1 / verdict.interval[1], 1 / verdict.interval[0]) if verdict.interval else None
        slower = ratio_estimate(1 / verdict.speedup, slowdown_interval)
        return slower._replace(value=f"{slower.value} slower")
    estimate = ratio_estimate(verdict.speedup, verdict.interval)
    if verdict.verdict == "better":
        return estimate._replace(value=f"{estimate.value} faster")
    return estimate


def _saving(what: str, speedup: float, interval: tuple[float, float] | None) -> Estimate:
    """Format a saving: `44 % less peak memory (42 % to 46 %)`; a loss is `more`."""
    share = 1 - 1 / speedup
    sign, direction = (1, "less") if share >= 0 else (-1, "more")
    if interval is None:
        return Estimate(f"{sign * share * 100:.1f} % {direction} {what}", NO_INTERVAL)
    low, high = sorted(sign * (1 - 1 / end) * 100 for end in interval)
    digits = 0 if high - low >= 2 else 1
    value = f"{sign * share * 100:.{digits}f} % {direction} {what}"
    return Estimate(value, f"{low:.{digits}f} % to {high:.{digits}f} %")


# Sentences.


def headline(result: TuneResult, *, arrow: str = "->") -> str:
    """Return the verdict as a sentence without a capital letter. `arrow` separates the cost before and after."""
    verdict = result.tuning.verdict
    if not result.tuning.changes.changes:
        return _nothing(result)
    if verdict is None:
        return "not confirmed: the changes were never compared with the baseline"
    if verdict.verdict == "better":
        trials = f"confirmed {evidence_words(verdict)}"
        costs = before_after(result, arrow=arrow)
        where = _where(result.tuning, verdict)
        return f"{gain(verdict)}{where}, {trials}" + (f"; {costs}" if costs else "")
    on_pairs = evidence_words(verdict)
    if verdict.verdict == "worse":
        return f"do not use the changes: together they are worse, {gain(verdict)} {on_pairs}"
    if verdict.verdict == "equivalent":
        return f"no gain: the job with all changes and the baseline are equivalent, {gain(verdict)} {on_pairs}"
    estimate = f", {gain(verdict)} {on_pairs}" if verdict.speedup is not None else ""
    return f"not confirmed: whether all changes together help is undecided{estimate}"


def _where(tuning: Tuning, verdict: Verdict) -> str:
    """Say which steps of the job a gain is of, if not of all: the gain of the job is then unknown."""
    if tuning.covers_first_epoch_only:
        return " in the first epoch; later epochs are unknown"
    if verdict.unmeasured_work:
        return f" in regular steps; what each {work_name(verdict.unmeasured_work)} takes then is unknown"
    return ""


def evidence_words(verdict: Verdict) -> str:
    """Name the trials behind a verdict: `by 2 trials against 4 of the baseline`."""
    if verdict.num_candidates:
        return f"by {counted(verdict.num_candidates, 'trial')} against {verdict.num_baselines} of the baseline"
    return f"on {counted(verdict.num_pairs, 'fresh pair')}"


def likely_gain(result: TuneResult) -> TriedSet | None:
    """Return the undecided set that is most likely a gain, if it is likely at all."""
    likely = [
        one
        for one in result.tried
        if one.outcome in ("not confirmed", "not reached")
        and one.verdict is not None
        and one.verdict.verdict == "undecided"
        and _is_likely(one)
    ]
    return max(likely, key=_speedup_so_far, default=None)


def _is_likely(one: TriedSet) -> bool:
    """Return whether an undecided set is probably better; of a single trial, only what more of them would show."""
    verdict = one.verdict
    if verdict is None or verdict.probability_better is None:
        return one.more is not None and one.more.probability >= LIKELY_CLAIM
    return verdict.probability_better >= LIKELY_GAIN


def _speedup_so_far(one: TriedSet) -> float:
    return (one.verdict.speedup if one.verdict is not None else None) or 1.0


def undecided_words(one: TriedSet) -> str:
    """Say how likely an undecided set is better, and what more trials would show."""
    verdict = one.verdict
    assert verdict is not None
    text = f"{one.name} looks {measured_text(verdict)} as fast"
    if verdict.probability_better is not None:
        text += f", better with {probability(verdict.probability_better)} probability"
    return f"{text}; {more_sentence(one.more)}" if one.more is not None else text


def _nothing(result: TuneResult) -> str:
    likely = likely_gain(result)
    if likely is not None:
        return f"undecided: {undecided_words(likely)}"
    tried = [one for one in result.tried if one.outcome != "not reached"]
    outcomes, num_open = Counter(one.outcome for one in tried), len(result.tried) - len(tried)
    if not outcomes and not any(one.screened is not None for one in result.tried):
        if result.floor is None or was_cut_short(result):
            return f"no change was tried: {why_ended(result.end)}"
        return "no change helps: Flatout found none to try"
    if outcomes["adopted"]:
        return "no change is kept: changes that were better in their trials did not pass together"
    if outcomes and not outcomes["not better"] and not outcomes["not confirmed"]:
        words = ", ".join(f"{outcomes[name]} {name}" for name in OUTCOME_ORDER if outcomes[name])
        if not num_open:
            return f"no change can be used: {words}"
        return f"no change was shown to help before the tuning run ended: {words}, and {num_open} not reached"
    num_undecided = sum(is_undecided_gain(one) for one in tried)
    if num_undecided:
        left = f", and {num_open} more {'was' if num_open == 1 else 'were'} not reached" if num_open else ""
        return f"no change is shown to help: {num_undecided} of {len(tried)} stayed undecided{left}"
    if was_cut_short(result):
        return f"no change was shown to help before the tuning run ended: {why_ended(result.end)}"
    return "no change helps: nothing was better than the baseline"


def was_cut_short(result: TuneResult) -> bool:
    """Return whether a budget of time or trials ended the tuning; changes that it did not reach are then unjudged."""
    return result.is_cut_short


def is_undecided_gain(one: TriedSet) -> bool:
    """Return whether the pairs leave open that the changes gain more than the smallest gain that counts."""
    verdict = one.verdict
    if one.outcome != "not confirmed" or verdict is None or verdict.verdict != "undecided":
        return False
    return verdict.best_case is None or verdict.best_case > 1 + verdict.min_effect


Quantity = Literal["step", "memory"]


def compared_quantity(result: TuneResult) -> Quantity | None:
    """Return the quantity that shows the gain; None if it is unknown, or if neither measures the objective."""
    if result.objective == "peak_memory_bytes":
        is_known = bool(result.baseline_peak_memory_bytes and result.tuned_peak_memory_bytes)
        return "memory" if is_known else None
    before_s, after_s = result.baseline_step_s, result.tuned_step_s
    if before_s is None or after_s is None or result.objective in ("j_per_sample", "j_per_step"):
        return None
    if result.objective != "step_s" and after_s >= before_s:  # longer steps, but of more samples
        return None
    return "step"


def before_after(result: TuneResult, *, arrow: str = "->") -> str:
    """Format the cost before and after: `254 ms -> 79.0 ms per step`; empty if `compared_quantity` is None."""
    match compared_quantity(result):
        case "memory":
            before_bytes, after_bytes = result.baseline_peak_memory_bytes, result.tuned_peak_memory_bytes
            return f"{units.num_bytes(before_bytes or 0)} {arrow} {units.num_bytes(after_bytes or 0)}"
        case "step":
            before_s, after_s = result.baseline_step_s, result.tuned_step_s
            return f"{units.seconds(before_s or 0.0)} {arrow} {units.seconds(after_s or 0.0)} per step"
        case None:
            return ""


def step_parts(result: TuneResult, *, arrow: str = "->") -> tuple[str, ...]:
    """Say how a step divides into a regular step and the work that only some steps have, in both arms."""
    after = result.tuned_step if result.tuning.changes.changes else None
    return step_sentences(result.baseline_step, after, arrow=arrow)


def facts(result: TuneResult) -> list[str]:
    """Return a few facts about the job, its machine and the options of the tuning."""
    machine = dict(result.tuning.machine)
    found = []
    num_ranks, num_hosts = machine.pop("num_ranks", None), machine.pop("num_hosts", None)
    machine.pop("ranks_per_host", None)  # already stated by the two facts above
    if num_ranks is not None:
        found.append("1 rank" if num_ranks == "1" else f"{num_ranks} ranks")
    if num_hosts not in (None, "1"):
        found.append(f"{num_hosts} hosts")
    found += [value if name == "device" else f"{name.replace('_', ' ')} {value}" for name, value in machine.items()]
    found += [f"{name} {version}" for name, version in result.tuning.versions.items()]
    found.append(f"tuned for {OBJECTIVE_WORDS[result.objective]}")
    allowed = SAFETIES[: SAFETIES.index(result.allowed_safety) + 1]
    found.append(f"changes allowed: {', '.join(allowed)}")
    return found


def why(one: TriedSet) -> str:
    """Return why a change was not adopted; for an unsafe change only the failed gate, never its speed."""
    reason = one.reason or "no reason is recorded"
    if len(reason) > LONGEST_REASON:
        reason = reason[:LONGEST_REASON].rstrip() + "..."
    if one.outcome == "adopted":
        return "better in repeated trials, but not in the final set"
    verdict = one.verdict
    if one.outcome not in ("not confirmed", "not reached") or verdict is None:
        return reason
    what = "trial" if verdict.num_candidates else "pair"
    if verdict.num_void:
        reason += f" ({counted(verdict.num_void, what)} invalid: {'; '.join(verdict.void_reasons)})"
    if verdict.speedup is None:
        return f"{verdict.verdict}: {reason}"
    trials = evidence_words(verdict)
    if not verdict.num_candidates:
        trials = f"on {counted(verdict.num_pairs, 'pair')}"
    if verdict.verdict == "undecided" and verdict.probability_better is not None:
        trials += f", better with {probability(verdict.probability_better)} probability"
    if one.more is not None:
        reason += f"; {more_sentence(one.more)}"
    return f"{verdict.verdict}, {ratio_estimate(verdict.speedup, verdict.interval)} {trials}: {reason}"


def noise_sentence(result: TuneResult) -> str:
    floor = result.floor
    if floor is None:
        return "The noise floor is unknown: too few baseline trials were run."
    num_steps = result.num_steps
    sd = floor.trial_sd(num_steps)
    size = units.percent(sd) if sd >= 0.0005 else "less than 0.1 %"
    text = (
        f"Runs of the unchanged job differ by {size} (standard deviation of a trial "
        f"of {counted(num_steps, 'step')}, from {counted(floor.num_trials, 'trial')})"
    )
    if floor.spike_share > 0:
        text += f"; {units.percent(floor.spike_share)} of the steps are spikes"
    return text + "."


def final_sentences(verdict: Verdict) -> list[str]:
    """Explain the final verdict; the last sentence is about the interval."""
    text = f"All changes together: {verdict.verdict}"
    text += f" ({verdict.reason})" if verdict.reason else ""
    text += f", {evidence_words(verdict)}"
    if verdict.order:
        text += f" in the order {verdict.order} (A: baseline)"
    found = [f"{text}."]
    if verdict.num_void:
        what = "trial" if verdict.num_candidates else "pair"
        found.append(f"Invalid: {counted(verdict.num_void, what)} ({'; '.join(verdict.void_reasons)}).")
    if _is_corrected(verdict):
        mean = gain(msgspec.structs.replace(verdict, speedup=verdict.mean_speedup))
        found.append(
            f"Trials of changes judged {verdict.verdict} overstate the difference on average, so the ratio is"
            f" corrected; their plain mean is {mean.value}."
        )
    if verdict.interval is not None:
        risk = units.percent(verdict.error_rate)
        found.append(
            "The interval is valid over all interim analyses: the probability that it misses the true value is at most"
            f" {risk}."
        )
    return found


def _is_corrected(verdict: Verdict) -> bool:
    """Return whether the correction is large enough to be reported."""
    if not verdict.speedup or not verdict.mean_speedup:
        return False
    quoted, mean = abs(math.log(verdict.speedup)), abs(math.log(verdict.mean_speedup))
    return mean - quoted > TOLD * mean


def has_predictions(result: TuneResult) -> bool:
    """Return whether predictions apply to the measured quantity: they are predictions of time."""
    return result.objective not in _SAVED


def end_sentence(result: TuneResult) -> str:
    resumed = f", {result.num_resumed:,} of them from the journal" if result.num_resumed else ""
    trials = f"{counted(result.num_trials, 'trial')}{resumed}"
    return f"Ended because {why_ended(result.end)}. {trials}, in {duration(result.took_s)}."


def why_ended(end: TuningEnd) -> str:
    """Say what ended the tuning run, in a sentence without a capital letter and full stop."""
    limit = f"{end.limit:.0f}" if end.limit is not None else UNKNOWN
    reserved = f" but {end.num_reserved}, which are reserved for the final verdict," if end.num_reserved else ""
    sentences: Mapping[EndedBy, str] = {
        "no_candidates": "no remaining change has an estimated gain of 1 % or more",
        "max_rounds": f"the maximum of {limit} rounds was reached",
        "not_profiled": "the job with the applied changes could not be profiled again",
        "time_budget": f"the budget of {limit} s is used up",
        "trial_budget": f"all {limit} trials{reserved} were made",
        "interrupted": "you interrupted it",
    }
    sentence = sentences[end.ended_by]
    return sentence + _INTERRUPTED[end.interrupts] if end.interrupts is not None else sentence


def duration(value_s: float) -> str:
    """Format a duration: `45 s`, `9 min 58 s`, `2 h 05 min`."""
    whole = round(value_s)
    if whole < 120:
        return units.seconds(value_s) if whole < 10 else f"{whole} s"
    minutes, seconds = divmod(whole, 60)
    if minutes < 120:
        return f"{minutes} min {seconds:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def all_notes(result: TuneResult) -> tuple[str, ...]:
    """Return the notes of a tuning, the last of which says how its trials' files were kept apart."""
    if result.separation is None:
        return result.notes
    return (*result.notes, separation_sentence(result.separation))
