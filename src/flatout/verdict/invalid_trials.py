"""Find trials that do not count, because something other than the change differed while they ran.

Only covariates are examined, never the times, so that leaving trials out cannot favour an arm. A change may itself
shift a covariate (bf16 draws more power and lowers the clocks): that is part of its effect. So clocks and throttling
are compared with other trials of the same arm. Events that no change can cause are compared with both arms, or need no
comparison: a GPU error that is not the job's own, a throttled GPU, a gross load of other processes. A smaller load
makes no trial invalid, but what it may have cost widens the interval (`load_shifts`). What was not measured makes no
trial invalid. Trials on another machine, or after an interruption, count: `effect` does not compare their levels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median

from flatout.catalog.xids import is_job_fault, xid_name
from flatout.records.trial import Covariates, TrialResult

# A GPU that throttles for these reasons cannot be measured in either arm.
FAULTS = ("hardware_slowdown", "hardware_thermal", "power_brake")
MAX_FAULT_SHARE = 0.05
MIN_OTHERS = 3  # trials of the same arm that show what is usual for it
# A load of other processes that differs from its median by more than half of the cores that the job may use is gross.
GROSS_SHARE = 0.5
# It is usual within a tenth of the cores, or one core if that is more; with fewer than four cores, a quarter of them.
USUAL_SHARE, USUAL_CORES, USUAL_SHARE_OF_FEW = 0.1, 1.0, 0.25
UNKNOWN_CORES = 4.0


def _log_clock(covariates: Covariates) -> float | None:
    return math.log(covariates.sm_clock_hz) if covariates.sm_clock_hz else None


# Name, how to read it, and how far it may be from its median over the arm's other trials.
_WATCHED: tuple[tuple[str, Callable[[Covariates], float | None], float], ...] = (
    ("SM clocks", _log_clock, 0.03),
    ("thermal throttling", lambda c: c.throttle_share.get("software_thermal") if c.throttle_share else None, 0.2),
    ("throttling by the CPU quota", lambda c: c.quota_throttled_s_per_s, 0.2),
)


def invalid_reasons(trials: Sequence[TrialResult]) -> list[str | None]:
    """Return why each trial of the two arms does not count; None: it counts."""
    usual_cores = _usual_cores(trials)
    return [_fault(trial) or _foreign_load(trial, usual_cores) or _unusual(trial, trials) for trial in trials]


def _fault(trial: TrialResult) -> str | None:
    error = _gpu_error(trial)
    if error is not None:
        return error
    for fault in FAULTS:
        if trial.covariates.throttle_share.get(fault, 0.0) > MAX_FAULT_SHARE:
            return f"the GPU was throttled ({fault.replace('_', ' ')}) in trial {trial.index} of {trial.arm}"
    return None


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


def _usual_cores(trials: Sequence[TrialResult]) -> float | None:
    loads = [trial.covariates.cores_busy_by_others for trial in trials]
    measured = [load for load in loads if load is not None]
    return median(measured) if measured else None


def _foreign_load(trial: TrialResult, usual_cores: float | None) -> str | None:
    """Describe a gross load of others that most trials did not have; if most had it, they stay comparable."""
    load = trial.covariates.cores_busy_by_others
    if load is None or usual_cores is None or abs(load - usual_cores) <= GROSS_SHARE * _cores(trial):
        return None
    return f"other processes kept {load:.1f} cores busy in trial {trial.index}, and usually {usual_cores:.1f}"


def load_shifts(trials: Sequence[TrialResult]) -> tuple[float, ...]:
    """Return how far an unusual load of other processes may have moved the log cost of each trial that counts.

    A job that wants all of its C cores, and shares them fairly with others that want b, takes (C + b) / C times as
    long. More load than usual only raises the cost, less load only lowers it.
    """
    usual_cores = _usual_cores(trials)
    return tuple(_load_shift(trial, usual_cores) for trial in trials)


def _load_shift(trial: TrialResult, usual_cores: float | None) -> float:
    load, cores = trial.covariates.cores_busy_by_others, _cores(trial)
    if load is None or usual_cores is None:
        return 0.0
    tolerated = max(min(USUAL_CORES, USUAL_SHARE_OF_FEW * cores), USUAL_SHARE * cores)
    difference = load - usual_cores
    if abs(difference) <= tolerated:
        return 0.0
    return math.copysign(math.log1p(abs(difference) / cores), difference)


def _cores(trial: TrialResult) -> float:
    return trial.covariates.cores_allowed or UNKNOWN_CORES


def _unusual(trial: TrialResult, trials: Sequence[TrialResult]) -> str | None:
    others = [other for other in trials if other.arm == trial.arm and other is not trial]
    for name, read, tolerance in _WATCHED:
        value = read(trial.covariates)
        of_others = [reading for reading in (read(other.covariates) for other in others) if reading is not None]
        if value is None or len(of_others) < MIN_OTHERS:
            continue
        if abs(value - median(of_others)) > tolerance:
            return f"trial {trial.index} differed in {name} from the others of {trial.arm}"
    return None
