"""The comparison: trials of A and B in turn until the question is decided, then profiles of both, then the result.

The question is that of the gate if there is one ("is B slower by more than 3 %?"), and otherwise which arm is faster.
All trials of both arms count, from the first one on. The profiles say where the difference is; they decide nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flatout.compare.evidence import Evidence
from flatout.compare.judge import Judged, is_gate_hopeless, judged
from flatout.compare.options import CompareOptions
from flatout.compare.power import num_trials_with, power, trials_by_noise
from flatout.compare.runner import ArmRunner, arm_of
from flatout.errors import FlatoutError, InputError
from flatout.records.comparison import ArmName, EndedBy, Power
from flatout.records.trial import TrialResult
from flatout.report.comparison_phrases import power_sentence, prior_power_sentence, signed_percent
from flatout.report.step_phrases import step_words
from flatout.tune.runner import Say
from flatout.tune.signals import EndedBySignal
from flatout.verdict.analyses import ANALYSES
from flatout.verdict.arm_step import arm_step
from flatout.verdict.cost import missing, trial_costs

FIRST_STEPS = 30  # measured steps of the first trial of each arm; later ones follow the step time
MIN_STEPS, MAX_STEPS = 12, 200
MAX_TRIAL_STEPS_S = 20.0  # seconds of measured steps per trial
NUM_FIRST = 4  # trials, two of each arm, after which the noise is known well enough to state the power
# A standard deviation of two trials each has two degrees of freedom: its median is 1 / 1.2 of the true one.
SMALL_SAMPLE = 1.2
MAX_FAILED = 3  # trials of one arm
DEFAULT_EFFECT = 0.03  # the slowdown for which the power is stated without a gate
GATE_TIMES = 5 / 3  # with a gate, the power is stated for a slowdown of this many gates: 5 % for a gate of 3 %


class Compared(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What a comparison has seen, and what it concludes."""

    evidence: Evidence
    judged: Judged
    power: Power | None
    ended_by: EndedBy
    interruption: EndedBySignal | KeyboardInterrupt | None = None


def compare(runner: ArmRunner, options: CompareOptions, say: Say) -> Compared:
    """Compare the two arms that `runner` runs.

    Raises InputError if the command of an arm fails. An interruption ends the comparison with what is known so far;
    it is raised if no trial of each arm is complete yet.
    """
    effect = _effect(options)
    say(prior_power_sentence(trials_by_noise(effect, options.gate), effect, options.gate, NUM_FIRST))
    evidence = Evidence(objective=options.objective)
    so_far: Judged | None = None
    stated: Power | None = None
    ended_by: EndedBy = "decided"
    interruption: EndedBySignal | KeyboardInterrupt | None = None
    try:
        while (reason := _end(runner, evidence, options, so_far)) is None:
            result = runner.trial(_num_steps(evidence.trials, options))
            evidence.add(result, runner)
            _check(evidence, runner)
            if evidence.num_complete == NUM_FIRST and stated is None:
                stated = _state_power(runner, evidence, options, say)
            so_far = _judged(evidence, options) if evidence.has_both else None
            _report(so_far, evidence.trials, runner, say)
        ended_by = reason
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


def _judged(evidence: Evidence, options: CompareOptions, *, is_last: bool = False) -> Judged:
    return judged(
        evidence.trials,
        objective=evidence.objective,
        gate=options.gate,
        min_effect=options.min_effect,
        is_last=is_last,
    )


def _end(runner: ArmRunner, evidence: Evidence, options: CompareOptions, so_far: Judged | None) -> EndedBy | None:
    """Return why no further trial is run; None if one is."""
    if so_far is None:
        return None
    if so_far.is_decided:
        return "decided"
    if so_far.verdict.num_candidates >= ANALYSES[-1].num_fresh:
        return "last_analysis"
    if options.max_trials is not None and len(evidence.trials) >= options.max_trials:
        return "trial_budget"
    profiles_s = _reserved_s(evidence, options)
    if runner.spent_s() + evidence.trial_s + profiles_s > options.budget_s:
        return "time_budget"
    is_analysed = any(analysis.num_fresh == so_far.verdict.num_candidates for analysis in ANALYSES)
    if options.gate is None or not is_analysed:
        return None
    is_hopeless = is_gate_hopeless(evidence.trials, objective=evidence.objective, gate=options.gate)
    return "hopeless" if is_hopeless else None


def _reserved_s(evidence: Evidence, options: CompareOptions) -> float:
    """Return the time that is kept for profiles: at most a fifth of the budget."""
    return min(2 * options.num_profiles * evidence.trial_s, options.budget_s / 5)


def _num_steps(trials: Sequence[TrialResult], options: CompareOptions) -> int:
    """Return the measured steps of the next trial: about as much time for them as for the start of the job."""
    if options.num_steps is not None:
        return options.num_steps
    complete = [trial for trial in trials[:2] if trial.is_complete]
    if len(complete) < 2:
        return FIRST_STEPS
    step_s = max(sum(trial.step_s) / len(trial.step_s) for trial in complete)
    start_s = max(trial.start_s or 0.0 for trial in complete)
    wanted_s = min(max(start_s, FIRST_STEPS * step_s), MAX_TRIAL_STEPS_S)
    return max(min(round(wanted_s / step_s), MAX_STEPS), MIN_STEPS)


def _check(evidence: Evidence, runner: ArmRunner) -> None:
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


def _effect(options: CompareOptions) -> float:
    """Return the slowdown for which the power is stated."""
    return DEFAULT_EFFECT if not options.gate else GATE_TIMES * options.gate


def _state_power(runner: ArmRunner, evidence: Evidence, options: CompareOptions, say: Say) -> Power:
    """Say what the comparison can show, from the noise of its first trials."""
    left_s = options.budget_s - runner.spent_s() - _reserved_s(evidence, options)
    num_affordable = len(evidence.trials) + max(int(left_s / evidence.trial_s), 0)
    num_affordable = min(num_affordable, num_trials_with(ANALYSES[-1].num_fresh))
    if options.max_trials is not None:
        num_affordable = min(num_affordable, options.max_trials)
    stated = power(
        (evidence.run_sd or 0.0) * SMALL_SAMPLE,
        effect=_effect(options),
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


def _profile(runner: ArmRunner, evidence: Evidence, options: CompareOptions, say: Say) -> None:
    """Profile both arms in turn while the budget lasts; a failure is a note."""
    for position in range(2 * options.num_profiles):
        is_first_of_arm = position < 2
        if not is_first_of_arm and runner.spent_s() + evidence.trial_s > options.budget_s:
            return
        arm: ArmName = arm_of(position)
        say(f"{runner.spent_s():5.0f} s  profile of {arm}")
        try:
            evidence.add_profile(arm, runner.profile(arm))
        except FlatoutError as error:
            evidence.notes.append(f"{arm} could not be profiled: {error}")
            return
