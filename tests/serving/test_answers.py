"""The gate of answers: agreement, errors, cut answers and fewer tokens, on both sides of what is allowed."""

from __future__ import annotations

from typing import Any

import pytest

from flatout.records.change import Safety
from flatout.records.serving import LoadPoint, ServerTrial
from flatout.serving.answers import agreement, gate, noise_agreement

HUNDRED = tuple(str(number) for number in range(100))


def wrong_after(count: int) -> tuple[str, ...]:
    return (*HUNDRED[:count], *("x",) * (100 - count))


def trial(answer: tuple[str, ...] = HUNDRED, arm: str = "baseline", **point: Any) -> ServerTrial:
    values = {"num_failed": 0, "num_cut": 0, "tokens_of_request": (100, 100), **point}
    load_point = LoadPoint(
        rate_per_s=2.0,
        num_requests=2,
        num_completed=2,
        num_timed_out=0,
        num_good=2,
        num_tokens=200,
        took_s=1.0,
        goodput_per_s=2.0,
        tokens_per_s=200.0,
        **values,
    )
    return ServerTrial(
        index=0,
        arm=arm,
        outcome="completed",
        points=(load_point,),
        answers=(answer,),
        answer_tokens=(len(answer),),
    )


def outcome(changed: ServerTrial, *untouched: ServerTrial, safety: Safety = "exact") -> str:
    return gate(changed, untouched or (trial(), trial()), safety).outcome


@pytest.mark.parametrize(
    ("count", "safety", "expected"),
    [
        (98, "exact", "passed"),
        (97, "exact", "failed"),
        (50, "rounding", "passed"),
        (49, "rounding", "failed"),
    ],
)
def test_answers_may_differ_as_much_as_the_class_allows(count: int, safety: Safety, expected: str) -> None:
    assert outcome(trial(wrong_after(count)), safety=safety) == expected


def test_the_noise_of_untouched_starts_is_allowed() -> None:
    untouched = (trial(), trial(wrong_after(60)))
    assert noise_agreement(untouched) == pytest.approx(0.6)
    assert outcome(trial(wrong_after(58)), *untouched) == "passed"
    assert outcome(trial(wrong_after(57)), *untouched) == "failed"


def test_untouched_starts_that_hardly_agree_cannot_judge() -> None:
    assert outcome(trial(), trial(), trial(wrong_after(50))) == "passed"
    assert outcome(trial(), trial(), trial(wrong_after(49))) == "unknown"


def test_one_untouched_start_cannot_judge() -> None:
    assert outcome(trial(), trial()) == "unknown"


def test_errors_and_cut_answers_beyond_those_of_the_untouched_server_are_unsafe() -> None:
    assert outcome(trial(num_failed=1)) == "failed"
    assert outcome(trial(num_cut=1)) == "failed"
    assert outcome(trial(num_failed=1), trial(num_failed=1), trial()) == "passed"


def test_fewer_tokens_are_unsafe_beyond_two_percent_and_the_noise() -> None:
    assert outcome(trial(tokens_of_request=(98, 98))) == "passed"
    assert outcome(trial(tokens_of_request=(97, 97))) == "failed"
    assert outcome(trial(tokens_of_request=(97, 97)), trial(), trial(tokens_of_request=(99, 99))) == "passed"
    assert outcome(trial(tokens_of_request=(100, -1))) == "passed"  # a request that timed out says nothing of tokens


def test_no_answer_agrees_with_nothing() -> None:
    assert outcome(trial(())) == "failed"


def test_answers_are_compared_in_tokens_only_where_pieces_are_tokens() -> None:
    assert agreement(("ab", "cd"), ("ab", "xy"), (2, 2)) == pytest.approx(1 / 2)
    assert agreement(("ab", "cd"), ("abc", "y"), (2, 2)) == 0.0
    assert agreement(("ab", "cd"), ("abc", "y"), (4, 4)) == pytest.approx(3 / 4)
    assert agreement((), ()) == 1.0
