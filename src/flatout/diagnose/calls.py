"""The calls of a script that only infers: from the traces, and as columns from the step log."""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.diagnose.context import DiagnosisContext
from flatout.records.job_log import JobLog
from flatout.records.timeline import CallFacts

Column = NDArray[np.float64]


class RankCalls(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The calls of one rank, in order; `is_measured` excludes the warm-up and what the recorder prolonged."""

    rank: int
    duration_s: Column  # from the call to the next one
    model_s: Column
    loader_s: Column
    num_samples: Column
    num_tokens: Column
    num_known_tokens: Column
    is_measured: NDArray[np.bool_]

    @property
    def length(self) -> Column:
        """Return the tokens of each sequence."""
        return self.num_tokens / self.num_samples


def calls_of_all_ranks(context: DiagnosisContext, *, min_operators: int = 0) -> list[CallFacts]:
    """Return the traced calls of each rank; [] if those of a rank have no operators, or fewer per call than asked."""
    of_ranks = [context.facts(timeline.rank).calls for timeline in context.ranks]
    known = [
        calls
        for calls in of_ranks
        if calls is not None and calls.num_operators >= max(min_operators * calls.num_calls, 1)
    ]
    return known if len(known) == len(of_ranks) else []


def rank_calls(context: DiagnosisContext) -> list[RankCalls]:
    """Return the calls of each rank; [] if the job does more than infer, or if its recorder did not see the calls."""
    log = context.log
    if log is None or log.calls is None:
        return []
    return [_of_rank(log, row) for row in range(len(log.ranks))]


def timed_calls(context: DiagnosisContext) -> list[RankCalls]:
    """Return the calls of each rank if a call's time is the model's own; [] if not.

    Calls of several threads overlap, and a host that runs ahead of the GPU only launches the work of a call.
    """
    is_ahead = context.log is not None and context.log.launched_ahead is not None
    return [] if is_ahead or is_pooled(context) else rank_calls(context)


def is_pooled(context: DiagnosisContext) -> bool:
    return context.log is not None and context.log.calls is not None and context.log.calls.is_pooled


def _of_rank(log: JobLog, row: int) -> RankCalls:
    calls = log.calls
    assert calls is not None
    return RankCalls(
        rank=log.ranks[row],
        duration_s=log.duration_s[row],
        model_s=calls.model_s[row],
        loader_s=log.loader_s[row],
        num_samples=calls.num_samples[row],
        num_tokens=calls.num_tokens[row],
        num_known_tokens=calls.num_known_tokens[row],
        is_measured=log.is_measured & np.isfinite(calls.model_s[row]),
    )
