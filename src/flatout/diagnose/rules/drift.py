"""The regular step grows or shrinks in the course of the job.

What it means
    The steps without stalls take longer and longer, or become shorter, by more than their variation.

Why it costs
    Growing steps are often a leak: a list of losses that keep their graphs, a log that is rewritten, a memory that
    fragments, a clock that is throttled as the machine warms up. The longer the job, the larger the loss.

Evidence
    The step without stalls in the first and in the last part of the recording (`first_s`, `last_s`), the mean over the
    ranks. The cost is the mean over all steps of the time beyond the shorter end. If waiting for batches makes most of
    the change, `cause` says so.

Change to try
    For growing steps, look for what grows with the number of steps: tensors kept with their graphs, lists, logs.
    Compare the clocks and temperatures of the GPUs at the start and the end. If data loading makes the difference and
    steps shrink, the first epoch reads what later epochs find in a cache: read it with more workers, or
    from faster storage. If they grow, look at what the loader reads or keeps later on.

When this is wrong
    A curriculum with longer sequences, or a model that grows, changes the work of a step on purpose. Steps that shrink
    at the start are a long warm-up (caches, compilation), which a longer job hardly notices. Steps that grow within
    each epoch and fall back at its end are an `epoch-sawtooth`; less than an epoch cannot distinguish the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np

from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.finding import MIN_SHARE_OF_STEP
from flatout.diagnose.host_evidence import busy_cores
from flatout.diagnose.loader_advice import more_workers
from flatout.records.diagnosis import Finding
from flatout.records.job_log import JobLog, Matrix
from flatout.units import percent, seconds

CODE = "F21"
NAME = "drift"
HOST_EVIDENCE = (busy_cores,)
MIN_CHANGE = 0.2  # share of the shorter end
MIN_DEVIATIONS = 2.0  # standard deviations of a single step; the ends are medians of many steps
MIN_STEPS = 100
NUM_PARTS = 8  # share of the job; its ends are the first and the last part
MIN_LOADER_SHARE = 0.5  # of the change
Direction = Literal["grow", "shrink"]
MORE_WORKERS = "more workers, or data on faster storage"
MORE_WORKERS_FIRST = (
    "read the data for the first time with more workers or from faster storage: later epochs find it in a cache"
)
CHANGES: dict[tuple[Direction, bool], tuple[str, ...]] = {
    ("grow", False): (
        "look for what grows with the number of steps: tensors kept with their graphs, lists, logs",
        "compare clocks and temperatures at the start and at the end",
    ),
    ("grow", True): (
        "look for what the loader reads or keeps later on: larger samples, lists that grow, storage that slows down",
        MORE_WORKERS,
    ),
    ("shrink", False): (
        "measure a longer job: what only its start needs (caches, compilation, clocks) weighs less there",
        "compare clocks and temperatures at the start and at the end",
    ),
    ("shrink", True): (
        MORE_WORKERS_FIRST,
        "fill the cache before the training starts",
    ),
}
# Without the end of an epoch, growth that starts again with the next one looks the same.
PAST_THE_EPOCH = (
    "record past the end of an epoch: batches in the order of their length change steps within each epoch",
)
MIN_AGREEMENT = 0.7  # share of the changes between parts of the job that have the direction of the whole


def find(context: DiagnosisContext) -> list[Finding]:
    log = context.log
    if log is None or int(log.is_ordinary.sum()) < MIN_STEPS:
        return []
    parts = _parts(log, log.baseline_s)
    first, last = parts[0], parts[-1]
    lower = min(first, last)
    change = abs(last - first)
    cost = max(float(np.mean(parts)) - lower, 0.0)
    is_large = change >= MIN_CHANGE * lower and change >= MIN_DEVIATIONS * log.spread_s
    if not is_large or cost < MIN_SHARE_OF_STEP * log.step_s or not _is_steady(parts, grows=last > first):
        return []
    cost = context.claim_change(cost)
    verb: Direction = "grow" if last > first else "shrink"
    is_loader = _loader_change(log) >= MIN_LOADER_SHARE * change
    cause = ", mostly in waiting for batches" if is_loader else ""
    return [
        Finding(
            code=CODE,
            name=NAME,
            title=(
                f"steps {verb} from {seconds(first)} to {seconds(last)} over {log.num_steps:,} steps{cause}:"
                f" {seconds(cost)} per step, {percent(cost / log.step_s)} of the job's mean step"
            ),
            ranks=_ranks(log),
            cost_s_per_step=cost,
            share_of_step=cost / log.step_s,
            evidence={
                "first_s": first,
                "last_s": last,
                "num_steps": log.num_steps,
                "direction": verb,
                "cause": "data loading" if is_loader else None,
            },
            changes=(
                *_changes(context, verb, is_loader=is_loader),
                *(PAST_THE_EPOCH if _has_no_epoch_end(log) else ()),
            ),
            safety="exact",
            confidence="medium",
        )
    ]


def _changes(context: DiagnosisContext, verb: Direction, *, is_loader: bool) -> tuple[str, ...]:
    return tuple(
        more_workers(context.job_facts, change) if change in (MORE_WORKERS, MORE_WORKERS_FIRST) else change
        for change in CHANGES[verb, is_loader]
    )


def _parts(log: JobLog, values: Matrix) -> list[float]:
    """Return the means over parts of the job: equal parts, or complete epochs where steps grow within each."""
    by_step = values.mean(axis=0)
    if log.sawtooth is None:
        return [float(part.mean()) for part in np.array_split(by_step, NUM_PARTS)]
    edges = np.searchsorted(log.number, log.sawtooth.starts).tolist()
    return [float(by_step[low:high].mean()) for low, high in pairwise(edges)]


def _loader_change(log: JobLog) -> float:
    """Return by how much the usual wait for a batch differs between the ends of the job, the mean over the ranks."""
    ends = np.array_split(log.loader_s[:, log.is_ordinary], NUM_PARTS, axis=1)
    first, last = (float(np.median(end, axis=1).mean()) for end in (ends[0], ends[-1]))
    return abs(last - first)


def _has_no_epoch_end(log: JobLog) -> bool:
    return log.num_loader_ends is None or not log.num_loader_ends.any()


def _is_steady(parts: Sequence[float], *, grows: bool) -> bool:
    """Whether the regular step changes in one direction, rather than up and down."""
    changes = np.diff(parts)
    total = float(np.abs(changes).sum())
    along = float(changes[changes > 0].sum() if grows else -changes[changes < 0].sum())
    return total > 0 and along / total >= MIN_AGREEMENT


def _ranks(log: JobLog) -> tuple[int, ...]:
    """Return the ranks whose regular step changes at least half as much as that of the rank where it changes most."""
    changes = np.abs(log.baseline_s[:, -1] - log.baseline_s[:, 0])
    return tuple(rank for rank, change in zip(log.ranks, changes, strict=True) if change >= 0.5 * changes.max())
