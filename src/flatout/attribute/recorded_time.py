"""Where the wall time of a whole recording went, and the timeline of its steps.

In: a `Recording` and its `JobLog`. Out: `RecordedTime`. A stall is time that the log charges to a cause; this module
only adds these up. Warm-up steps and steps that the recorder prolonged count as a regular step plus their known stalls;
their remaining time is warm-up or recorder overhead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flatout.attribute.call_latency import call_latencies, uncounted_calls
from flatout.records.job_log import JobLog
from flatout.records.recorded_time import BinKind, RecordedTime, StepTimeline, TimelineLane, WallPart, longest_of
from flatout.records.recording import RankRecording, Recording

MOST_LANES = 64
MOST_BINS = 600  # of a lane
MOST_BINS_OF_ALL = 12_000  # limits the report's size for any number of ranks


def recorded_time(recording: Recording, log: JobLog) -> RecordedTime:
    """Return the parts of the recording's wall time as means over its ranks, and the timeline of its steps."""
    ranks = [rank for rank in recording.ranks if len(rank.steps.number)]
    start_s, end_s = _span(recording, ranks)
    parts_s = dict.fromkeys(map(str, WallPart), 0.0)
    for rank in ranks:
        for part, seconds in _outside_steps(rank, start_s, end_s).items():
            parts_s[part] += float(seconds) / len(ranks)
    is_warm_up = log.is_warm_up
    stalls_s: dict[str, float] = defaultdict(float)
    _add_steps(log, is_warm_up, parts_s, stalls_s)
    return RecordedTime(
        num_steps=log.num_steps,
        wall_s=float(end_s - start_s),
        parts_s=parts_s,
        stalls_s=dict(sorted(stalls_s.items(), key=lambda item: -item[1])),
        timeline=_timeline(log, is_warm_up),
        calls=call_latencies(ranks, log),
        uncounted_calls=uncounted_calls(ranks, log),
    )


def _span(recording: Recording, ranks: Sequence[RankRecording]) -> tuple[float, float]:
    """Return the start and the end of the recording in unix time; never inside a rank's steps."""
    starts = [_start_s(rank) for rank in ranks]
    ends = [_end_s(rank) for rank in ranks]
    starts += [run.start_unix_s for run in recording.runs]
    ends += [run.end_unix_s for run in recording.runs if run.end_unix_s is not None]
    return min(starts), max(ends)


def _start_s(rank: RankRecording) -> float:
    return float(rank.steps.start_ns[0]) / 1e9


def _end_s(rank: RankRecording) -> float:
    return float(rank.steps.start_ns[-1]) / 1e9 + float(rank.steps.duration_s[-1])


def _outside_steps(rank: RankRecording, start_s: float, end_s: float) -> dict[str, float]:
    """Return the parts of the rank's wall time before, between and after its steps."""
    steps = rank.steps
    between_s = np.diff(steps.start_ns) / 1e9 - steps.duration_s[:-1]
    is_consecutive = np.diff(steps.number) == 1
    return {
        WallPart.BEFORE_FIRST_STEP: _start_s(rank) - start_s,
        WallPart.RECORDER: float(between_s[is_consecutive].sum()),
        WallPart.NOT_RECORDED: float(between_s[~is_consecutive].sum()),
        WallPart.AFTER_LAST_STEP: end_s - _end_s(rank),
    }


def _add_steps(
    log: JobLog, is_warm_up: NDArray[np.bool_], parts_s: dict[str, float], stalls_s: dict[str, float]
) -> None:
    """Add the time of all steps to the parts, and their stalls to the causes. A step that a rank lacks counts as 0."""
    num_ranks = len(log.ranks)
    duration_s = np.nansum(log.duration_s, axis=0) / num_ranks
    regular_s = np.nansum(np.where(np.isnan(log.duration_s), np.nan, log.baseline_s), axis=0) / num_ranks
    charged = _charged(log, duration_s)
    for column, causes in charged.items():
        for cause, seconds in causes.items():
            stalls_s[cause] += seconds
            duration_s[column] -= seconds
            parts_s[WallPart.STALLS] += seconds
    is_recorder = ~log.is_ordinary & ~is_warm_up
    is_disturbed = is_recorder | is_warm_up
    regular_s = np.where(is_disturbed, np.clip(regular_s, 0.0, duration_s), duration_s)
    rest_s = duration_s - regular_s
    parts_s[WallPart.REGULAR_STEPS] += float(regular_s.sum())
    parts_s[WallPart.WARM_UP] += float(rest_s[is_warm_up].sum())
    parts_s[WallPart.RECORDER] += float(rest_s[is_recorder].sum())


def _charged(log: JobLog, duration_s: NDArray[np.float64]) -> dict[int, dict[str, float]]:
    """Return the stalls of each step by cause; their sum is at most the step time."""
    column_of = {int(number): column for column, number in enumerate(log.number)}
    charged: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for stall in log.stalls:
        column = column_of[stall.step]
        charged[column][str(stall.cause)] += stall.excess_s
    for column, causes in charged.items():
        total = sum(causes.values())
        if total > duration_s[column]:
            for cause in causes:
                causes[cause] *= float(duration_s[column]) / total
    return charged


def _timeline(log: JobLog, is_warm_up: NDArray[np.bool_]) -> StepTimeline:
    num_ranks, num_steps = log.duration_s.shape
    num_lanes = min(num_ranks, MOST_LANES)
    most_bins = max(1, min(MOST_BINS, MOST_BINS_OF_ALL // num_lanes))
    steps_per_bin = -(-num_steps // most_bins)
    lanes = []
    for rows in np.array_split(np.arange(num_ranks), num_lanes):
        duration_s = log.duration_s[rows]
        is_missing = np.isnan(duration_s).all(axis=0)
        longest_s = np.nan_to_num(duration_s).max(axis=0)
        is_stalled = np.nan_to_num(log.excess_s[rows]).max(axis=0) > 0
        kinds = np.select(
            [is_missing, is_warm_up, ~log.is_ordinary, is_stalled],
            [BinKind.MISSING, BinKind.WARM_UP, BinKind.RECORDER, BinKind.STALL],
            default=BinKind.REGULAR,
        ).tolist()
        lanes.append(_lane(tuple(log.ranks[row] for row in rows), longest_s.tolist(), kinds, steps_per_bin))
    return StepTimeline(
        first_step=int(log.number[0]), num_steps=num_steps, steps_per_bin=steps_per_bin, lanes=tuple(lanes)
    )


def _lane(ranks: tuple[int, ...], longest_s: Sequence[float], kinds: Sequence[str], steps_per_bin: int) -> TimelineLane:
    bins, letters = [], []
    for start in range(0, len(kinds), steps_per_bin):
        end = start + steps_per_bin
        seconds, kind = longest_of(longest_s[start:end], kinds[start:end])
        bins.append(seconds)
        letters.append(kind)
    return TimelineLane(ranks=ranks, longest_s=tuple(bins), kinds="".join(letters))
