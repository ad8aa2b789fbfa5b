"""Measure what a trace cannot show, from the ranks of a recording: samples and tokens per second, MFU, memory.

Rates and MFU are totals over the recording: they refer to its mean step, which includes stalls (see `step_log`). The
values for the regular step, which is the median, are given too. MFU is the time that the step's floating-point
operations take at the vendor's dense peak rates (or at measured ones), divided by the step time, both summed over the
ranks. The definition is that of PaLM (arXiv:2204.02311, appendix B), but with operations counted as executed, so
recomputed activations count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from flatout.catalog.gpus import gpu_facts
from flatout.records.ceilings import Ceilings
from flatout.records.recording import Measured, RankRecording, Recording
from flatout.step_log.totals import step_totals

_NOT_SETTLED = "the job ended before its step times were stable"
_NOT_COUNTED = "no step's operations were counted: the job ended too early, or it was a trial of a tuning run"


def with_ceilings(recording: Recording, by_host: Mapping[str, Ceilings]) -> Recording:
    """Return the recording with MFU relative to the rates of `flatout bench`; unchanged if a host has none."""
    by_rank = _measured_peaks(recording.ranks, by_host)
    if by_rank is None:
        return recording
    return msgspec.structs.replace(recording, measured=measure(recording.ranks, by_rank=by_rank))


def _measured_peaks(
    ranks: Sequence[RankRecording], by_host: Mapping[str, Ceilings]
) -> dict[int, Mapping[str, float]] | None:
    """Return FLOP/s by operand type of each rank's device; None unless the rates cover all operations of every rank.

    Ranks on the same host's CPU share its rate.
    """
    num_on_host = Counter(rank.hostname for rank in ranks)
    by_rank: dict[int, Mapping[str, float]] = {}
    for rank in ranks:
        ceilings = by_host.get(rank.hostname)
        if ceilings is None or not _is_measured_on(ceilings, rank):
            return None
        num_sharing = 1 if ceilings.is_gpu else num_on_host[rank.hostname]
        rates = {dtype: rate / num_sharing for dtype, rate in ceilings.matmul_flops_per_s().items()}
        computed = rank.flops_by_type or {}
        if not computed.keys() <= rates.keys():
            return None
        by_rank[rank.rank] = rates
    return by_rank or None


def _is_measured_on(ceilings: Ceilings, rank: RankRecording) -> bool:
    """Whether the rates are valid, and for the kind of device that the rank uses."""
    if ceilings.wrong:
        return False
    if rank.device is None:
        return not ceilings.is_gpu
    return ceilings.is_gpu and rank.device.name == ceilings.device


def measure(
    ranks: Sequence[RankRecording],
    peaks: Mapping[str, float] | None = None,
    *,
    by_rank: Mapping[int, Mapping[str, float]] | None = None,
) -> Measured:
    """Compute everything that is known; `reasons` says why a number is missing.

    `peaks` are measured FLOP/s by operand type, instead of the vendor's; `by_rank` has the measured rates of each rank.
    """
    reasons: dict[str, str] = {}
    step_s = _mean([rank.untraced_step_s for rank in ranks])
    if step_s is None:
        reasons["step_s"] = _NOT_SETTLED if ranks else "no rank was recorded"
    samples = _per_step(ranks, "samples", reasons)
    tokens = _per_step(ranks, "tokens", reasons)
    flops = _flops(ranks, reasons)
    at_peak_s = None if flops is None else _at_peak_s(ranks, peaks, by_rank, reasons)
    measured = Measured(
        step_s=step_s,
        step_spread_s=_mean([rank.untraced_spread_s for rank in ranks]),
        num_untraced_steps=min((rank.num_untraced_steps for rank in ranks), default=0),
        loader_s=max((_loader_s(rank) for rank in ranks if rank.untraced_step_s is not None), default=None),
        samples_per_step=samples,
        tokens_per_step=tokens,
        samples_per_s=None,  # rates need the step times, which are added below
        tokens_per_s=None,
        flops_per_step=flops,
        mfu=None,
        peak_memory_bytes=_highest(ranks, "peak_memory_bytes", reasons),
        num_alloc_retries=_highest(ranks, "num_alloc_retries", reasons),
        reasons=reasons,
    )
    totals = step_totals(ranks)
    if totals is None:
        return measured
    mfu = _ratio(at_peak_s, totals.mean_step_s)
    peak_source = "measured" if peaks or by_rank else "vendor"
    return msgspec.structs.replace(
        measured,
        num_steps=totals.num_steps,
        mean_step_s=totals.mean_step_s,
        regular_step_s=totals.regular_step_s,
        spike_share=totals.spike_share,
        first_wait_s=totals.first_wait_s,
        samples_per_s=_ratio(samples, totals.mean_step_s),
        tokens_per_s=_ratio(tokens, totals.mean_step_s),
        regular_samples_per_s=_ratio(samples, totals.regular_step_s),
        regular_tokens_per_s=_ratio(tokens, totals.regular_step_s),
        mfu=mfu,
        regular_mfu=_ratio(at_peak_s, totals.regular_step_s),
        mfu_against=None if mfu is None else peak_source,
    )


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the known values; None if none is known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value is not None and base else None


def _settled(rank: RankRecording) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    assert rank.settled_step is not None
    return rank.steps.is_ordinary & (rank.steps.number >= rank.settled_step)


def _loader_s(rank: RankRecording) -> float:
    values = rank.steps.loader_s[_settled(rank)]
    return float(np.median(values)) if len(values) else 0.0


def _per_step(ranks: Sequence[RankRecording], what: str, reasons: dict[str, str]) -> float | None:
    """Return the mean count per step, summed over the ranks; None if a rank's warm-up was not over."""
    if not ranks or any(rank.settled_step is None for rank in ranks):
        reasons[f"{what}_per_s"] = _NOT_SETTLED
        return None
    means = []
    for rank in ranks:
        counts = rank.steps.num_samples if what == "samples" else rank.steps.num_tokens
        counts = counts[_settled(rank)]
        counts = counts[~np.isnan(counts)]
        if len(counts):
            means.append(float(counts.mean()))
    if not means:
        reasons[f"{what}_per_s"] = f"no batch of a torch DataLoader showed how many {what} it holds"
        return None
    return sum(means)


