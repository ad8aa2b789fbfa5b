"""Limits, and what a load point is reduced to; the numbers are worked out by hand."""

from __future__ import annotations

import pytest

from flatout.errors import UsageError
from flatout.records.serving import Answered, LatencyLimit, RequestOutcome
from flatout.serving.measure import load_point
from flatout.serving.slo import own_limits, parse_slo


def answer(
    index: int, *piece_s: float, due_s: float = 0.0, outcome: RequestOutcome = "completed", tokens: int | None = None
) -> Answered:
    return Answered(
        index=index,
        due_s=due_s,
        sent_s=due_s,
        end_s=piece_s[-1],
        outcome=outcome,
        first_s=piece_s[0],
        piece_s=piece_s,
        pieces=("x",) * len(piece_s),
        num_tokens=tokens,
    )


def test_limits_are_parsed_with_their_units() -> None:
    assert parse_slo("p99 ttft<500ms, p99.9 itl < 50ms,p50 latency<2s") == (
        LatencyLimit(metric="ttft", percentile=99, most_s=0.5),
        LatencyLimit(metric="itl", percentile=99.9, most_s=0.05),
        LatencyLimit(metric="latency", percentile=50, most_s=2.0),
    )


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("ttft<500ms", "must be limits such as"),
        ("p99 ttft<500", "must be limits such as"),
        ("", "must be limits such as"),
        ("p99 tt<500ms", "one of ttft, itl, tpot, latency, but got tt"),
        ("p0 ttft<500ms", "above 0 and at most 100"),
        ("p101 ttft<500ms", "above 0 and at most 100"),
        ("p99 ttft<0ms", "must be above 0"),
        ("p99 ttft<1s, p99 ttft<2s", "limits p99 ttft twice"),
    ],
)
def test_other_limits_are_refused_with_the_rule(text: str, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        parse_slo(text)


def test_a_request_is_compared_with_the_limit_of_the_highest_percentile() -> None:
    limits = parse_slo("p50 ttft<100ms, p99 ttft<500ms, p90 itl<50ms")
    assert own_limits(limits) == (limits[1], limits[2])


def test_a_load_point_by_hand() -> None:
    answers = [
        answer(0, 0.1, 0.2, 0.3),
        answer(1, 1.7, 1.8, due_s=1.0, tokens=5),  # TTFT 0.7
        answer(2, 2.1, 2.5, due_s=2.0),  # a gap of 0.4
        answer(3, 3.1, due_s=3.0, outcome="failed"),
    ]
    point = load_point(answers, rate_per_s=1.0, limits=parse_slo("p99 ttft<500ms, p99 itl<300ms"))
    assert (point.num_completed, point.num_failed, point.num_good) == (3, 1, 1)
    assert point.goodput_per_s == pytest.approx(1 / 3.1)
    assert point.num_tokens == 3 + 5 + 2 + 1
    assert point.took_s == pytest.approx(3.1)
    assert point.tokens_per_s == pytest.approx(11 / 3.1)
    assert point.ttft is not None
    assert point.ttft.mean_s == pytest.approx((0.1 + 0.7 + 0.1) / 3)
    assert point.itl is not None
    assert point.itl.num == 4
    assert point.tpot is not None
    assert point.tpot.mean_s == pytest.approx((0.1 + 0.1 / 4 + 0.4) / 3)
    assert point.tokens_of_request == (3, 5, 2, -1)
    assert not point.is_within


def test_a_percentile_holds_if_the_share_within_the_limit_reaches_it() -> None:
    answers = [answer(index, 0.1 if index else 0.9) for index in range(10)]
    assert load_point(answers, rate_per_s=1.0, limits=parse_slo("p90 ttft<500ms")).is_within
    assert not load_point(answers, rate_per_s=1.0, limits=parse_slo("p91 ttft<500ms")).is_within


def test_the_gaps_of_one_request_are_good_up_to_the_percentile() -> None:
    gaps = [0.1 * step for step in range(11)]  # ten gaps of 0.1
    slow = [*gaps[:10], gaps[9] + 0.5]
    assert load_point([answer(0, *slow)], rate_per_s=1.0, limits=parse_slo("p90 itl<200ms")).num_good == 1
    assert load_point([answer(0, *slow)], rate_per_s=1.0, limits=parse_slo("p95 itl<200ms")).num_good == 0
