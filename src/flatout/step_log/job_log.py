"""Align the recorded steps of all ranks, find the regular step, and charge what exceeds it to a cause and a rank.

In: the ranks of a recording. Out: a `JobLog`, or None without ordinary steps. In a job with collectives, one rank's
stall makes the step of every rank long: the rank whose own columns explain the time is the cause, and the others wait.
A rank that reached the end of its step before the collective waits in its next step instead.

A stall is what exceeds the baseline: medians of the step times after subtracting, in each step, the longest time that
any rank spent in a known cause. The baseline may change slowly during a job; such a drift is not a stall, and neither
are the waits of a starved loader whose workers deliver together (`bursts`). The regular step is the median of the
measured steps without their stalls. What the warm-up (compilation, lazy initialization) adds to a step counts neither
in the regular nor in the mean step: a step of the warm-up counts as its baseline, and the causes that a warm-up cannot
prolong count in every step, including the first: loading, checkpoints, evaluations.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from flatout.inside.protocol import StepKind
from flatout.records.job_log import (
    CallColumns,
    JobLog,
    Matrix,
    Sawtooth,
    Stall,
    StallCause,
    cost_per_step_s,
    measured_steps,
)
from flatout.records.recording import RankRecording, Steps
from flatout.step_log.baseline import baseline_s
from flatout.step_log.bursts import without_bursts
from flatout.step_log.sawtooth import find_sawtooth

# Excess without a known cause counts above both: a share of the regular step, and a number of standard deviations.
MIN_SHARE_OF_REGULAR = 0.5
MIN_DEVIATIONS = 6.0
_NORMAL_MAD = 1.4826  # standard deviation over median absolute deviation of a normal distribution
_ONE_OFF = frozenset({StallCause.COMPILATION, StallCause.GARBAGE_COLLECTION})  # no stalls in step 1


def job_log(ranks: Sequence[RankRecording]) -> JobLog | None:
    """Return the step log of a job; None if no rank has an ordinary step."""
    with_steps = [rank for rank in ranks if len(rank.steps.number)]
    if not with_steps:
        return None
    number = np.unique(np.concatenate([rank.steps.number for rank in with_steps]))
    aligned = _Aligned(with_steps, number)
    if not aligned.is_ordinary.any():
        return None
    sawtooth = _sawtooth(aligned)
    teeth = [] if sawtooth is None else np.searchsorted(number, sawtooth.starts).tolist()
    baseline = np.array(
        [
            baseline_s(aligned.without_known_s[row], aligned.is_measured, aligned.is_ordinary, teeth)
            for row in range(len(with_steps))
        ]
    )
    measured = aligned.is_measured
    spread = np.array([_spread(deviation[measured]) for deviation in aligned.without_known_s - baseline])
    charge = _Charge(aligned, baseline, spread)
    stalls = _without_warm_up(charge.stalls(), aligned.settled)
    unstalled_s = _unstalled_s(aligned, stalls)
    without_stalls_s = _mean_without_stalls_s(aligned, baseline, unstalled_s)
    return JobLog(
        ranks=tuple(rank.rank for rank in with_steps),
        number=number,
        start_ns=aligned.start_ns,
        duration_s=aligned.duration_s,
        loader_s=aligned.waits_s,
        spent_s=aligned.spent_s,
        num_loader_ends=aligned.num_loader_ends,
        evaluation_loader_s=aligned.evaluation_loader_s,
        num_full_collections=aligned.num_full_collections,
        kind=aligned.kind,
        baseline_s=baseline,
        excess_s=charge.excess_s,
        settled=aligned.settled,
        regular_s=max(float(np.median(unstalled_s)), 0.0),
        spread_s=float(spread.mean()),
        without_stalls_s=without_stalls_s,
        step_s=without_stalls_s + cost_per_step_s(stalls, len(number), int(measured.sum())),
        stalls=tuple(stalls),
        sawtooth=sawtooth,
        calls=aligned.calls(with_steps),
    )


def _sawtooth(aligned: _Aligned) -> Sawtooth | None:
    ends = aligned.num_loader_ends
    time_s = aligned.without_known_s.mean(axis=0)
    return find_sawtooth(
        aligned.number,
        np.where(aligned.is_measured, time_s, np.nan),
        None if ends is None else np.asarray(ends.any(axis=0)),
    )


def _without_warm_up(stalls: Sequence[Stall], settled: int) -> list[Stall]:
    """Return the stalls without those that the warm-up may have caused."""
    of_warm_up = (StallCause.UNKNOWN, StallCause.COMPILATION)
    return [stall for stall in stalls if stall.step >= settled or stall.cause not in of_warm_up]


def _unstalled_s(aligned: _Aligned, stalls: Sequence[Stall]) -> NDArray[np.float64]:
    """Return the time of each measured step without the stalls in it, the mean over the ranks."""
    numbers = aligned.number[aligned.is_measured]
    unstalled_s: NDArray[np.float64] = np.nanmean(aligned.evened_s[:, aligned.is_measured], axis=0)
    row_of = {number: row for row, number in enumerate(numbers.tolist())}
    for stall in stalls:
        if stall.step in row_of:
            unstalled_s[row_of[stall.step]] -= stall.excess_s
    return unstalled_s


def _mean_without_stalls_s(aligned: _Aligned, baseline: NDArray[np.float64], unstalled_s: NDArray[np.float64]) -> float:
    """Return the mean time of all steps without stalls; one of the warm-up or of the recorder counts as its baseline.

    A job whose first epoch is slow has many of its slow steps in the warm-up, and those belong to the mean.
    """
    if aligned.settled > aligned.number[-1]:  # only the stable end of the warm-up is known
        return max(float(unstalled_s.mean()), 0.0)
    without_stalls_s: NDArray[np.float64] = np.nanmean(baseline, axis=0)
    without_stalls_s[aligned.is_measured] = unstalled_s
    return max(float(without_stalls_s.mean()), 0.0)


class _Aligned:
    """The columns of all ranks, as matrices of ranks x steps."""

    def __init__(self, ranks: Sequence[RankRecording], number: NDArray[np.int64]) -> None:
        self.ranks = [rank.rank for rank in ranks]
        self.number = number
        self._rows = [np.searchsorted(number, rank.steps.number) for rank in ranks]
        self._steps = [rank.steps for rank in ranks]
        shape = (len(ranks), len(number))
        self.start_ns = np.zeros(shape, dtype=np.int64)
        kinds = [StepKind.ORDINARY] * len(number)
        for row, (places, steps) in enumerate(zip(self._rows, self._steps, strict=True)):
            self.start_ns[row, places] = steps.start_ns
            for place, kind in zip(places, steps.kind, strict=True):
                kinds[place] = kinds[place] or kind
        self.kind = tuple(kinds)
        self.is_ordinary = np.array([not kind for kind in kinds], dtype=np.bool_)
        self.settled = max(rank.settled_step or 0 for rank in ranks)
        self.is_measured = measured_steps(number, self.is_ordinary, self.settled)
        self.duration_s = self._matrix([steps.duration_s for steps in self._steps], missing=np.nan)
        self.loader_s = self._matrix([steps.loader_s for steps in self._steps])
        self.spent_s = self._spent()
        started_s = self.spent_s.get(StallCause.LOADER_START, np.zeros(shape))
        num_workers = max(rank.loader_workers or 0 for rank in ranks)
        self.evened_s, self.waits_s = without_bursts(
            self.duration_s, self.loader_s, started_s, self.is_ordinary, num_workers
        )
        known = sum(self.spent_s.values(), np.zeros(shape))
        self.without_known_s = self.evened_s - known.max(axis=0)
        self.num_loader_ends = self._counts("num_loader_ends")
        self.evaluation_loader_s = self._counts("evaluation_loader_s")
        full_collections = self._counts("num_full_collections")
        self.num_full_collections = None if full_collections is None else int(full_collections.sum())
        self.num_alloc_retries = self._retries()

    def _counts(self, name: str) -> Matrix | None:
        """Return a column, or None if a rank's recorder was too old to write it."""
        if any(getattr(steps, name) is None for steps in self._steps):
            return None
        return self._matrix([getattr(steps, name) for steps in self._steps])

    def _retries(self) -> Matrix:
        """Return the number of allocator retries since the previous reading, for each step between the two readings."""
        columns = []
        for steps in self._steps:
            so_far = steps.num_alloc_retries
            new = np.zeros(len(steps.number))
            if so_far is not None:
                for before, row in pairwise(np.flatnonzero(~np.isnan(so_far)).tolist()):
                    new[before + 1 : row + 1] = so_far[row] - so_far[before]
            columns.append(new)
        return self._matrix(columns)

    def calls(self, ranks: Sequence[RankRecording]) -> CallColumns | None:
        """Return the columns of calls, if all steps of all ranks are calls of a model without gradients."""
        if any(not rank.only_infers or rank.steps.model_s is None for rank in ranks):
            return None

        def column(name: str) -> Matrix:
            values = [getattr(steps, name) for steps in self._steps]
            unknown = [np.full(len(steps.number), np.nan) for steps in self._steps]
            pairs = zip(values, unknown, strict=True)
            return self._matrix([none if value is None else value for value, none in pairs], missing=np.nan)

        return CallColumns(
            model_s=column("model_s"),
            num_samples=column("num_samples"),
            num_tokens=column("num_tokens"),
            num_known_tokens=column("num_known_tokens"),
            is_pooled=any(rank.is_pooled for rank in ranks),
        )

    def _matrix(self, columns: Sequence[NDArray[np.float64]], missing: float = 0.0) -> Matrix:
        matrix = np.full((len(self._steps), len(self.number)), missing)
        for row, (places, column) in enumerate(zip(self._rows, columns, strict=True)):
            matrix[row, places] = column
        return matrix

    def _spent(self) -> dict[StallCause, Matrix]:
        """Return the time spent in each cause that occurred."""
        spent: dict[StallCause, Matrix] = {}
        for cause, name in _COLUMNS.items():
            matrix = self._matrix([self._column(steps, name) for steps in self._steps])
            if cause in _MAY_BE_REGULAR:
                usual = np.median(matrix[:, self.is_ordinary], axis=1) if self.is_ordinary.any() else 0.0
                matrix = np.maximum(matrix - np.reshape(usual, (-1, 1)), 0.0)
            if matrix.any():
                spent[cause] = matrix
        return spent

    def _column(self, steps: Steps, name: str) -> NDArray[np.float64]:
        column: NDArray[np.float64] | None = getattr(steps, name)
        return np.zeros(len(steps.number)) if column is None else column


