"""The time that the job waits for batches in all of its steps, by its step log.

In: the context with its `JobLog` and traces. Out: seconds per step, at most what the work of a step leaves. The traced
steps alone can be misleading: the recorder prolongs the rest of such a step, so that a loader keeps up with it.
"""

from __future__ import annotations

import numpy as np

from flatout.diagnose.context import DiagnosisContext
from flatout.records.job_log import JobLog, StallCause

MIN_STEPS_OF_A_MEAN = 20  # with fewer steps, a single late batch would decide: their median counts
_LOADER_CAUSES = (StallCause.LOADER, StallCause.LOADER_START)


def logged_wait_s(context: DiagnosisContext) -> float | None:
    """Return the wait for batches per regular step; None without a step log or a trace.

    A step lasts as long as that of the rank whose batch comes last. While the GPU works, a wait costs nothing.
    """
    log = context.log
    if log is None or not context.num_steps:
        return None
    waited_s = _regular_wait_s(log)
    busy_s = max((context.busy_s(rank.rank) for rank in context.ranks), default=0.0)
    return max(min(waited_s, log.without_stalls_s - busy_s), 0.0)


def _regular_wait_s(log: JobLog) -> float:
    """Return the mean wait of the rank that waits longest, over the measured steps, without stalls of the loader."""
    row_of = {number: row for row, number in enumerate(log.number[log.is_measured].tolist())}
    waited_s = log.loader_s[:, log.is_measured].max(axis=0)
    for stall in log.stalls:
        if stall.cause in _LOADER_CAUSES and stall.step in row_of:
            waited_s[row_of[stall.step]] -= stall.excess_s
    waited_s = np.maximum(waited_s, 0.0)
    return float(np.median(waited_s) if len(waited_s) < MIN_STEPS_OF_A_MEAN else waited_s.mean())
