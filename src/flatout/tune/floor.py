"""Measure the noise floor: trials of the unchanged job, and how long a trial must be."""

from __future__ import annotations

from flatout.errors import InputError
from flatout.records.trial import TrialResult
from flatout.records.verdict import Objective
from flatout.trial.gates import loss_note
from flatout.trial.gradient_gate import gradient_note
from flatout.tune.budget import OutOfBudgetError, time_is_up, warn_of_budget
from flatout.tune.options import OBJECTIVES
from flatout.tune.state import NOTHING, TuningState
from flatout.tune.trials import trial
from flatout.verdict.cost import missing
from flatout.verdict.noise import noise_floor, plan_trials

NUM_FLOOR_TRIALS = 3
WANTED_EFFECT = 0.03
MAX_STEPS, MIN_STEPS = 200, 12
MAX_TRIAL_STEPS_S = 20.0  # seconds of measured steps per trial: if steps are slow, a trial has fewer of them


def measure_noise(state: TuningState) -> None:
    """Run the baseline trials; their spread determines how long a trial must be.

    Raises InputError if the unchanged command fails, and OutOfBudgetError.
    """
    state.say(f"noise floor: running {NUM_FLOOR_TRIALS} baseline trials")
    for _ in range(NUM_FLOOR_TRIALS):
        result = trial(state, NOTHING)
        if result.outcome == "timed_out" and state.runner.spent_s() >= state.options.budget_s:
            raise OutOfBudgetError(time_is_up(state, interrupts="noise_floor"))
        if not result.is_complete:
            raise _failed_baseline(state, result)
        state.baselines.append(result)
        state.objective = _objective(state)
    state.current_trials = list(state.baselines)
    for note in (loss_note(state.baselines), gradient_note(state.baselines)):
        if note is not None:
            state.notes.append(note)
            state.say(note)
    state.floor = noise_floor(state.baselines, objective=state.objective)
    if state.options.num_steps is None:
        plan = plan_trials(state.floor, effect=WANTED_EFFECT, min_effect=state.options.min_effect, max_steps=MAX_STEPS)
        num_affordable = int(MAX_TRIAL_STEPS_S / state.floor.step_s)
        state.num_steps = max(min(plan.num_steps, num_affordable, MAX_STEPS), MIN_STEPS)
        state.say(f"noise floor: {plan.reason}")
    warn_of_budget(state)


def _failed_baseline(state: TuningState, result: TrialResult) -> InputError:
    output = f"its output is in {state.runner.out}/runs/trial-{result.index:03d}/output.log"
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


def _objective(state: TuningState) -> Objective:
    first = state.baselines[0]
    if state.options.objective is None:
        return "s_per_sample" if first.samples_per_step else "step_s"
    absent = missing(first, state.options.objective)
    if absent is not None:
        measured = [name for name, objective in OBJECTIVES.items() if missing(first, objective) is None]
        raise InputError(
            f"the job cannot be tuned for this objective: {absent}", hint=f"this job reports: {', '.join(measured)}"
        )
    return state.options.objective
