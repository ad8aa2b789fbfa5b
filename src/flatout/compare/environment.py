"""List what differs between the runs of two arms: versions, clocks, and the environment of the job.

In: a trial of each arm, with its recording. Out: `EnvironmentDifference`s, each with both values as text. A fact that
one arm lacks is `unknown` there; one that both lack is not listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flatout.errors import InputError
from flatout.profile.read_facts import read_facts
from flatout.records.change import JobFacts
from flatout.records.comparison import EnvironmentDifference
from flatout.records.trial import Covariates, TrialResult

UNKNOWN = "unknown"
MIN_CLOCK_DIFFERENCE = 0.01  # relative, of the mean GPU clock
MIN_HEAT_DIFFERENCE_C = 5.0
# Facts that describe the job's environment and how it is set up, with the names that the report shows.
_FACTS = {
    "python": "Python",
    "torch": "torch",
    "cuda": "CUDA",
    "nccl": "NCCL",
    "driver": "GPU driver",
    "backend": "backend",
    "device": "device",
    "num_ranks": "ranks",
    "num_hosts": "hosts",
    "launcher": "launcher",
    "cores_allowed": "CPU cores",
    "threads_per_rank": "threads per rank",
    "wrapper": "wrapper",
    "passes_per_step": "passes per step",
    "loader_workers": "loader workers",
    "loader_prefetch": "loader prefetch",
    "loader_pins_memory": "pinned memory",
    "loader_has_persistent_workers": "persistent workers",
    "optimizer": "optimizer",
    "optimizer_is_fused": "fused optimizer",
    "gradient_element_bytes": "bytes per gradient element",
    "is_autocast": "autocast",
    "is_compiled": "torch.compile",
    "is_deterministic": "deterministic algorithms",
}


def facts_of(recording: Path | None) -> JobFacts | None:
    """Return the facts of the job in a recording; None if it is not the folder of one, or they cannot be read."""
    if recording is None or not recording.is_dir():
        return None
    try:
        return read_facts(recording)
    except InputError:
        return None


def environment_differences(
    a: JobFacts | None, b: JobFacts | None, trials_a: Sequence[TrialResult], trials_b: Sequence[TrialResult]
) -> tuple[EnvironmentDifference, ...]:
    """Return the differences between the facts, the variables and the GPUs' conditions of both arms."""
    found = [] if a is None or b is None else [*_fact_differences(a, b), *_variable_differences(a, b)]
    return (*found, *_condition_differences(trials_a, trials_b))


def _fact_differences(a: JobFacts, b: JobFacts) -> list[EnvironmentDifference]:
    values = [(name, getattr(a, fact), getattr(b, fact)) for fact, name in _FACTS.items()]
    return [
        EnvironmentDifference(name=name, a=_text(of_a), b=_text(of_b)) for name, of_a, of_b in values if of_a != of_b
    ]


def _variable_differences(a: JobFacts, b: JobFacts) -> list[EnvironmentDifference]:
    names = sorted(a.environment.keys() | b.environment.keys())
    return [
        EnvironmentDifference(name=name, a=a.environment.get(name, "not set"), b=b.environment.get(name, "not set"))
        for name in names
        if a.environment.get(name) != b.environment.get(name)
    ]


def _condition_differences(
    trials_a: Sequence[TrialResult], trials_b: Sequence[TrialResult]
) -> list[EnvironmentDifference]:
    """Return differences in the GPUs' clocks, heat and throttling, which change while the trials run."""
    arms = [[trial.covariates for trial in arm] for arm in (trials_a, trials_b)]
    differences = (_clock_difference(arms), _heat_difference(arms), _throttle_difference(arms))
    return [difference for difference in differences if difference is not None]


def _clock_difference(arms: Sequence[Sequence[Covariates]]) -> EnvironmentDifference | None:
    clocks = [_mean([covariates.sm_clock_hz for covariates in arm]) for arm in arms]
    if not _differ(clocks, relative=MIN_CLOCK_DIFFERENCE):
        return None
    return _difference("GPU clock", [f"{clock / 1e6:.0f} MHz" for clock in clocks if clock is not None])


def _heat_difference(arms: Sequence[Sequence[Covariates]]) -> EnvironmentDifference | None:
    heats = [_mean([covariates.temperature_c for covariates in arm]) for arm in arms]
    if not _differ(heats, absolute=MIN_HEAT_DIFFERENCE_C):
        return None
    return _difference("GPU temperature", [f"{heat:.0f} °C" for heat in heats if heat is not None])


def _throttle_difference(arms: Sequence[Sequence[Covariates]]) -> EnvironmentDifference | None:
    reasons = [{reason for covariates in arm for reason in covariates.throttle_share} for arm in arms]
    if reasons[0] == reasons[1]:
        return None
    return _difference("GPU throttling", [", ".join(sorted(of_arm)) or "none" for of_arm in reasons])


def _differ(values: Sequence[float | None], *, relative: float = 0.0, absolute: float = 0.0) -> bool:
    """Whether both values are known and are at least so far apart."""
    a, b = values
    if a is None or b is None:
        return False
    return abs(b - a) >= max(absolute, relative * abs(a))


def _difference(name: str, texts: Sequence[str]) -> EnvironmentDifference:
    return EnvironmentDifference(name=name, a=texts[0], b=texts[1])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _text(value: object) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
