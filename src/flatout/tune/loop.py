"""The closed loop: noise floor -> profile -> candidates -> screening -> confirmation -> again -> the final verdict.

Each round starts from what is on already, looks for what now costs most, screens changes for it in a trial each beside
fresh baselines, and confirms the best on pairs of its own. What is claimed in the end rests on pairs of the final set
against the job as it came, none of which was used to choose anything.
"""

from __future__ import annotations

from flatout.errors import FlatoutError
from flatout.predict.calibrate import Calibration
from flatout.records.tuning import TuneResult
from flatout.tune.budget import OutOfBudgetError
from flatout.tune.choose import choose
from flatout.tune.confirm import confirm, final_verdict
from flatout.tune.floor import measure_noise
from flatout.tune.options import TuneOptions
from flatout.tune.result import bounds, tune_result
from flatout.tune.runner import Profiled, Runner, Say
from flatout.tune.screening import screen_candidates
from flatout.tune.state import State


def tune(runner: Runner, options: TuneOptions, say: Say, calibration: Calibration | None = None) -> TuneResult:
    """One tuning, to its end. Raises InputError where the command does not succeed by itself."""
    state = State(runner, options, say, calibration)
    try:
        measure_noise(state)
        why_ended = ""
        while not why_ended and state.round < options.max_rounds:
            state.round += 1
            why_ended = improve(state)
        why_ended = why_ended or f"{state.round} rounds were made, the most that are"
    except OutOfBudgetError as end:
        why_ended = str(end)
    verdict = final_verdict(state) if state.applied else None
    return tune_result(state, verdict, why_ended)


def improve(state: State) -> str:
    """One round: why it is the last; empty where another one may bring more, as candidates are left."""
    profiled = _profile(state)
    if profiled is None:
        return "what is on now was not profiled again"
    chosen = choose(state, profiled)
    if not chosen:
        return "no change is left that promises 1 % or more"
    screened = screen_candidates(state, chosen, profiled.facts)
    is_adopted = bool(screened) and confirm(state, screened)
    state.profiled = None if is_adopted else profiled  # of a job that did not change
    if not is_adopted:
        state.refused.update(change.name for change in chosen if change.name not in state.waiting)
    return ""


def _profile(state: State) -> Profiled | None:
    """Of what is on now; None where that does not succeed, and what was adopted stands."""
    try:
        profiled = state.profiled or state.runner.profile(state.now())
    except FlatoutError as error:
        if not state.applied:
            raise
        state.notes.append(f"what is on now was not profiled again: {error}")
        return None
    if state.first is None:
        state.first = profiled
        state.bounds = bounds(profiled)
        for finding in profiled.done.diagnosis.findings:
            state.say(f"finding: {finding.name}, {finding.share_of_step:.0%} of the step: {finding.title}")
    return profiled
