"""The closed loop: noise floor -> profile -> candidates -> screening -> confirmation -> again -> the final verdict.

Each round starts from the applied changes, finds the largest cost, screens changes against it in one trial each between
fresh baselines, and confirms the best change on separate pairs. The final claim rests on pairs of the final set and the
unchanged job, none of which was used to choose anything.
"""

from __future__ import annotations

from flatout.errors import FlatoutError, InvalidTrialError
from flatout.predict.calibrate import Calibration
from flatout.records.tuning import TuneResult, TuningEnd
from flatout.tune.budget import OutOfBudgetError
from flatout.tune.choose import choose
from flatout.tune.confirm import confirm, final_verdict
from flatout.tune.floor import measure_noise
from flatout.tune.options import TuneOptions
from flatout.tune.result import bounds, tune_result
from flatout.tune.runner import Profiled, Runner, Say
from flatout.tune.screening import screen_candidates
from flatout.tune.state import TuningState


def tune(runner: Runner, options: TuneOptions, say: Say, calibration: Calibration | None = None) -> TuneResult:
    """Tune the job that `runner` runs. Raises InputError if the unchanged command fails."""
    state = TuningState(runner, options, say, calibration)
    try:
        measure_noise(state)
        end = _adopt_changes(state)
    except OutOfBudgetError as out_of_budget:
        end = out_of_budget.end
    verdict = final_verdict(state) if state.applied else None
    return tune_result(state, verdict, end)


def _adopt_changes(state: TuningState) -> TuningEnd:
    """Adopt the best change of each round until no candidate is left. Raises OutOfBudgetError."""
    while state.round < state.options.max_rounds:
        state.round += 1
        profiled = _profile(state)
        if profiled is None:
            return TuningEnd(ended_by="not_profiled")
        candidates = choose(state, profiled)
        if not candidates:
            return TuningEnd(ended_by="no_candidates")
        screened = screen_candidates(state, candidates, profiled.facts)
        if screened and confirm(state, screened):
            state.profiled = None
        else:
            state.profiled = profiled  # the job did not change
            state.excluded.update(change.name for change in candidates if change.name not in state.deferred)
    return TuningEnd(ended_by="max_rounds", limit=state.options.max_rounds)


def _profile(state: TuningState) -> Profiled | None:
    """Profile the job with the applied changes; None if that fails after a change was adopted, which then stands."""
    try:
        profiled = state.profiled or state.runner.profile(state.applied_set())
    except InvalidTrialError:
        raise
    except FlatoutError as error:
        if not state.applied:
            raise
        state.notes.append(f"the job with the applied changes could not be profiled again: {error}")
        return None
    if state.first is None:
        state.first = profiled
        state.bounds = bounds(profiled)
        for finding in profiled.done.diagnosis.findings:
            state.say(f"finding: {finding.name}, {finding.share_of_step:.0%} of the step: {finding.title}")
    return profiled
