"""Reduce the answers of one load point to its counts, percentiles and goodput.

In: the answers, the rate, the limits. Out: a `LoadPoint`. TTFT and latency count from when a request was due. ITL is
the time between two pieces of an answer, whatever number of tokens a piece has; TPOT is the time after the first piece
for each later token, as the server counts tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from flatout.records.serving import Answered, LatencyLimit, LoadPoint, Metric, Spread
from flatout.serving.slo import own_limits


def load_point(
    answers: Sequence[Answered], *, rate_per_s: float, limits: Sequence[LatencyLimit], energy_j: float | None = None
) -> LoadPoint:
    """Return what the server did at this rate.

    Goodput is per second until the last answer ended: per second of the arrivals, a few good requests at the beginning
    of a burst would look like more than the server can do.
    """
    times = [_times(answer) for answer in answers]
    of_metric = _by_metric(times)
    of_own = own_limits(limits)
    outcomes = Counter(answer.outcome for answer in answers)
    completed = [answer.outcome == "completed" for answer in answers]
    good = [done and _is_good(each, of_own) for done, each in zip(completed, times, strict=True)]
    meets_limits = all(_holds(of_metric[limit.metric], limit) for limit in limits)
    num_tokens = sum(answer.tokens for answer in answers)
    first_due_s = min(answer.due_s for answer in answers)
    took_s = max(max(answer.end_s for answer in answers) - first_due_s, 1e-9)
    return LoadPoint(
        rate_per_s=rate_per_s,
        num_requests=len(answers),
        num_completed=outcomes["completed"],
        num_failed=outcomes["failed"],
        num_cut=outcomes["cut"],
        num_timed_out=outcomes["timed_out"],
        num_good=sum(good),
        num_tokens=num_tokens,
        took_s=took_s,
        goodput_per_s=sum(good) / took_s,
        tokens_per_s=num_tokens / took_s,
        ttft=_spread(of_metric["ttft"]),
        itl=_spread(of_metric["itl"]),
        tpot=_spread(of_metric["tpot"]),
        latency=_spread(of_metric["latency"]),
        is_within=all(completed) and meets_limits,
        latest_sent_s=max(answer.sent_s - answer.due_s for answer in answers),
        energy_j=energy_j,
        tokens_of_request=tuple(answer.tokens if done else -1 for answer, done in zip(answers, completed, strict=True)),
    )


_EACH: tuple[Metric, ...] = ("ttft", "itl", "tpot", "latency")
_Times = dict[Metric, list[float]]


def _by_metric(times: Sequence[_Times]) -> _Times:
    """Return the values of all requests by metric."""
    return {metric: [value for each in times for value in each[metric]] for metric in _EACH}


def _times(answer: Answered) -> _Times:
    """Return the times of one request: one value for each metric, and one for each gap of `itl`."""
    if answer.outcome != "completed":
        return {metric: [] for metric in _EACH}
    if answer.first_s is None:
        return {"ttft": [answer.end_s - answer.due_s], "itl": [], "tpot": [], "latency": [answer.end_s - answer.due_s]}
    gaps = np.diff(answer.piece_s).tolist()
    later_tokens = max(answer.tokens - 1, len(gaps))
    after_first_s = answer.piece_s[-1] - answer.first_s
    return {
        "ttft": [answer.first_s - answer.due_s],
        "itl": [float(gap) for gap in gaps],
        "tpot": [after_first_s / later_tokens] if later_tokens else [],
        "latency": [answer.end_s - answer.due_s],
    }


def _is_good(times: _Times, limits: Sequence[LatencyLimit]) -> bool:
    return all(_holds(times[limit.metric], limit) for limit in limits)


def _holds(values: Sequence[float], limit: LatencyLimit) -> bool:
    """Whether the share of the values within the limit is at least the percentile; nothing measured breaks none."""
    num_within = sum(value <= limit.most_s for value in values)
    return num_within >= len(values) * limit.percentile / 100 - 1e-9


def _spread(values: Sequence[float]) -> Spread | None:
    if not values:
        return None
    p50, p90, p99 = np.percentile(values, [50, 90, 99])
    return Spread(num=len(values), mean_s=float(np.mean(values)), p50_s=float(p50), p90_s=float(p90), p99_s=float(p99))
