"""Processes on cores: slightly less host time; on the CPU, compute on more threads."""

from __future__ import annotations

from flatout.predict.families.host_time import host_time
from flatout.predict.situation import Scenarios, Situation
from flatout.records.change import Change
from flatout.records.track import HOST_WORK, Spent

PARALLEL_SHARE = 0.8  # prior: share of the operators' time that is divided among threads (Amdahl's law)


def binding(situation: Situation, change: Change) -> Scenarios | str:
    del change
    return host_time(
        situation,
        HOST_WORK,
        likely=0.97,
        worst=1.03,
        best=0.85,
        how="host work runs on dedicated cores",
        assumption="a prior: PyTorch's documentation of NUMA binding says 1-10 % in practice",
    )


def threads(situation: Situation, change: Change) -> Scenarios | str:
    del change
    return host_time(
        situation,
        (*HOST_WORK, Spent.DATA_LOADING),
        likely=0.98,
        worst=1.05,
        best=0.7,
        how="host work uses a different number of threads",
        assumption="a prior: launches use one thread, so only tensor work on the host gains",
    )


def threads_cpu(situation: Situation, change: Change) -> Scenarios | str:
    """Scale compute by Amdahl's law from the current to the new number of threads."""
    now = situation.facts.threads_per_rank
    if now is None:
        return "the current number of threads per rank is unknown"
    ratio = _amdahl(int(change.value)) / _amdahl(now)
    return host_time(
        situation,
        (Spent.COMPUTE,),
        likely=ratio,
        worst=max(1.1, ratio),
        best=min(now / int(change.value), ratio),
        how=f"operators run on {change.value} threads instead of {now}",
        assumption=f"{PARALLEL_SHARE:.0%} of their time is divided among threads: a prior",
    )


def _amdahl(threads: int) -> float:
    return 1 - PARALLEL_SHARE + PARALLEL_SHARE / threads


MODELS = {
    "bind-cores": binding,
    "torchrun-numa-binding": binding,
    "srun-binding": binding,
    "threads": threads,
    "threads-cpu": threads_cpu,
}
