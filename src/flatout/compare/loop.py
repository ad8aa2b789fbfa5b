"""The comparison: trials of A and B in turn until the question is decided, then profiles of both, then the result.

The question is that of the gate if there is one ("is B slower by more than 3 %?"), and otherwise which arm is faster.
All trials of both arms count, from the first one on. The verdict comes first: profiles, which say where the difference
is and decide nothing, run in the time that it leaves. Without any, the step logs of the trials say what they can.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flatout.compare.evidence import ComparisonEvidence
from flatout.compare.judge import Judged, is_gate_hopeless, judged
from flatout.compare.options import CompareOptions
from flatout.compare.power import num_trials_with, power, trials_by_noise
from flatout.compare.runner import ArmRunner, arm_of
from flatout.errors import FlatoutError, InputError
from flatout.records.comparison import ArmName, EndedBy, Power
from flatout.records.stop_rule import StopRule
from flatout.records.trial import TrialResult
from flatout.report.comparison_phrases import no_profile_note, power_sentence, prior_power_sentence, signed_percent
from flatout.report.step_phrases import step_words
from flatout.tune.runner import Say
from flatout.tune.signals import EndedBySignal
from flatout.tune.trial_length import trial_length
from flatout.tune.trials import measured_times
from flatout.verdict.analyses import ANALYSES
from flatout.verdict.arm_step import arm_step
from flatout.verdict.cost import missing, trial_costs

NUM_FIRST = 4  # trials, two of each arm, after which the noise is known well enough to state the power
MAX_FAILED = 3  # trials of one arm
_ANALYSED = frozenset(analysis.num_fresh for analysis in ANALYSES)  # numbers of B's trials
DEFAULT_EFFECT = 0.03  # the slowdown for which the power is stated without a gate
GATE_TIMES = 5 / 3  # with a gate, the power is stated for a slowdown of this many gates: 5 % for a gate of 3 %


class Compared(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What a comparison has seen, and what it concludes."""

    evidence: ComparisonEvidence
    judged: Judged
    power: Power | None
    ended_by: EndedBy
    interruption: EndedBySignal | KeyboardInterrupt | None = None


def compare(runner: ArmRunner, options: CompareOptions, say: Say) -> Compared:
    """Compare the two arms that `runner` runs.

    Raises InputError if the command of an arm fails. An interruption ends the comparison with what is known so far;
    it is raised if no trial of each arm is complete yet.
    """
    effect = stated_effect(options)
    say(prior_power_sentence(trials_by_noise(effect, options.gate), effect, options.gate, NUM_FIRST))
    evidence = ComparisonEvidence(objective=options.objective)
    so_far: Judged | None = None
    stated: Power | None = None
    ended_by: EndedBy = "decided"
    interruption: EndedBySignal | KeyboardInterrupt | None = None
    try:
        while (reason := _end(runner, evidence, options, so_far)) is None:
            result = runner.trial(next_length(evidence, options, options.budget_s - runner.spent_s()))
            evidence.add(result, runner)
            _check(evidence, runner)
            if evidence.num_complete == NUM_FIRST and stated is None:
                stated = _state_power(runner, evidence, options, say)
            if evidence.has_both and (so_far is None or _is_analysis_due(evidence)):
                so_far = _judged(evidence, options)
            _report(so_far, evidence.trials, runner, say)
        ended_by = reason
        if so_far is not None and so_far.verdict.verdict != "equivalent":
            _profile(runner, evidence, options, say)
    except (KeyboardInterrupt, EndedBySignal) as error:
        if not evidence.has_both:
            raise
        ended_by, interruption = "interrupted", error
    is_last = ended_by != "decided"
    return Compared(
        evidence=evidence,
        judged=_judged(evidence, options, is_last=is_last),
        power=stated,
        ended_by=ended_by,
        interruption=interruption,
    )


def _is_analysis_due(evidence: ComparisonEvidence) -> bool:
    """Whether the last trial is one of B after which its trials are analysed: no other trial changes the verdict."""
    last = evidence.trials[-1]
    is_of_b = last.is_complete and arm_of(last.index) == "B"
    return is_of_b and _num_of_b(evidence) in _ANALYSED


def _num_of_b(evidence: ComparisonEvidence) -> int:
    return sum(trial.is_complete for trial in evidence.trials_of("B"))


def _judged(evidence: ComparisonEvidence, options: CompareOptions, *, is_last: bool = False) -> Judged:
    return judged(
        evidence.trials,
        objective=evidence.objective,
        gate=options.gate,
        min_effect=options.min_effect,
        is_last=is_last,
    )