_COLUMNS = {
    StallCause.LOADER_START: "loader_start_s",
    StallCause.EVALUATION: "evaluation_s",
    StallCause.CHECKPOINT: "checkpoint_s",
    StallCause.LOGGING: "logging_s",
    StallCause.COMPILATION: "compilation_s",
    StallCause.GARBAGE_COLLECTION: "collection_s",
}
# If such a cause occurs in most steps, it is part of the regular step too.
_MAY_BE_REGULAR = frozenset({StallCause.LOADER_START, StallCause.EVALUATION, StallCause.LOGGING})


def _spread(deviation: NDArray[np.float64]) -> float:
    """Return the standard deviation of a rank's steps from the baseline, without outliers; 0 without a step."""
    seen = deviation[~np.isnan(deviation)]
    return _NORMAL_MAD * float(np.median(np.abs(seen))) if len(seen) else 0.0


class _Charge:
    """Charge the excess of each step to causes and ranks."""

    def __init__(self, aligned: _Aligned, baseline: Matrix, spread: NDArray[np.float64]) -> None:
        self._aligned = aligned
        self._threshold_s = np.maximum(MIN_SHARE_OF_REGULAR * baseline, MIN_DEVIATIONS * spread[:, None])
        beyond = np.nan_to_num(np.maximum(aligned.evened_s - baseline, 0.0))
        self._is_long = beyond > self._threshold_s
        self._explained = self._own_s(beyond)
        self._num_ranks = len(aligned.ranks)
        own = self._sum_of(self._explained)
        # The recorder lengthens some steps. There, all ranks are assumed to wait for the one with the longest cause.
        longest = np.broadcast_to(own.max(axis=0), own.shape)
        self._beyond = np.where(aligned.is_ordinary, beyond, longest)
        # Excess counts if it is more than noise, on this rank or on another rank in the same or the previous step.
        has_cause = np.asarray(own.max(axis=0) > 0)
        is_caused = has_cause | np.concatenate([[False], has_cause[:-1]])
        self.excess_s = np.where(self._is_long | is_caused, self._beyond, 0.0)

    def _own_s(self, beyond: Matrix) -> dict[StallCause, Matrix]:
        """Return the time of each cause on each rank; the sum is at most the excess of the rank's step."""
        aligned = self._aligned
        own = dict(aligned.spent_s)
        late = self._late_batches_s(own)
        if late.any():
            own[StallCause.LOADER] = late
        is_first = np.array([kind == StepKind.FIRST for kind in aligned.kind], dtype=np.bool_)
        for cause in _ONE_OFF & own.keys():
            own[cause] = np.where(is_first, 0.0, own[cause])
        total = self._sum_of(own)
        capped = np.where(aligned.is_ordinary, np.minimum(total, beyond), total)
        share = np.divide(capped, total, out=np.zeros_like(total), where=total > 0)
        return {cause: matrix * share for cause, matrix in own.items()}

    def _late_batches_s(self, own: dict[StallCause, Matrix]) -> Matrix:
        """Return the loader time in excess of the usual loader time, in long steps.

        The recorder prolongs its own steps: in these, the loader time itself must be long.
        """
        aligned = self._aligned
        usual = np.median(aligned.waits_s[:, aligned.is_ordinary], axis=1)
        start = own.get(StallCause.LOADER_START, np.zeros_like(aligned.waits_s))
        late = aligned.waits_s - start - usual[:, None]
        is_late = np.where(aligned.is_ordinary, self._is_long, late > self._threshold_s)
        return np.where(is_late, np.maximum(late, 0.0), 0.0)

    def _sum_of(self, matrices: dict[StallCause, Matrix]) -> Matrix:
        return sum(matrices.values(), np.zeros_like(self._aligned.duration_s))

    def stalls(self) -> list[Stall]:
        """Return the stalls of all steps, each with the mean over the ranks of what it cost."""
        stalls = []
        pending = np.zeros(self._num_ranks)  # the part of `causes` that ranks may still wait for in the next step
        causes: list[_Source] = []
        for column in np.flatnonzero(self.excess_s.any(axis=0)):
            if not causes or causes[0].column != column - 1:
                pending, causes = np.zeros(self._num_ranks), []
            found, pending, causes = self._of_step(int(column), pending, causes)
            stalls += found
        return stalls

    def _of_step(
        self, column: int, pending: NDArray[np.float64], before: list[_Source]
    ) -> tuple[list[Stall], NDArray[np.float64], list[_Source]]:
        """Return the stalls of a step, and the rest of its causes, for which ranks may wait in the next step."""
        excess = self.excess_s[:, column]
        own = np.array([matrix[:, column] for matrix in self._explained.values()])
        explained = own.sum(axis=0) if len(own) else np.zeros(self._num_ranks)
        rest = np.maximum(excess - explained, 0.0)
        sources = self._sources(column)
        longest = max((source.seconds for source in sources), default=0.0)
        may_wait = np.maximum(longest - explained, 0.0)
        waited = np.minimum(rest, may_wait)
        waited_before = np.minimum(rest - waited, pending)
        unknown = rest - waited - waited_before
        unknown = np.where(unknown > self._threshold_s[:, column], unknown, 0.0)
        stalls = [self._stall(column, source, waited, sources) for source in sources]
        stalls += [self._stall(source.column, source, waited_before, before, is_late=True) for source in before]
        if unknown.any():
            stalls.append(self._unknown(column, unknown))
        return [stall for stall in stalls if stall.excess_s > 0], may_wait - waited, sources

    def _sources(self, column: int) -> list[_Source]:
        """Return the causes of a step, with the rank that has each."""
        return [
            _Source(column, row, cause, float(matrix[row, column]))
            for cause, matrix in self._explained.items()
            for row in range(self._num_ranks)
            if matrix[row, column] > 0
        ]

    def _stall(
        self,
        column: int,
        source: _Source,
        waited: NDArray[np.float64],
        sources: list[_Source],
        *,
        is_late: bool = False,
    ) -> Stall:
        """Return the stall of one cause on one rank; the waiting ranks wait for the rank that takes longest."""
        by_row: dict[int, float] = {}
        for each in sources:
            by_row[each.row] = by_row.get(each.row, 0.0) + each.seconds
        slowest = max(by_row, key=lambda row: by_row[row])
        share = source.seconds / by_row[slowest] if source.row == slowest else 0.0
        own = 0.0 if is_late else source.seconds
        total = own + share * float(waited.sum())
        waiting = np.flatnonzero(waited * share)
        return Stall(
            step=int(self._aligned.number[column]),
            cause=source.cause,
            rank=self._aligned.ranks[source.row],
            excess_s=total / self._num_ranks,
            is_regular_step=bool(self._aligned.is_ordinary[column]),
            waiting_ranks=tuple(self._aligned.ranks[row] for row in waiting),
        )

    def _unknown(self, column: int, unknown: NDArray[np.float64]) -> Stall:
        """Return the stall without a measured cause; allocator retries close to it are a likely cause."""
        late = np.flatnonzero(unknown)
        retrying = np.flatnonzero(self._aligned.num_alloc_retries[:, column])
        rows = retrying if len(retrying) else late
        is_one = len(rows) == 1
        return Stall(
            step=int(self._aligned.number[column]),
            cause=StallCause.ALLOCATOR if len(retrying) else StallCause.UNKNOWN,
            rank=self._aligned.ranks[int(rows[0])] if is_one else None,
            excess_s=float(unknown.sum()) / self._num_ranks,
            is_regular_step=bool(self._aligned.is_ordinary[column]),
        )


class _Source:
    """A cause on a rank in a step, with the seconds that it took."""

    def __init__(self, column: int, row: int, cause: StallCause, seconds: float) -> None:
        self.column = column
        self.row = row
        self.cause = cause
        self.seconds = seconds
