"""Charge each exposed wait to the rank and the part that caused it.

For each wait, compare the time that the late rank and the waiting rank spent on each part since both were last in sync.
The parts on which the late rank spent more time are the cause, in proportion to the excess (a negative excess counts as
0). Two ranks are in sync when a collective ends and neither is still computing or has computed ahead: after that,
both do the same work. Comparing since the last collective instead would be wrong: a rank whose wait is hidden computes
ahead meanwhile, so the late rank's ordinary work would look like excess. Lateness that a step inherits from the
previous step keeps the cause that it had there. If the late rank's excess is itself a wait, the charge passes on to the
rank that it waited for, and to the cause of that wait.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from flatout.attribute.split import exposed_ns
from flatout.records.diagnosis import PART_NAMES, Part
from flatout.records.job import Arrivals, Match, Pipeline
from flatout.records.timeline import NUM_PARTS, RankTimeline, Segments

BEFORE_WINDOW = "before_window"
# Shorter gaps are the usual gaps between kernels.
MIN_LEVEL_NS = 20_000
MAX_LOOK_BACK = 512  # number of collectives that left a rank in sync to search for a common one; a step has fewer
MIN_STAGE_EXCESS = 1.03  # the slowest of equal stages computes up to 3 % longer than the second slowest

Cause = tuple[int, str]  # blamed rank, part
Charges = dict[Cause, float]  # nanoseconds

_WAITS = (int(Part.WAIT), int(Part.BUBBLE))
_IS_WAIT = np.isin(np.arange(NUM_PARTS), _WAITS)
# Launched before the compute that needs its result, not after the compute that makes its input.
PREFETCHED = {"all_gather"}


class BlameBook:
    """Charges each exposed wait of each rank, in the order in which the waits ended."""

    def __init__(
        self,
        timelines: Sequence[RankTimeline],
        segments: Mapping[int, Segments],
        matches: Sequence[Match],
        arrival: Mapping[int, Arrivals],
        pipelines: Sequence[Pipeline] = (),
    ) -> None:
        self._timelines = {t.rank: t for t in timelines}
        self._segments = segments
        self._matches = matches
        self._arrival = arrival
        self._pipelines = pipelines
        self._kernels = {t.rank: t.communication for t in timelines}
        self._at_start: dict[int, NDArray[np.int64]] = {}
        self._at_end: dict[int, NDArray[np.int64]] = {}
        self._at_until: dict[int, NDArray[np.int64]] = {}
        self._at_step: dict[int, NDArray[np.int64]] = {}
        self._step_starts: dict[int, NDArray[np.int64]] = {}
        self._step_row: dict[int, dict[int, int]] = {}
        for timeline in timelines:
            rank, kernels = timeline.rank, timeline.communication
            steps = np.array([step.start_ns for step in timeline.steps], dtype=np.int64)
            self._step_starts[rank] = steps
            self._step_row[rank] = {step.number: row for row, step in enumerate(timeline.steps)}
            until = arrival[rank].until_ns
            at = segments[rank].cumulative_ns(np.concatenate([kernels.start_ns, kernels.end_ns, until, steps]))
            n = kernels.num_kernels
            self._at_start[rank], self._at_end[rank] = at[:n], at[n : 2 * n]
            self._at_until[rank], self._at_step[rank] = at[2 * n : 3 * n], at[3 * n :]
        self._level = {t.rank: self._level_kernels(t.rank) for t in timelines}
        self._exposed = {t.rank: self._exposed_waits(t.rank) for t in timelines}
        self._history = self._level_matches()
        self._history_ends = {r: np.array([e for e, _ in h], dtype=np.int64) for r, h in self._history.items()}
        # rank -> its charged waits by time: (start of wait, charges)
        self._charged: dict[int, list[tuple[int, Charges]]] = defaultdict(list)

    def charge(self) -> list[tuple[int, int, Cause, float, int]]:
        """Return all charges: (waiting rank, start time of the wait, cause, ns, row of matches)."""
        waits: list[tuple[int, int, int]] = []
        for rank, arrival in self._arrival.items():
            kernels = np.flatnonzero((arrival.late_rank >= 0) & (self._exposed[rank] > 0)).tolist()
            waits += [(int(arrival.until_ns[kernel]), rank, kernel) for kernel in kernels]
        waits.sort()
        result = []
        for _, rank, kernel in waits:
            late = int(self._arrival[rank].late_rank[kernel])
            match = int(self._arrival[rank].match[kernel])
            slowest = self._slowest_stage(rank, kernel) if self._matches[match].is_pipeline else None
            if slowest is not None:
                shares = {(slowest, PART_NAMES[Part.COMPUTE]): 1.0}
            else:
                shares = self._causes(rank, late, kernel, self._matches[match].kernels[late])
            exposed = float(self._exposed[rank][kernel])
            start = int(self._kernels[rank].start_ns[kernel])
            charges = {cause: share * exposed for cause, share in shares.items()}
            self._charged[rank].append((start, charges))
            result += [(rank, start, cause, ns, match) for cause, ns in charges.items()]
        return result

    def _slowest_stage(self, rank: int, kernel: int) -> int | None:
        """Return the pipeline stage with the most compute time in this step if it is clearly the slowest.

        Stages do different work at any moment, so comparing two of them since the step's start is meaningless. But a
        stage with more work sets the pace of all stages, and makes them wait beyond the bubble.
        """
        step = self._step_of(rank, int(self._kernels[rank].start_ns[kernel]))
        stages = next((p.stages for p in self._pipelines if rank in p.stages), ())
        if any(stage not in self._timelines for stage in stages):
            return None
        if step < 0 or len(stages) < 2 or any(step >= len(self._timelines[s].steps) for s in stages):
            return None
        compute = {}
        for stage in stages:
            span = self._timelines[stage].steps[step]
            compute[stage] = int(self._segments[stage].between_ns(span.start_ns, span.end_ns)[Part.COMPUTE])
        slowest = max(compute, key=lambda s: compute[s])
        others = [ns for s, ns in compute.items() if s != slowest]
        stands_out = compute[slowest] > MIN_STAGE_EXCESS * max(others)
        return slowest if stands_out and slowest != rank else None

    def _level_matches(self) -> dict[int, list[tuple[int, int]]]:
        """Return, by rank, the end and the index of each match after which the rank had nothing computed ahead, by end.

        The last match that left two ranks in sync is found by walking one rank's matches, latest end first.
        """
        history: dict[int, list[tuple[int, int]]] = {rank: [] for rank in self._timelines}
        for index, match in enumerate(self._matches):
            if len(match.kernels) == 1:
                continue
            for rank, kernel in match.kernels.items():
                if self._level[rank][kernel]:
                    history[rank].append((int(self._kernels[rank].end_ns[kernel]), index))
        return {rank: sorted(entries) for rank, entries in history.items()}

    def _level_kernels(self, rank: int) -> NDArray[np.bool_]:
        """Return True for each kernel after which the rank has nothing computed ahead.

        The rank was not computing when the collective ended or in the `MIN_LEVEL_NS` before, and its next collective
        was not ready by then: if the next collective follows at once, the rank computed ahead during a hidden wait.
        """
        kernels, segments = self._kernels[rank], self._segments[rank]
        if kernels.num_kernels == 0:
            return np.zeros(0, dtype=np.bool_)
        before = np.maximum(kernels.end_ns - MIN_LEVEL_NS, kernels.start_ns)
        computed = self._at_end[rank][:, Part.COMPUTE] - segments.cumulative_part_ns(Part.COMPUTE, before)
        idle = (computed == 0) & (kernels.end_ns > kernels.start_ns)
        next_start = np.append(kernels.start_ns[1:], np.iinfo(np.int64).max)
        return np.asarray(idle & (next_start - MIN_LEVEL_NS > kernels.end_ns))

    def _exposed_waits(self, rank: int) -> NDArray[np.int64]:
        """Return the exposed WAIT nanoseconds of each kernel."""
        kernels, arrival = self._kernels[rank], self._arrival[rank]
        until = np.where(arrival.is_known, arrival.until_ns, kernels.start_ns)
        return exposed_ns(self._segments[rank], kernels.start_ns, until, Part.WAIT)

    def _causes(self, waiting: int, late: int, wait_kernel: int, late_kernel: int) -> dict[Cause, float]:
        """Return each cause's share of one wait; the shares sum to 1."""
        late_start = int(self._kernels[late].start_ns[late_kernel])
        wait_start = int(self._kernels[waiting].start_ns[wait_kernel])
        steps = self._step_rows(waiting, late, self._step_of(waiting, wait_start))
        since = self._level_since(waiting, late, (wait_start, late_start), steps)
        excess: Charges = defaultdict(float)
        if since is not None:
            self._add_excess(excess, waiting, late, since, (wait_kernel, late_kernel))
        elif steps is not None:
            from_step = (self._at_step[waiting][steps[0]], self._at_step[late][steps[1]])
            self._add_excess(excess, waiting, late, from_step, (wait_kernel, late_kernel))
            self._add_earlier(excess, waiting, late, steps)
        else:
            none = np.zeros(NUM_PARTS, dtype=np.int64)
            self._add_excess(excess, waiting, late, (none, none), (wait_kernel, late_kernel))
            earlier = self._timelines[late].window_start_ns - self._timelines[waiting].window_start_ns
            excess[late, BEFORE_WINDOW] += max(0, earlier)
        # The late rank may itself have waited for this rank earlier, but no rank waits for itself.
        excess = {cause: ns for cause, ns in excess.items() if cause[0] != waiting}
        total = sum(excess.values())
        if total <= 0:
            return {(late, PART_NAMES[Part.UNATTRIBUTED]): 1.0}
        return {cause: ns / total for cause, ns in excess.items() if ns > 0}

    def _add_excess(
        self,
        excess: Charges,
        waiting: int,
        late: int,
        since: tuple[NDArray[np.int64], NDArray[np.int64]],
        kernels: tuple[int, int],
    ) -> None:
        """Add the late rank's excess over the waiting rank, from `since` (cumulative parts of both) to its arrival.

        Gathering weights does not depend on earlier compute: before it arrived, the late rank may have done compute
        that the waiting rank overlaps with its wait. That compute also counts for the waiting rank.
        """
        spent_waiting = self._at_start[waiting][kernels[0]] - since[0]
        if self._matches[int(self._arrival[waiting].match[kernels[0]])].operation in PREFETCHED:
            until = self._at_until[waiting][kernels[0]] - since[0]
            spent_waiting = np.where(_IS_WAIT, spent_waiting, until)
        spent_late = self._at_start[late][kernels[1]] - since[1]
        until = int(self._kernels[late].start_ns[kernels[1]])
        self._spread(excess, late, spent_late - spent_waiting, int(spent_late.sum()), until)

    def _add_earlier(self, excess: Charges, waiting: int, late: int, rows: tuple[int, int]) -> None:
        """Charge lateness at the step's start to the cause that it had in the previous step."""
        wait_start = self._timelines[waiting].steps[rows[0]].start_ns
        late_start = self._timelines[late].steps[rows[1]].start_ns
        lateness = late_start - wait_start
        if lateness <= 0:
            return
        if min(rows) == 0:
            excess[late, BEFORE_WINDOW] += lateness
            return
        before = (rows[0] - 1, rows[1] - 1)
        since = self._level_since(waiting, late, (wait_start, late_start), before)
        if since is None:
            since = (self._at_step[waiting][before[0]], self._at_step[late][before[1]])
        spent_late = self._at_step[late][rows[1]] - since[1]
        more = spent_late - (self._at_step[waiting][rows[0]] - since[0])
        earlier: Charges = defaultdict(float)
        self._spread(earlier, late, more, int(spent_late.sum()), late_start)
        total = sum(earlier.values())
        if total <= 0:
            excess[late, BEFORE_WINDOW] += lateness
            return
        for cause, ns in earlier.items():
            excess[cause] += lateness * ns / total

    def _spread(self, excess: Charges, late: int, more: NDArray[np.int64], length_ns: int, until_ns: int) -> None:
        """Charge positive excess by part, and excess waiting to the causes of the late rank's waits in that period."""
        for part in np.flatnonzero(more > 0).tolist():
            if part not in _WAITS:
                excess[late, PART_NAMES[part]] += float(more[part])
                continue
            earlier: Charges = defaultdict(float)
            for start, charges in reversed(self._charged[late]):
                if start < until_ns - length_ns:
                    break
                if start < until_ns:
                    for cause, ns in charges.items():
                        earlier[cause] += ns
            total = sum(earlier.values())
            if total <= 0:
                excess[late, PART_NAMES[part]] += float(more[part])
            for cause, ns in earlier.items():
                excess[cause] += float(more[part]) * ns / total

    def _level_since(
        self, waiting: int, late: int, arrivals: tuple[int, int], rows: tuple[int, int] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Return the cumulative parts of both ranks when they were last in sync before arriving, in the step of `rows`.

        This is the end of the last collective that ended before both arrivals and left both ranks in sync. Return None
        if there is no such collective.
        """
        earliest = self._timelines[waiting].steps[rows[0]].start_ns if rows is not None else 0
        at = int(np.searchsorted(self._history_ends[waiting], arrivals[0], side="right"))
        for end, index in reversed(self._history[waiting][max(at - MAX_LOOK_BACK, 0) : at]):
            if end < earliest:
                return None
            kernels = self._matches[index].kernels
            kernel = kernels.get(late)
            if kernel is None or not self._level[late][kernel] or self._kernels[late].end_ns[kernel] > arrivals[1]:
                continue
            if self._have_met(waiting, kernels[waiting], late, kernel):
                return self._at_end[waiting][kernels[waiting]], self._at_end[late][kernel]
        return None

    def _have_met(self, waiting: int, waiting_kernel: int, late: int, late_kernel: int) -> bool:
        """Whether neither rank left this collective before the other came: the root of a broadcast need not wait."""
        own, other = self._kernels[waiting], self._kernels[late]
        is_own_last = own.end_ns[waiting_kernel] >= other.start_ns[late_kernel]
        is_other_last = other.end_ns[late_kernel] >= own.start_ns[waiting_kernel]
        return bool(is_own_last and is_other_last)

    def _step_of(self, rank: int, time_ns: int) -> int:
        """Return the row of the rank's step at that time, or -1 before the first step."""
        return int(np.searchsorted(self._step_starts[rank], time_ns, side="right")) - 1

    def _step_rows(self, waiting: int, late: int, row: int) -> tuple[int, int] | None:
        """Return the step's row on both ranks, or None before the first step or if the late rank lacks that step."""
        if row < 0:
            return None
        other = self._step_row[late].get(self._timelines[waiting].steps[row].number)
        return None if other is None else (row, other)
