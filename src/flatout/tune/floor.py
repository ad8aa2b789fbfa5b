"""The noise floor: trials of the job as it came, and how long a trial must be."""

from __future__ import annotations

from flatout.errors import InputError
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
MAX_TRIAL_STEPS_S = 20.0  # of settled steps: what takes longer is judged by fewer


def measure_noise(state: TuningState) -> None:
    """Trials of the job as it came: how much they differ decides how long a trial must be."""
    state.say(f"noise floor: {NUM_FLOOR_TRIALS} trials of the job as it is")
    for _ in range(NUM_FLOOR_TRIALS):
        made = trial(state, NOTHING)
        if made.outcome == "timed_out" and state.runner.spent_s() >= state.options.budget_s:
            raise OutOfBudgetError(time_is_up(state, interrupts="noise_floor"))
        if not made.is_complete:
            output = f"its output is in {state.runner.out}/runs/trial-{made.index:03d}/output.log"
            if made.cause == "no_step":
                raise InputError(f"the command cannot be tuned: {made.problem}", hint=output)
            if made.cause == "too_few_steps":
                raise InputError(
                    f"the command ended too early to be tuned: {made.problem}",
                    hint=f"let it make more steps: a trial stops it when it has enough; {output}",
                )
            raise InputError(f"the command itself does not succeed: {made.problem}", hint=output)
        state.baselines.append(made)
        state.objective = _objective(state)
    state.current_trials = list(state.baselines)
    for told in (loss_note(state.baselines), gradient_note(state.baselines)):
        if told is not None:
            state.notes.append(told)
            state.say(told)
    state.floor = noise_floor(state.baselines, objective=state.objective)
    if state.options.num_steps is None:
        plan = plan_trials(state.floor, effect=WANTED_EFFECT, min_effect=state.options.min_effect, max_steps=MAX_STEPS)
        affordable = int(MAX_TRIAL_STEPS_S / state.floor.step_s)
        state.num_steps = max(min(plan.num_steps, affordable, MAX_STEPS), MIN_STEPS)
        state.say(f"noise floor: {plan.reason}")
    warn_of_budget(state)


def _objective(state: TuningState) -> Objective:
    if state.options.objective is not None:
        absent = missing(state.baselines[0], state.options.objective)
        if absent is not None:
            known = [name for name, one in OBJECTIVES.items() if missing(state.baselines[0], one) is None]
            raise InputError(
                f"the job cannot be tuned for that: {absent}", hint=f"of this job are known: {', '.join(known)}"
            )
        return state.options.objective
    return "s_per_sample" if state.baselines[0].samples_per_step else "step_s"
