"""Profile the job with the applied changes, and count the profile as one of its trials where it is as good as one.

In: what is known so far. Out: the same with the profile, and with another trial of the applied changes if the steps
before the trace were undisturbed and enough. A trial that is saved so is one whose start the user does not wait for.
"""

from __future__ import annotations

import msgspec

from flatout.errors import FlatoutError, InvalidTrialError, NotTracedError, TracedTooLateError
from flatout.records.stop_rule import StopRule, fixed_steps
from flatout.records.tuning import TuningEnd
from flatout.trial.step_kinds import step_spells
from flatout.tune.budget import num_floor_trials, time_is_up, used_up
from flatout.tune.profiled import CountedProfile, Profiled
from flatout.tune.progress import Progress, Setup, StoppedError
from flatout.tune.trials import next_length
from flatout.verdict.cost import TIMES
from flatout.verdict.typical_firsts import typical_kinds


def profile_job(
    setup: Setup, progress: Progress, *, is_coarse: bool = False, other_samples: bool = False
) -> tuple[Progress, Profiled]:
    """Profile the job with the applied changes, unless that is done.

    It may count as a coarse trial (`is_coarse`), and its loader may draw other samples than in the other trials. Raises
    StoppedError if the budget ends first, or if the job takes too long to be traced, or if the profile fails after a
    change was adopted: what was found so far stands.
    """
    applied = progress.applied.changes
    known = progress.profiles.get(applied.name)
    if known is not None:
        return progress, known
    try:
        with setup.interrupts.raised():
            rule = _rule(setup, progress)
            counted = None
            if rule is not None:
                counted = CountedProfile(rule=rule, is_coarse=is_coarse, has_other_samples=other_samples)
            profiled = _profile(setup, progress, counted)
    except KeyboardInterrupt as interrupt:
        raise StoppedError(progress, TuningEnd(ended_by="interrupted")) from interrupt
    except InvalidTrialError:
        raise
    except FlatoutError as error:
        stopped = _stop(setup, progress, error)
        if stopped is None:
            raise
        raise stopped from error
    if profiled.trial is not None:
        progress = progress.with_trial(applied, profiled.trial)
    if not progress.applied:
        kinds = typical_kinds(step_spells(profiled.recording.ranks) or ())
        progress = msgspec.structs.replace(progress, evidence=progress.evidence.with_typical_firsts(kinds))
    profiles = {**progress.profiles, applied.name: profiled}
    return msgspec.structs.replace(progress, profiles=profiles), profiled


def _stop(setup: Setup, progress: Progress, error: FlatoutError) -> StoppedError | None:
    """Return how the tuning ends without this profile; None if the unchanged job fails in one, which is an error."""
    is_late = isinstance(error, TracedTooLateError)
    if setup.runner.spent_s() >= setup.options.budget_s:  # which ended the command
        return StoppedError(progress, time_is_up(setup, interrupts="profile"))
    end = used_up(setup, progress)
    if is_late and end is not None:
        return StoppedError(progress, msgspec.structs.replace(end, interrupts="profile"))
    if progress.applied:
        note = f"the job with the applied changes could not be profiled again: {error}"
        return StoppedError(progress.with_note(note), TuningEnd(ended_by="not_profiled"))
    if not is_late:
        return None
    note = f"no change was tried, because a profile shows what to try: {error}; {error.hint}"
    return StoppedError(progress.with_note(note), TuningEnd(ended_by="never_profiled"))


def _profile(setup: Setup, progress: Progress, counted: CountedProfile | None) -> Profiled:
    """Profile the job. A job that ends before the trace is profiled again, without as many steps as a trial before it.

    Raises FlatoutError if it cannot be profiled so either, or if no time is left for that.
    """
    applied = progress.applied.changes
    try:
        return setup.runner.profile(applied, counted=counted)
    except NotTracedError as error:
        if counted is None or used_up(setup, progress) is not None:
            raise
        setup.say(f"{error}: profiling it again with fewer steps before the trace")
    return setup.runner.profile(applied)


def _rule(setup: Setup, progress: Progress) -> StopRule | None:
    """Return how long the profile measures before its trace; None if it cannot count as a trial.

    A trace affects peak memory and energy, so only times are as in a trial. Of a limited number of trials, none is
    spent on the profile once the unchanged job has had its first ones: a candidate needs them more.
    """
    baselines = progress.evidence.baselines
    if progress.objective not in TIMES or not baselines or used_up(setup, progress) is not None:
        return None
    if setup.options.max_trials is not None and len(baselines) >= num_floor_trials(setup):
        return None
    length = next_length(setup, progress, progress.applied.changes)
    return fixed_steps(length) if isinstance(length, int) else length
