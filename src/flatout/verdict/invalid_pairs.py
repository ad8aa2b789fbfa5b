"""Mark pairs as invalid if something other than the change differed between their trials.

Only covariates are examined, never the times, so that excluding pairs cannot favour an arm. A change may itself shift a
covariate (bf16 draws more power and lowers the clocks): that is part of its effect. So a pair is invalid if the
difference between its arms differs from that of earlier pairs, not if its arms differ. Events that cannot be caused by
a change make a pair invalid at once: a GPU error that is not the job's own, and other processes during one of its
trials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from statistics import median

import msgspec

from flatout.catalog.xids import is_job_fault, xid_name
from flatout.records.trial import Covariates, Pair, TrialResult
from flatout.records.verdict import Objective
from flatout.verdict.cost import missing

# A GPU that throttles for these reasons cannot be measured in either arm.
FAULTS = ("hardware_slowdown", "hardware_thermal", "power_brake")
MAX_FAULT_SHARE = 0.05
MIN_PAIRS_BEFORE = 3
# The load of other processes may differ between the two trials by a tenth of the cores that the job may use, or by one
# core if that is more; with fewer than four cores, by a quarter of them.
MAX_FOREIGN_SHARE, MAX_FOREIGN_CORES, MAX_FOREIGN_SHARE_OF_FEW = 0.1, 1.0, 0.25


def _log_clock(covariates: Covariates) -> float | None:
    return math.log(covariates.sm_clock_hz) if covariates.sm_clock_hz else None


# Name, how to read it, and how far the difference between the arms may be from its usual value.
_WATCHED: tuple[tuple[str, Callable[[Covariates], float | None], float], ...] = (
    ("SM clocks", _log_clock, 0.03),
    ("thermal throttling", lambda c: c.throttle_share.get("software_thermal") if c.throttle_share else None, 0.2),
    ("throttling by the CPU quota", lambda c: c.quota_throttled_s_per_s, 0.2),
)


def mark_invalid(pairs: Iterable[Pair], objective: Objective = "step_s") -> tuple[Pair, ...]:
    """Return the pairs in order, each with its reason if it is invalid. An existing reason is kept.

    A pair is judged by its own covariates and those of earlier pairs, so later pairs do not change the result.
    """
    usual: dict[str, list[float]] = {name: [] for name, _, _ in _WATCHED}
    marked = []
    for pair in pairs:
        differences = _differences(pair)
        reason = pair.invalid_reason or _fault(pair, objective) or _unusual(differences, usual)
        if reason is None:
            for name, value in differences.items():
                usual[name].append(value)
        marked.append(msgspec.structs.replace(pair, invalid_reason=reason))
    return tuple(marked)


def _fault(pair: Pair, objective: Objective) -> str | None:
    if pair.baseline.covariates.nodes != pair.candidate.covariates.nodes:
        return "the two trials ran on different nodes"
    if pair.baseline.session != pair.candidate.session:
        return "its two trials ran before and after an interruption"
    for trial in (pair.baseline, pair.candidate):  # checked first, because it may be the reason why a trial failed
        error = _gpu_error(trial)
        if error is not None:
            return error
    for trial in (pair.baseline, pair.candidate):
        problem = missing(trial, objective)
        if problem is not None:
            return problem
        for fault in FAULTS:
            if trial.covariates.throttle_share.get(fault, 0.0) > MAX_FAULT_SHARE:
                return f"the GPU was throttled ({fault.replace('_', ' ')}) in a trial of {trial.arm}"
    return _foreign_load(pair)


def _gpu_error(trial: TrialResult) -> str | None:
    """Describe the first GPU error in the driver's log that the job did not cause itself; None if there is none."""
    xids = [xid for xid in trial.covariates.xids or () if not is_job_fault(xid.number)]
    if not xids:
        return None
    first, name = xids[0], xid_name(xids[0].number)
    where = f"GPU {first.address if first.gpu is None else first.gpu}"
    if trial.covariates.nodes is not None and first.hostname:
        where += f" of {first.hostname}"
    more = f" (and {len(xids) - 1} more)" if len(xids) > 1 else ""
    return f"Xid {first.number} on {where} in trial {trial.index}{f': {name}' if name is not None else ''}{more}"


def _foreign_load(pair: Pair) -> str | None:
    """Describe a load by other processes during one trial only; if both trials have it, the pair stays valid."""
    quiet, busy = sorted(
        (pair.baseline, pair.candidate), key=lambda trial: trial.covariates.cores_busy_by_others or 0.0
    )
    low, high = quiet.covariates.cores_busy_by_others, busy.covariates.cores_busy_by_others
    if low is None or high is None:
        return None
    allowed = quiet.covariates.cores_allowed or 4.0
    if high - low <= max(min(MAX_FOREIGN_CORES, MAX_FOREIGN_SHARE_OF_FEW * allowed), MAX_FOREIGN_SHARE * allowed):
        return None
    return f"other processes kept {high:.1f} cores busy in trial {busy.index}, and {low:.1f} in trial {quiet.index}"


def _differences(pair: Pair) -> dict[str, float]:
    """Return candidate minus baseline for each covariate that both trials have."""
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
            return f"the two trials differed in {name} more than usual"
    return None
