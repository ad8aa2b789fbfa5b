"""The metrics of a job's ranks. In: their heartbeats. Out: samples on a page; a value that is unknown has no sample."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from statistics import median

from flatout.inside.protocol import HEARTBEAT_FINE_FACTOR, HEARTBEAT_FINE_FIRST_NS, HEARTBEAT_PHASES
from flatout.keep.heartbeats import BLOCK_STEPS, HeartbeatSample
from flatout.launch.process_identity import resident_bytes
from flatout.records.watch import PeakTime
from flatout.watch.exporter.page import MetricPage

# A rank exports this many of its fine buckets, around its median. They begin at a multiple of `_BUCKETS_APART`, so that
# a median that moves a little does not change which buckets exist.
NUM_BUCKETS = 56
_BUCKETS_APART, _BUCKETS_BELOW = 16, 12


def add_ranks(page: MetricPage, ranks: Sequence[HeartbeatSample], now_s: float) -> None:
    """Add the metrics of all ranks. `now_s` is the time by CLOCK_MONOTONIC."""
    if ranks:
        page.gauge("flatout_world_size", "Number of ranks of the job.", ranks[0].world_size)
    waited = exposed_of_one_exchange(ranks)
    longest_wait_s = max(waited.values(), default=0.0)
    for pulse in ranks:
        _add_progress(page, pulse, now_s)
        _add_step_times(page, pulse)
        if pulse.rank in waited:
            _add_exchange(page, pulse, waited[pulse.rank], longest_wait_s)


def exposed_of_one_exchange(ranks: Sequence[HeartbeatSample]) -> dict[int | None, float]:
    """Return each rank's exposed time per step in the last timed exchange of gradients, by rank.

    Empty unless all ranks timed the same exchange: only then can they be compared.
    """
    exchanges = [pulse.exchange for pulse in ranks if pulse.exchange is not None]
    is_same = len({exchange.iteration for exchange in exchanges}) == 1
    if len(exchanges) < len(ranks) or not is_same:
        return {}
    return {
        pulse.rank: pulse.exchange.exposed_ns * pulse.exchange.per_step / 1e9
        for pulse in ranks
        if pulse.exchange is not None
    }


def _add_progress(page: MetricPage, pulse: HeartbeatSample, now_s: float) -> None:
    rank = str(pulse.rank)
    is_up = pulse.is_alive and not pulse.has_ended
    page.gauge("flatout_rank_up", "Whether the process of the rank exists.", int(is_up), rank=rank)
    page.gauge("flatout_rank_steps", "Steps that each rank made in this attempt.", pulse.num_steps, rank=rank)
    page.counter("flatout_checkpoints", "Checkpoints that the rank saved.", pulse.num_checkpoints, rank=rank)
    for phase in HEARTBEAT_PHASES:
        text = "Time of the training thread by part, in seconds."
        page.counter("flatout_rank_part_seconds", text, pulse.spent_s.get(phase, 0.0), rank=rank, part=phase)
    if pulse.last_step_end_s is not None:
        age_s = max(now_s - pulse.last_step_end_s, 0.0)
        page.gauge("flatout_last_step_age_seconds", "Time since the end of the rank's last step.", age_s, rank=rank)
    memory = resident_bytes(pulse.pid) if pulse.is_local else None
    if memory is not None:
        page.gauge("flatout_rank_resident_bytes", "Host memory of the rank's process.", memory, rank=rank)


def _add_step_times(page: MetricPage, pulse: HeartbeatSample) -> None:
    rank = str(pulse.rank)
    text = "Step times of each rank in this attempt."
    page.histogram("flatout_step_seconds", text, fine_buckets(pulse), _sum_s(pulse), rank=rank)
    block_s = pulse.block_median_s
    if block_s is None:
        return
    text = f"Median of the last {BLOCK_STEPS} steps, without checkpoints and evaluations."
    page.gauge("flatout_step_block_median_seconds", text, block_s, rank=rank)
    _add_rates(page, pulse, block_s)
    if pulse.data_share is not None:
        text = f"Share of the last {BLOCK_STEPS} steps spent waiting for batches."
        page.gauge("flatout_data_wait_ratio", text, pulse.data_share, rank=rank)


def _add_rates(page: MetricPage, pulse: HeartbeatSample, block_s: float) -> None:
    rank = str(pulse.rank)
    if pulse.tokens_per_step is not None:
        text = "Tokens of the rank's batches per second, at its last steps."
        page.gauge("flatout_tokens_per_second", text, pulse.tokens_per_step / block_s, rank=rank)
    if pulse.samples_per_step is not None:
        text = "Samples of the rank's batches per second, at its last steps."
        page.gauge("flatout_samples_per_second", text, pulse.samples_per_step / block_s, rank=rank)


def add_mfu(page: MetricPage, ranks: Sequence[HeartbeatSample], peak_time: PeakTime | None) -> None:
    """Add the job's MFU, if a recording has its operations."""
    mfu = mfu_of([pulse.block_median_s for pulse in ranks], ranks[0].world_size if ranks else 0, peak_time)
    if mfu is not None:
        text = "Time of the step's operations at the GPUs' peak rate, relative to the step time."
        page.gauge("flatout_mfu_ratio", text, mfu)


def mfu_of(step_times_s: Sequence[float | None], world_size: int | None, peak_time: PeakTime | None) -> float | None:
    """Return the MFU of these ranks; None if it is unknown, also on another number of ranks than was recorded."""
    known = [value for value in step_times_s if value is not None]
    if peak_time is None or not known or world_size != peak_time.num_ranks:
        return None
    return peak_time.step_s / median(known)


def _add_exchange(page: MetricPage, pulse: HeartbeatSample, exposed_s: float, longest_wait_s: float) -> None:
    rank = str(pulse.rank)
    text = "Exposed exchange of gradients per step, in the last one that was timed."
    page.gauge("flatout_exposed_communication_seconds", text, exposed_s, rank=rank)
    text = "How much later than the earliest rank this one came to the last timed exchange."
    page.gauge("flatout_rank_lateness_seconds", text, longest_wait_s - exposed_s, rank=rank)
    block_s = pulse.block_median_s
    if block_s is not None and block_s > exposed_s:
        text = "Exposed communication relative to the rest of the step."
        page.gauge("flatout_communication_compute_ratio", text, exposed_s / (block_s - exposed_s), rank=rank)


def fine_buckets(pulse: HeartbeatSample) -> list[tuple[str, float]]:
    """Return the cumulative buckets of step times around the median; the last one is `+Inf`."""
    counts = list(accumulate(pulse.fine_buckets))
    num_steps = counts[-1] if counts else 0
    if not num_steps:
        return [("+Inf", 0.0)]
    middle = next(bucket for bucket, count in enumerate(counts) if 2 * count >= num_steps)
    first = max(middle // _BUCKETS_APART * _BUCKETS_APART - _BUCKETS_BELOW, 0)
    buckets = range(first, min(first + NUM_BUCKETS, len(counts) - 1))
    bounds = [(_bound(bucket), float(counts[bucket])) for bucket in buckets]
    return [*bounds, ("+Inf", float(num_steps))]


def _bound(bucket: int) -> str:
    return repr(round(HEARTBEAT_FINE_FIRST_NS * HEARTBEAT_FINE_FACTOR**bucket / 1e9, 9))


def _sum_s(pulse: HeartbeatSample) -> float:
    if pulse.first_step_end_s is None or pulse.last_step_end_s is None:
        return 0.0
    return pulse.last_step_end_s - pulse.first_step_end_s