def _end(
    runner: ArmRunner, evidence: ComparisonEvidence, options: CompareOptions, so_far: Judged | None
) -> EndedBy | None:
    """Return why no further trial is run; None if one is."""
    if so_far is None:
        return None
    if so_far.is_decided:
        return "decided"
    # The verdict may be older than the last analysis: it is final once it decides, and the gate is asked further.
    if _num_of_b(evidence) >= ANALYSES[-1].num_fresh:
        return "last_analysis"
    if options.max_trials is not None and len(evidence.trials) >= options.max_trials:
        return "trial_budget"
    if runner.spent_s() + evidence.trial_s > options.budget_s:
        return "time_budget"
    if options.gate is None:
        return None
    is_hopeless = is_gate_hopeless(evidence.trials, objective=evidence.objective, gate=options.gate)
    return "hopeless" if is_hopeless else None


def next_length(evidence: ComparisonEvidence, options: CompareOptions, left_s: float) -> StopRule | int:
    """Return when the next trial has counted enough steps, or how many it counts.

    Both arms follow one rule, from the times of both, so that their trials differ in nothing but the arm. What a trial
    should help to see is how far the slowdown in question is from the gate.
    """
    if options.num_steps is not None:
        return options.num_steps
    complete = [trial for trial in evidence.trials if trial.is_complete]
    run_sd = evidence.run_sd if len(complete) >= NUM_FIRST else None
    sought = stated_effect(options) - (options.gate or 0.0)
    return trial_length(measured_times(complete, run_sd), effect=sought, budget_left_s=left_s)


def _check(evidence: ComparisonEvidence, runner: ArmRunner) -> None:
    """Raise InputError if an arm's command fails: at its first trial, or again and again."""
    last = evidence.trials[-1]
    if last.is_complete:
        absent = missing(last, evidence.objective)
        if absent is not None:
            raise InputError(f"the two commands cannot be compared for this objective: {absent}")
        return
    arm = arm_of(last.index)
    of_arm = [trial for trial in evidence.trials if arm_of(trial.index) == arm]
    failed = [trial for trial in of_arm if not trial.is_complete]
    output = runner.output_of(last.index)
    hint = f"its output is in {output}" if output is not None else ""
    if len(of_arm) == 1:
        other = "B has not been run" if arm == "A" else "A's command does not"
        raise InputError(f"{arm}'s command fails, and {other}: {last.problem}", hint=hint)
    if len(failed) >= MAX_FAILED:
        raise InputError(f"{len(failed)} of {len(of_arm)} trials of {arm} failed, the last: {last.problem}", hint=hint)


def stated_effect(options: CompareOptions) -> float:
    """Return the slowdown for which the power is stated."""
    return DEFAULT_EFFECT if not options.gate else GATE_TIMES * options.gate


def _state_power(runner: ArmRunner, evidence: ComparisonEvidence, options: CompareOptions, say: Say) -> Power:
    """Say what the comparison can show, from the noise of its first trials."""
    left_s = options.budget_s - runner.spent_s()
    num_affordable = len(evidence.trials) + max(int(left_s / evidence.trial_s), 0)
    num_affordable = min(num_affordable, num_trials_with(ANALYSES[-1].num_fresh))
    if options.max_trials is not None:
        num_affordable = min(num_affordable, options.max_trials)
    stated = power(
        evidence.run_sd or 0.0,
        NUM_FIRST - 2,
        effect=stated_effect(options),
        gate=options.gate,
        trial_s=evidence.trial_s,
        num_affordable=num_affordable,
    )
    say(power_sentence(stated, options.gate))
    return stated


def _report(so_far: Judged | None, trials: Sequence[TrialResult], runner: ArmRunner, say: Say) -> None:
    """Print one line on the last trial, with the result so far."""
    result = trials[-1]
    arm = arm_of(result.index)
    what = result.problem
    if result.is_complete:
        complete = [trial for trial in trials if trial.is_complete]
        step = arm_step([trial_costs(complete, "step_s")[result.index]])
        what = step_words(step) if step is not None else ""
    line = f"{runner.spent_s():5.0f} s  trial {result.index:3d}  {arm}: {what}"
    if so_far is not None and so_far.verdict.interval is not None:
        low, high = so_far.verdict.interval
        line += f"; B's cost: {signed_percent(1 / high - 1)} to {signed_percent(1 / low - 1)}"
    say(line)


def _profile(runner: ArmRunner, evidence: ComparisonEvidence, options: CompareOptions, say: Say) -> None:
    """Profile both arms in turn while the time that the trials left lasts; a failure is a note."""
    longest_s = evidence.trial_s
    for position in range(2 * options.num_profiles):
        num_needed = 2 if position % 2 == 0 else 1  # a profile of one arm alone shows no difference
        if runner.spent_s() + num_needed * longest_s > options.budget_s:
            if position == 0:
                evidence.notes.append(no_profile_note())
            return
        arm: ArmName = arm_of(position)
        began_s = runner.spent_s()
        say(f"{began_s:5.0f} s  profile of {arm}")
        try:
            evidence.add_profile(arm, runner.profile(arm))
        except FlatoutError as error:
            evidence.notes.append(f"{arm} could not be profiled: {error}")
            return
        longest_s = max(longest_s, runner.spent_s() - began_s)
