"""Judge the trials of both arms: the verdict on B, and whether B is slower than A by more than a gate.

In: all trials in running order. Out: a `Verdict`, and a `ComparisonGate`. The gate is its own question, with its own
error rate: A's costs are made larger by the gate, and B is then shown to be worse than that, better, or neither. So a B
that costs exactly the gate more than A is decided neither way, however many trials run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from flatout.records.comparison import ComparisonGate, GateOutcome
from flatout.records.trial import BASELINE, TrialResult
from flatout.records.verdict import Objective, Verdict
from flatout.verdict.arms import MIN_EFFECT, judge_arms
from flatout.verdict.cost import TIMES, missing, trial_costs
from flatout.verdict.prospect import what_next

CANDIDATE = "B"  # the arm of B's trials; A's is `baseline`, which verdicts and gates expect
HOPELESS = 0.05  # probability that the gate is decided by any later analysis
_ANY_EFFECT = 1e-6  # for the gate: any side of it counts


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on the trials so far, and on the gate if there is one."""

    verdict: Verdict
    equivalent_within: float | None
    gate: ComparisonGate | None

    @property
    def is_decided(self) -> bool:
        """Whether the question of the comparison is answered: that of the gate, if there is one."""
        if self.gate is not None:
            return self.gate.outcome != "undecided"
        return self.verdict.verdict != "undecided"


def judged(
    trials: Sequence[TrialResult],
    *,
    objective: Objective,
    gate: float | None,
    min_effect: float = MIN_EFFECT,
    is_last: bool = False,
) -> Judged:
    """Return the verdict on B. `is_last`: no more trials will come, for a reason other than their result."""
    verdict = _verdict(trials, objective, min_effect, is_last=is_last)
    within = min_effect if verdict.verdict == "equivalent" else None
    if gate is None:
        return Judged(verdict=verdict, equivalent_within=within, gate=None)
    result = _gate(trials, objective, gate, is_last=is_last)
    if verdict.verdict == "undecided" and gate > min_effect:
        wider = _verdict(trials, objective, gate, is_last=is_last)
        if wider.verdict == "equivalent":
            verdict, within = wider, gate
    return Judged(verdict=verdict, equivalent_within=within, gate=result)


def is_gate_hopeless(trials: Sequence[TrialResult], *, objective: Objective, gate: float) -> bool:
    """Whether no later analysis is likely to decide the gate, whichever way."""
    shifted = _shifted(trials, objective, gate)
    prospects = what_next(shifted, CANDIDATE, objective=objective, min_effect=_ANY_EFFECT)
    return bool(prospects) and all(prospect.better + prospect.worse < HOPELESS for prospect in prospects)


def _shifted(trials: Sequence[TrialResult], objective: Objective, limit: float) -> list[TrialResult]:
    return [_costlier(trial, objective, 1 + limit) if trial.arm == BASELINE else trial for trial in trials]


def _gate(trials: Sequence[TrialResult], objective: Objective, limit: float, *, is_last: bool) -> ComparisonGate:
    verdict = _verdict(_shifted(trials, objective, limit), objective, _ANY_EFFECT, is_last=is_last)
    outcomes: dict[str, GateOutcome] = {"better": "passed", "worse": "failed"}
    slowdown = None
    if verdict.interval is not None:
        low, high = verdict.interval
        slowdown = ((1 + limit) / high - 1, (1 + limit) / low - 1)
    return ComparisonGate(limit=limit, outcome=outcomes.get(verdict.verdict, "undecided"), slowdown=slowdown)


def _costlier(trial: TrialResult, objective: Objective, factor: float) -> TrialResult:
    """Return the trial as if its cost were larger by the factor."""
    if objective in TIMES:
        return msgspec.structs.replace(trial, step_s=tuple(seconds * factor for seconds in trial.step_s))
    if objective == "peak_memory_bytes":
        num_bytes = trial.peak_memory_bytes
        return msgspec.structs.replace(trial, peak_memory_bytes=num_bytes and round(num_bytes * factor))
    energy_j = trial.energy_j_per_step
    return msgspec.structs.replace(trial, energy_j_per_step=energy_j and energy_j * factor)


def _verdict(trials: Sequence[TrialResult], objective: Objective, min_effect: float, *, is_last: bool) -> Verdict:
    return judge_arms(trials, CANDIDATE, objective=objective, min_effect=min_effect, is_last=is_last)


def run_sd(trials: Sequence[TrialResult], objective: Objective) -> float | None:
    """Return the run-to-run standard deviation of the log cost, pooled over the arms; None before an arm's second."""
    squares, freedom = 0.0, 0
    complete = [trial for trial in trials if missing(trial, objective) is None]
    costs = trial_costs(complete, objective)
    for arm in (BASELINE, CANDIDATE):
        logs = [costs[trial.index].log for trial in complete if trial.arm == arm]
        if len(logs) > 1:
            mean = sum(logs) / len(logs)
            squares += sum((log - mean) ** 2 for log in logs)
            freedom += len(logs) - 1
    return math.sqrt(squares / freedom) if freedom else None
