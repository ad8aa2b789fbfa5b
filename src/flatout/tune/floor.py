"""Run the first trials of the unchanged job: they show its objective, and how much its runs differ.

The profile counts as the last of them where it is as good as a trial. Where the budget allows too few trials even for a
large gain, it comes right after the first one, and counts where it is nearly as good.
"""

from __future__ import annotations

import msgspec

from flatout.errors import InputError
from flatout.records.trial import TrialResult
from flatout.records.tuning import Outlook
from flatout.records.verdict import Objective
from flatout.report.outlook_phrases import first_outlook_sentence, outlook_sentence, trial_sentence
from flatout.report.start_costs import start_hint, start_line
from flatout.trial.output_gate import reference_notes
from flatout.tune.budget import FEWEST_FLOOR_TRIALS, NUM_FLOOR_TRIALS, num_floor_trials, time_is_up
from flatout.tune.call_limit import check_job, check_unchanged
from flatout.tune.options import OBJECTIVES
from flatout.tune.outlook import first_outlook, outlook
from flatout.tune.profile_job import profile_job
from flatout.tune.progress import NOTHING, Progress, Setup, StoppedError
from flatout.tune.trials import run_trial
from flatout.verdict.cost import missing

__all__ = ["NUM_FLOOR_TRIALS", "measure_baseline"]


def measure_baseline(setup: Setup) -> Progress:
    """Run the first trials of the unchanged job.

    Raises InputError if the unchanged command fails, and StoppedError.
    """
    options = setup.options
    progress = Progress(objective=options.objective or "step_s", num_steps=options.num_steps, latency=options.latency)
    setup.say(f"measuring the unchanged job; {first_outlook_sentence(first_outlook(setup))}")
    progress = _with_baseline(setup, progress)
    check_job(progress.evidence.baselines[0], options.latency)
    setup.say(trial_sentence(outlook(setup, progress)))
    other_samples = _draws_samples(progress.evidence.baselines[0])
    if setup.options.max_trials is None and _is_short(outlook(setup, progress)):
        progress, _ = profile_job(setup, progress, is_coarse=True, other_samples=other_samples)
    while len(progress.evidence.baselines) < FEWEST_FLOOR_TRIALS:
        progress = _with_baseline(setup, progress, other_samples=other_samples)
    if len(progress.evidence.baselines) < num_floor_trials(setup):
        progress, _ = profile_job(setup, progress)  # it saves the last trial if it is as good as one
    while len(progress.evidence.baselines) < num_floor_trials(setup):
        progress = _with_baseline(setup, progress)
    setup.say(outlook_sentence(outlook(setup, progress)))
    baselines = progress.evidence.baselines
    check_unchanged(baselines, options.latency)
    for sentence in (start_line(baselines), start_hint(baselines)):
        if sentence is not None:
            setup.say(sentence)
    for note in reference_notes(baselines):
        progress = progress.with_note(note)
        setup.say(note)
    return progress


def _is_short(expected: Outlook) -> bool:
    """Whether the time allows too few trials to show even the largest of the usual gains."""
    largest = expected.gains[0]
    if largest.num_trials is None or expected.num_affordable is None:
        return False
    return expected.num_affordable < largest.num_trials


def _draws_samples(first: TrialResult) -> bool:
    """Whether changes of the loader can make this job train on other samples, and so with other losses."""
    return first.loader_workers is not None and bool(first.losses)


def _with_baseline(setup: Setup, progress: Progress, *, other_samples: bool = False) -> Progress:
    progress, result = run_trial(setup, progress, NOTHING, place="baseline", other_samples=other_samples)
    if result.outcome == "timed_out" and setup.runner.spent_s() >= setup.options.budget_s:
        raise StoppedError(progress, time_is_up(setup, interrupts="noise_floor"))
    if not result.is_complete:
        raise _failed_baseline(setup, result)
    objective = _objective(setup, progress.evidence.baselines[0])
    return msgspec.structs.replace(progress, objective=objective)


def _failed_baseline(setup: Setup, result: TrialResult) -> InputError:
    output = f"its output is in {setup.runner.out}/runs/trial-{result.index:03d}/output.log"
    if result.cause == "no_step":
        return InputError(f"the command cannot be tuned: {result.problem}", hint=output)
    if result.cause == "other_start":
        return InputError(
            f"the command cannot be tuned, because its runs do not start from the same state: {result.problem}",
            hint="make each run start from scratch, e.g. with {trial_dir} as its output folder, or without resuming",
        )
    if result.cause == "too_few_steps":
        return InputError(
            f"the command ended too early to be tuned: {result.problem}",
            hint=f"let it run for more steps: a trial stops the job when it has enough; {output}",
        )
    return InputError(f"the unchanged command fails: {result.problem}", hint=output)


def _objective(setup: Setup, first: TrialResult) -> Objective:
    wanted = setup.options.objective
    if wanted is None:
        return "s_per_sample" if first.samples_per_step else "step_s"
    absent = missing(first, wanted)
    if absent is not None:
        measured = [name for name, objective in OBJECTIVES.items() if missing(first, objective) is None]
        raise InputError(
            f"the job cannot be tuned for this objective: {absent}", hint=f"this job reports: {', '.join(measured)}"
        )
    return wanted