def _flops(ranks: Sequence[RankRecording], reasons: dict[str, str]) -> float | None:
    missing = [rank for rank in ranks if rank.flops_by_type is None]
    if missing or not ranks:
        reason = missing[0].flops_problem if missing else None
        not_counted = _NOT_SETTLED if not ranks or missing[0].settled_step is None else _NOT_COUNTED
        reasons["flops_per_step"] = reasons["mfu"] = reason or not_counted
        return None
    total = sum(sum(rank.flops_by_type.values()) for rank in ranks if rank.flops_by_type is not None)
    if not total:
        reasons["flops_per_step"] = reasons["mfu"] = "torch's flop counter does not know any of the operators that ran"
    return total or None


def _at_peak_s(
    ranks: Sequence[RankRecording],
    peaks: Mapping[str, float] | None,
    by_rank: Mapping[int, Mapping[str, float]] | None,
    reasons: dict[str, str],
) -> float | None:
    """Return the seconds per step that the operations take at the peak rates, the mean over the ranks."""
    at_peak_s = 0.0
    for rank in ranks:
        rates = peaks if by_rank is None else by_rank[rank.rank]
        if rates is None:
            rates = _vendor_rates(rank, reasons)
        if rates is None:
            return None
        for operand, flops in (rank.flops_by_type or {}).items():
            if operand not in rates:
                reasons["mfu"] = f"no peak rate is known for matrix multiplications of {operand}"
                return None
            at_peak_s += flops / rates[operand]
        if rank.untraced_step_s is None:
            reasons["mfu"] = _NOT_SETTLED
            return None
    return at_peak_s / len(ranks)


def _vendor_rates(rank: RankRecording, reasons: dict[str, str]) -> Mapping[str, float] | None:
    if rank.device is None:
        reasons["mfu"] = "no vendor states a peak rate for a CPU: only a measured ceiling provides one"
        return None
    facts = gpu_facts(rank.device.name)
    if facts is None:
        reasons["mfu"] = f"the catalogue does not list the GPU {rank.device.name}"
        return None
    return facts.peak_flops_per_s


def _highest(ranks: Sequence[RankRecording], name: str, reasons: dict[str, str]) -> int | None:
    values = [value for rank in ranks if (value := getattr(rank, name)) is not None]
    if not values:
        on_gpu = any(rank.device for rank in ranks)
        reasons[name] = "it could not be read in time" if on_gpu else "only the allocator of a GPU counts it"
        return None
    return int(max(values))
