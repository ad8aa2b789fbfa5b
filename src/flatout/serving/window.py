"""What happened inside the server during one load point: its own metrics, its host, and its answers' times.

In: readings of the metrics during the point, samples of the host, and the answers. Out: a `ServingWindow`. What the
server's metrics do not say is estimated from the answers, where that is possible, and else unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

import msgspec

from flatout.records.serving import Answered, ServingWindow
from flatout.serving.engine import Metrics
from flatout.serving.exposition import Reading, Readings

LONG_GAP = 2.0  # times the median gap: a longer one is a stall


class ServerUse(msgspec.Struct, frozen=True, kw_only=True):
    """The use of the host by the server's processes during a load point; None is unknown."""

    busiest_thread_cores: float | None = None
    cores_busy: float | None = None
    cores_allowed: float | None = None
    gpu_busy_share: float | None = None
    energy_j: float | None = None


def window(
    metrics: Metrics,
    readings: Sequence[Readings],
    host: ServerUse,
    answers: Sequence[Answered],
    *,
    took_s: float,
    unloaded_ttft_s: float | None,
    shared_prompt_share: float,
) -> ServingWindow:
    """Return the window; `readings` are in the order of time, the first before the load and the last after it."""
    completed = [answer for answer in answers if answer.outcome == "completed"]
    of_metrics = _of_metrics(metrics, readings)
    estimated = _of_answers(completed, unloaded_ttft_s)
    known = {name: value for name, value in of_metrics.items() if value is not None}
    return ServingWindow(
        took_s=took_s,
        shared_prompt_share=shared_prompt_share,
        stall_s=stall_s(completed),
        latency_s=fmean(answer.end_s - answer.due_s for answer in completed) if completed else None,
        busiest_thread_cores=host.busiest_thread_cores,
        cores_busy=host.cores_busy,
        cores_allowed=host.cores_allowed,
        gpu_busy_share=host.gpu_busy_share,
        is_from_metrics=bool(known),
        **{**estimated, **known},
    )


def _of_metrics(metrics: Metrics, readings: Sequence[Readings]) -> dict[str, float | None]:
    if len(readings) < 2:
        return {}
    first, last = readings[0], readings[-1]
    inner = readings[1:]
    num = _difference(metrics.requests, first, last)
    queries = _difference(metrics.prefix_queries, first, last)
    hits = _difference(metrics.prefix_hits, first, last)
    kv = _gauge(metrics.kv_share, inner, "largest")
    running = _gauge(metrics.running, inner, "total")
    waiting = _gauge(metrics.waiting, inner, "total")
    return {
        "queue_s": _per(_difference(metrics.queue_s, first, last), num, metrics.s_per_unit),
        "prefill_s": _per(_difference(metrics.prefill_s, first, last), num, metrics.s_per_unit),
        "decode_s": _per(_difference(metrics.decode_s, first, last), num, metrics.s_per_unit),
        "preemptions": _difference(metrics.preemptions, first, last),
        "most_kv_share": max(kv, default=None),
        "mean_running": fmean(running) if running else None,
        "most_running": max(running, default=None),
        "mean_waiting": fmean(waiting) if waiting else None,
        "prefix_hit_share": hits / queries if hits is not None and queries else None,
    }


def _reading(names: Sequence[str], readings: Readings) -> Reading | None:
    return next((readings[name] for name in names if name in readings), None)


def _difference(names: Sequence[str], first: Readings, last: Readings) -> float | None:
    before, after = _reading(names, first), _reading(names, last)
    if after is None:
        return None
    # a counter that had not been written yet was 0
    return after.total - (0.0 if before is None else before.total)


def _per(total: float | None, num: float | None, unit: float) -> float | None:
    return total * unit / num if total is not None and num else None


def _gauge(names: Sequence[str], readings: Sequence[Readings], part: str) -> list[float]:
    found = [_reading(names, each) for each in readings]
    return [getattr(reading, part) for reading in found if reading is not None]


def _of_answers(completed: Sequence[Answered], unloaded_ttft_s: float | None) -> dict[str, float | None]:
    """Estimate from the answers' times: a request waits until its first piece, but for what it takes alone."""
    begun = [(answer.due_s, answer.first_s, answer.end_s) for answer in completed if answer.first_s is not None]
    if not begun:
        return {}
    due_s, first_s, end_s = zip(*begun, strict=True)
    pending = list(zip(due_s, first_s, strict=True))
    answering = list(zip(first_s, end_s, strict=True))
    ttft_s = fmean(end - start for start, end in pending)
    queue_s = max(ttft_s - unloaded_ttft_s, 0.0) if unloaded_ttft_s is not None else None
    alone_s = unloaded_ttft_s or 0.0
    waited_s = sum(max(end - start - alone_s, 0.0) for start, end in pending)
    answered_s = sum(end - start for start, end in answering)
    span_s = max(end_s) - min(due_s)
    return {
        "queue_s": queue_s,
        "decode_s": fmean(end - start for start, end in answering),
        "mean_running": answered_s / span_s if span_s > 0 else None,
        "most_running": float(most_at_once(answering)),
        "mean_waiting": waited_s / span_s if span_s > 0 else None,
    }


def most_at_once(spans: Sequence[tuple[float, float]]) -> int:
    """Return the largest number of spans that overlap; those that touch do not."""
    changes = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def stall_s(completed: Sequence[Answered]) -> float | None:
    """Return the seconds per request of long gaps in answers, at whose end another request's first piece came.

    A server that computes a prompt between two tokens of other answers lets these wait, and emits all together.
    """
    gaps = [
        (start, end, answer.index)
        for answer in completed
        for start, end in zip(answer.piece_s, answer.piece_s[1:], strict=False)
    ]
    if not gaps:
        return None
    usual_s = median(end - start for start, end, _ in gaps)
    firsts = sorted((answer.first_s, answer.index) for answer in completed if answer.first_s is not None)
    total_s = 0.0
    for start, end, index in gaps:
        excess_s = end - start - usual_s
        if end - start <= LONG_GAP * usual_s:
            continue
        slack_s = usual_s / 2
        if any(start < first <= end + slack_s and other != index for first, other in firsts):
            total_s += excess_s
    return total_s / len(completed)
