"""Pairs -> the same pairs, those marked void in which something other than the change differed.

Only covariates are looked at, never the times, so that leaving pairs out cannot favour an arm. A change may itself
shift a covariate (bf16 draws more power and lowers the clocks): that is part of its effect. So a pair is void where
the difference between its arms is unlike that of the pairs before it, not where there is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from statistics import median

import msgspec

from flatout.records.trial import Covariates, Pair
from flatout.records.verdict import Objective
from flatout.verdict.cost import missing

# A GPU that does this is in no state to be measured, whichever arm it was.
FAULTS = ("hardware_slowdown", "hardware_thermal", "power_brake")
MAX_FAULT_SHARE = 0.05
MIN_PAIRS_BEFORE = 3


def _log_clock(covariates: Covariates) -> float | None:
    return math.log(covariates.sm_clock_hz) if covariates.sm_clock_hz else None


# Name, how to read it, and by how much the difference between the arms may depart from its usual value.
_WATCHED: tuple[tuple[str, Callable[[Covariates], float | None], float], ...] = (
    ("SM clocks", _log_clock, 0.03),
    ("thermal throttling", lambda c: c.throttle_share.get("software_thermal") if c.throttle_share else None, 0.2),
    ("cores busy with other processes", lambda c: c.cores_busy_by_others, 0.5),
    ("throttling by the CPU quota", lambda c: c.quota_throttled_s_per_s, 0.2),
)


def mark_void(pairs: Iterable[Pair], objective: Objective = "step_s") -> tuple[Pair, ...]:
    """Each pair, in order, with its reason if it is void. A reason that is there already stays.

    A pair is judged by itself and those before it, so that later ones do not change what was said of it.
    """
    usual: dict[str, list[float]] = {name: [] for name, _, _ in _WATCHED}
    marked = []
    for pair in pairs:
        differences = _differences(pair)
        reason = pair.void_reason or _fault(pair, objective) or _unusual(differences, usual)
        if reason is None:
            for name, value in differences.items():
                usual[name].append(value)
        marked.append(msgspec.structs.replace(pair, void_reason=reason))
    return tuple(marked)


def _fault(pair: Pair, objective: Objective) -> str | None:
    if pair.baseline.covariates.nodes != pair.candidate.covariates.nodes:
        return "the two trials ran on different nodes"
    if pair.baseline.session != pair.candidate.session:
        return "its two trials ran before and after an interruption"
    for trial in (pair.baseline, pair.candidate):
        problem = missing(trial, objective)
        if problem is not None:
            return problem
        if trial.covariates.num_xids:
            return f"the driver logged GPU errors in a trial of {trial.arm}"
        for fault in FAULTS:
            if trial.covariates.throttle_share.get(fault, 0.0) > MAX_FAULT_SHARE:
                return f"the GPU was held back ({fault.replace('_', ' ')}) in a trial of {trial.arm}"
    return None


def _differences(pair: Pair) -> dict[str, float]:
    """Candidate minus baseline of each covariate that both have."""
    result = {}
    for name, read, _ in _WATCHED:
        baseline, candidate = read(pair.baseline.covariates), read(pair.candidate.covariates)
        if baseline is not None and candidate is not None:
            result[name] = candidate - baseline
    return result


def _unusual(differences: dict[str, float], usual: dict[str, list[float]]) -> str | None:
    for name, _, tolerance in _WATCHED:
        if name not in differences or len(usual[name]) < MIN_PAIRS_BEFORE:
            continue
        if abs(differences[name] - median(usual[name])) > tolerance:
            return f"{name} differed between the two trials as in no pair before"
    return None
