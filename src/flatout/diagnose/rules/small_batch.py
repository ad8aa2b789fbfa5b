"""Calls with few samples pay for the fixed cost of a call again and again.

What it means
    Either the script itself calls the model with larger batches too, and these are done at a higher rate of samples, or
    the GPU waits for the host in most of a call with few samples.

Why it costs
    Launching operators, reading the weights and starting threads cost the same for one sample as for many. A larger
    batch shares them.

Evidence
    Samples per second by the size of the batch (`samples_per_s`), or the share of a call in which the GPU is idle. The
    cost is what a call would save at the rate of the best size, or half of the idle time: what a batch of twice the
    size shares.

Change to try
    Collect inputs into batches: sort them by length first, or let a server collect them for some milliseconds.

When this is wrong
    A larger batch answers its first input later: if the latency of a single call is limited, stay below the largest
    batch that keeps it. It needs more memory.
"""

from __future__ import annotations

import numpy as np

from flatout.diagnose.calls import timed_calls
from flatout.diagnose.context import HOST_PARTS, DiagnosisContext
from flatout.diagnose.finding import MIN_SHARE_OF_STEP, finding
from flatout.records.diagnosis import Finding
from flatout.units import percent, seconds

CODE = "F27"
NAME = "small-batch"
MIN_CALLS = 10  # of a size of batch, for its rate to count
MIN_FASTER = 1.2  # by which a larger batch must do samples faster
MOST_SAMPLES = 8  # of a batch that is called small where only the idle GPU speaks for a larger one
MIN_IDLE_SHARE = 0.3  # of the step
SHARED = 0.5  # of the fixed cost, by a batch of twice the size
CHANGES = (
    "collect inputs into larger batches, of like length where lengths differ",
    "let a server collect requests for some milliseconds",
)


def find(context: DiagnosisContext) -> list[Finding]:
    rates = _rates(context)
    if len(rates) > 1:
        return _among_sizes(context, rates)
    return _of_idle_gpu(context, rates)


def _rates(context: DiagnosisContext) -> dict[int, tuple[float, float]]:
    """Return the share of the calls and the samples per second in the model, by the size of the batch."""
    ranks = timed_calls(context)
    if not ranks:
        return {}
    rows = [calls.is_measured & np.isfinite(calls.num_samples) for calls in ranks]
    samples = np.concatenate([calls.num_samples[row] for calls, row in zip(ranks, rows, strict=True)])
    model_s = np.concatenate([calls.model_s[row] for calls, row in zip(ranks, rows, strict=True)])
    sizes, counts = np.unique(samples, return_counts=True)
    return {
        int(size): (count / len(samples), float(size / np.median(model_s[samples == size])))
        for size, count in zip(sizes.tolist(), counts.tolist(), strict=True)
        if count >= MIN_CALLS
    }


def _among_sizes(context: DiagnosisContext, rates: dict[int, tuple[float, float]]) -> list[Finding]:
    log = context.log
    assert log is not None
    best = max(rates, key=lambda size: rates[size][1])
    best_rate = rates[best][1]
    saved_s = {
        size: share * (size / rate - size / best_rate)
        for size, (share, rate) in rates.items()
        if size < best and best_rate >= MIN_FASTER * rate
    }
    cost = min(sum(saved_s.values()), log.without_stalls_s)
    share = cost / log.step_s
    if not saved_s or share < MIN_SHARE_OF_STEP:
        return []
    smallest = max(saved_s, key=lambda size: saved_s[size])
    return [
        Finding(
            code=CODE,
            name=NAME,
            title=(
                f"calls with {smallest:,} samples do {rates[smallest][1]:,.0f} samples/s, those with {best:,} do"
                f" {best_rate:,.0f}: {seconds(cost)} per step, {percent(share)} of the step"
            ),
            ranks=log.ranks,
            cost_s_per_step=cost,
            share_of_step=share,
            evidence={"best_size": best, "samples_per_s": {str(size): rate for size, (_, rate) in rates.items()}},
            changes=CHANGES,
            safety="semantic",
            confidence="high",
        )
    ]


def _of_idle_gpu(context: DiagnosisContext, rates: dict[int, tuple[float, float]]) -> list[Finding]:
    if not context.has_gpu or context.step_s <= 0 or not rates or min(rates) > MOST_SAMPLES:
        return []
    idle_s = sum(context.available(part) for part in HOST_PARTS)
    if idle_s < MIN_IDLE_SHARE * context.step_s:
        return []
    cost = sum(context.claim(part, SHARED * context.available(part)) for part in HOST_PARTS)
    size = min(rates)
    return finding(
        context,
        code=CODE,
        name=NAME,
        title=(
            f"the GPU is idle for {percent(idle_s / context.step_s)} of a call with {size:,} samples, because the host"
            " launches as much as for many: twice as many would save about"
            f" {seconds(context.cost_in_job(cost))} per call"
        ),
        ranks=context.ranks_with_most(*HOST_PARTS),
        cost_s=cost,
        evidence={"num_samples": size, "idle_share": idle_s / context.step_s},
        changes=CHANGES,
        safety="semantic",
        confidence="medium",
    )
