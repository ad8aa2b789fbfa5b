"""Wording that all reports of a tuning share: the verdict, ratios with their intervals, outcomes.

In: a `TuneResult`. Out: texts. A ratio that has an interval is never shown without it, and the speed of a change
that failed a gate is never shown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Literal

import msgspec

from flatout import units
from flatout.records.change import SAFETIES
from flatout.records.tuning import (
    EndedBy,
    PaddingChange,
    TriedOutcome,
    TriedSet,
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
from flatout.report.tuning_bounds import besides_computation, nothing_helps_by
from flatout.report.tuning_ratios import UNKNOWN, gain, measured_text, ratio_estimate
from flatout.report.tuning_rows import OUTCOME_ORDER

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

MIN_LEFT = 0.1  # share of the time budget that is worth mentioning if no trial was made in it
_INTERRUPTED: Mapping[TuningStage, str] = {
    "noise_floor": ", before the job had made enough steps",
    "confirmation": ", while a change was being confirmed",
    "profile": ", while the job was being traced",
}


def is_better(result: TuneResult) -> bool:
    return result.tuning.verdict is not None and result.tuning.verdict.verdict == "better"


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
        return f" without the time of each {work_name(verdict.unmeasured_work)}, which is unknown with the changes"
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
    was_screened = any(one.screened is not None for one in result.tried)
    if not outcomes and not was_screened:
        return _nothing_tried(result)
    if outcomes["adopted"]:
        return "no change is kept: changes that were better in their trials did not pass together"
    could_be_used = outcomes["not better"] or outcomes["not confirmed"]
    if outcomes and not could_be_used:
        return _nothing_usable(outcomes, num_open)
    num_undecided = sum(is_undecided_gain(one) for one in tried)
    if num_undecided:
        return f"no change is shown to help: {num_undecided} of {len(tried)} stayed undecided{_more_open(num_open)}"
    if was_cut_short(result):
        return f"no change was shown to help before the tuning run ended: {why_ended(result.end)}"
    return _with_limit(result, "no change helps: nothing was better than the baseline")


def _nothing_tried(result: TuneResult) -> str:
    if result.floor is None or was_cut_short(result):
        return _with_limit(result, f"no change was tried: {why_ended(result.end)}")
    return _with_limit(result, "no change helps: Flatout found none to try")


def _with_limit(result: TuneResult, outcome: str) -> str:
    """Add to an outcome without a gain what is still possible, or say that it is next to nothing."""
    limit, negligible = besides_computation(result), nothing_helps_by(result)
    if negligible is not None:
        return f"nothing helps by {units.percent(negligible)}: {limit}"
    return f"{outcome}; {limit}" if limit else outcome


def _nothing_usable(outcomes: Counter[TriedOutcome], num_open: int) -> str:
    counted = ", ".join(f"{outcomes[name]} {name}" for name in OUTCOME_ORDER if outcomes[name])
    if not num_open:
        return f"no change can be used: {counted}"
    return f"no change was shown to help before the tuning run ended: {counted}, and {num_open} not reached"


def _more_open(num_open: int) -> str:
    if not num_open:
        return ""
    return f", and {num_open} more {'was' if num_open == 1 else 'were'} not reached"


def was_cut_short(result: TuneResult) -> bool:
    """Return whether the tuning ended before it was done; changes that it did not reach are then unjudged."""
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
        "never_profiled": "the job took too long to be traced",
        "time_budget": _end_of_time(end, limit),
        "trial_budget": f"all {limit} trials{reserved} were made",
        "interrupted": "you interrupted it",
    }
    sentence = sentences[end.ended_by]
    return sentence + _INTERRUPTED[end.interrupts] if end.interrupts is not None else sentence


def _end_of_time(end: TuningEnd, limit: str) -> str:
    """Say that the time is used up, or that what is left of it is too little for the next trials."""
    left_s = end.left_s or 0.0
    is_little = end.limit is None or left_s < MIN_LEFT * end.limit
    if is_little or end.needed_s is None:
        return f"the budget of {limit} s is used up"
    return f"{left_s:.0f} s of the budget of {limit} s were left, and the next trials take {end.needed_s:.0f} s"


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
    balanced = () if result.balanced is None else (balanced_sentence(result.balanced),)
    separated = () if result.separation is None else (separation_sentence(result.separation),)
    return (*result.notes, *balanced, *separated)


def balanced_sentence(balanced: PaddingChange) -> str:
    """Say what batches of like length have changed."""
    padding = balanced.padding
    before, after = units.percent(padding.before_share), units.percent(padding.after_share)
    spread_before = units.percent(balanced.baseline_step_spread)
    spread_after = units.percent(balanced.tuned_step_spread)
    return (
        f"padding: {before} of the tokens with the script's batches, {after} with balanced ones;"
        f" standard deviation of the step time: {spread_before} of its mean before, {spread_after} after"
    )
