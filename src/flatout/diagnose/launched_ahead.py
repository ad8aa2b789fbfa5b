"""Recognise a host that launches the work of many steps before it waits for the GPU, and take its waits out of the log.

In: the `JobLog` and the attributed traces. Out: the log without stalls of unknown cause (and without garbage
collection, which such a lead hides), where these are waits for work that had been launched before; otherwise the same
log. A script that waits for the GPU every 20 steps has short steps, those of launching, and one long step, in which the
work is awaited. The mean step is that of the GPU all the same, and a traced step shows how long that is: steps of a
trace are bounded by the GPU's work. While the GPU stalls, it is idle, and the mean step exceeds the traced one.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.diagnose.stalls import period_of
from flatout.records.diagnosis import Part
from flatout.records.events import Quality
from flatout.records.job import JobAttribution
from flatout.records.job_log import JobLog, LaunchedAhead, Sawtooth, Stall, StallCause
from flatout.records.timeline import RankTimeline
from flatout.units import percent, seconds

MIN_SHARE_OF_WAIT = 0.5  # of the usual wait; a shorter stall is not one of the waits that bound cycles
MIN_CYCLES = 2
MIN_BUSY_SHARE = 0.95  # of the traced time, of each rank's GPU
MIN_STALLED_SHARE = 0.05  # of the mean step; less is within the variation between traced steps
MAX_LEFT = 0.25  # share of the stalls' cost by which the mean step may exceed the traced one
MAX_SHORTFALL = 0.05  # share of the mean step by which a traced step may be shorter
MAX_EXCESS = 0.1  # share of the mean step by which a traced step may be longer: the recorder prolongs it
MIN_TEETH_WITH_WAIT = 0.75
_HIDDEN = frozenset({StallCause.UNKNOWN, StallCause.GARBAGE_COLLECTION})
# In a wait, a communication kernel runs too. Another rank may stall then, and its own GPU is idle.
_BUSY_PARTS = (Part.COMPUTE, Part.TRANSFER, Part.WAIT, Part.COMMUNICATION_UNSPLIT, Part.MEMORY_COPY)


def without_waits_for_gpu(log: JobLog, job: JobAttribution) -> JobLog:
    """Return the log without the waits for work that was launched ahead, and with what is known of them, if any."""
    hidden = tuple(stall for stall in log.stalls if stall.cause in _HIDDEN)
    waits = _waits(hidden)
    is_pooled = log.calls is not None and log.calls.is_pooled
    if not waits or is_pooled or not _can_show_the_gpu(job):
        return log
    if log.sawtooth is not None and not _ends_with_waits(log.sawtooth, waits, log.settled):
        return log
    cycles = _cycles(log, waits)
    busy_share = min(_busy_share(job, timeline) for timeline in job.timelines)
    if len(cycles) < MIN_CYCLES or busy_share < MIN_BUSY_SHARE:
        return log
    in_cycles = np.concatenate(cycles)
    mean_step_s = float(np.nanmean(log.duration_s[:, in_cycles]))
    counted = set(log.number[in_cycles].tolist())
    stalled_s = sum(stall.excess_s for stall in hidden if stall.step in counted) / len(counted)
    traced_step_s = float(np.mean([_step_s(timeline) for timeline in job.timelines]))
    if not _is_mean_step(traced_step_s, mean_step_s, stalled_s):
        return log
    ahead = LaunchedAhead(
        period_steps=period_of(waits),
        busy_share=busy_share,
        traced_step_s=traced_step_s,
        mean_step_s=mean_step_s,
    )
    return _without(hidden, log, ahead)


def note_of(log: JobLog | None) -> list[Quality]:
    """Return the note that the steps of the log are those of launching, if they are."""
    ahead = None if log is None else log.launched_ahead
    if log is None or ahead is None:
        return []
    often = "now and then" if ahead.period_steps is None else f"every {ahead.period_steps:,} steps"
    return [
        Quality(
            problem=(
                f"the host runs ahead of the GPU and waits for it {often}: the GPU is busy"
                f" {percent(ahead.busy_share)} of the traced time, in which a step takes"
                f" {seconds(ahead.traced_step_s)}, and from wait to wait a step takes {seconds(ahead.mean_step_s)} on"
                " average"
            ),
            effect=(
                "the long steps in the step log cost nothing; the times of single steps or calls, with their median"
                " and percentiles, are those of launching, and only the mean is that of the GPU"
            ),
        )
    ]


def _waits(stalls: tuple[Stall, ...]) -> list[int]:
    """Return the steps of the long stalls of unknown cause. The usual wait is that of most of the time in them."""
    excess_s: dict[int, float] = {}
    for stall in stalls:
        if stall.cause == StallCause.UNKNOWN:
            excess_s[stall.step] = excess_s.get(stall.step, 0.0) + stall.excess_s
    total_s = sum(excess_s.values())
    usual_s = sum(each_s**2 for each_s in excess_s.values()) / total_s if total_s > 0 else 0.0
    return sorted(step for step, each_s in excess_s.items() if each_s >= MIN_SHARE_OF_WAIT * usual_s)


def _cycles(log: JobLog, waits: list[int]) -> list[NDArray[np.int64]]:
    """Return the columns from one wait to the next, for each pair between which all steps are the job's own.

    The host and the GPU are at the same step at the end of a wait, so that a cycle takes as long on both. In a step
    with another stall, such as a checkpoint, the host may wait too.
    """
    others = [stall.step for stall in log.stalls if stall.cause not in _HIDDEN]
    is_counted = log.is_measured & ~np.isin(log.number, others)
    columns = np.searchsorted(log.number, waits).tolist()
    cycles = [np.arange(low + 1, high + 1) for low, high in pairwise(columns)]
    return [cycle for cycle in cycles if is_counted[cycle].all()]


def _can_show_the_gpu(job: JobAttribution) -> bool:
    return bool(job.timelines) and all(t.has_gpu and t.is_device_known and t.steps for t in job.timelines)


def _ends_with_waits(sawtooth: Sawtooth, waits: list[int], settled: int) -> bool:
    """Whether the host waits in each tooth. The teeth of epochs are taken for those of sorted batches, with or without.

    A launch queue fills within each tooth: steps are short at first, and then take as long as the GPU.
    """
    if sawtooth.is_epoch:
        return False
    teeth = [(low, high) for low, high in pairwise(sawtooth.starts) if low >= settled]
    has_wait = [any(low <= step < high for step in waits) for low, high in teeth]
    return bool(teeth) and sum(has_wait) >= MIN_TEETH_WITH_WAIT * len(teeth)


def _busy_share(job: JobAttribution, timeline: RankTimeline) -> float:
    parts_ns = job.parts_between_ns(timeline.rank, timeline.first_step_ns, timeline.window_end_ns)
    total_ns = float(parts_ns.sum())
    return float(parts_ns[list(_BUSY_PARTS)].sum()) / total_ns if total_ns > 0 else 0.0


def _step_s(timeline: RankTimeline) -> float:
    return (timeline.window_end_ns - timeline.first_step_ns) / 1e9 / len(timeline.steps)


def _is_mean_step(traced_step_s: float, mean_step_s: float, stalled_s: float) -> bool:
    """Whether a traced step takes as long as the mean step with its stalls, rather than as one without them."""
    left_s = mean_step_s - traced_step_s
    is_beyond_noise = stalled_s >= MIN_STALLED_SHARE * mean_step_s
    is_most_explained = left_s <= MAX_LEFT * stalled_s
    is_alike = -MAX_EXCESS * mean_step_s <= left_s <= MAX_SHORTFALL * mean_step_s
    return is_beyond_noise and is_most_explained and is_alike


def _without(hidden: tuple[Stall, ...], log: JobLog, ahead: LaunchedAhead) -> JobLog:
    """Return the log without these stalls. Their time belongs to the steps, which take the same time on the GPU."""
    stalls = tuple(stall for stall in log.stalls if stall.cause not in _HIDDEN)
    is_stalled = np.isin(log.number, [stall.step for stall in stalls])
    without_stalls_s = log.without_stalls_s + log.per_step_s(hidden)
    return msgspec.structs.replace(
        log,
        excess_s=np.where(is_stalled, log.excess_s, 0.0),
        regular_s=without_stalls_s,
        without_stalls_s=without_stalls_s,
        stalls=stalls,
        launched_ahead=ahead,
    )
