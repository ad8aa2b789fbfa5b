"""A goal's text, the calendar that it takes, and how often it is interrupted."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from scipy import stats
from tests.plan.test_search import setting_of

from flatout.catalog.interruptions import interruptions
from flatout.errors import InputError, UsageError
from flatout.plan import search
from flatout.plan.goal import (
    GoalCandidate,
    candidate,
    candidates,
    effective_share,
    estimated,
    numbers_of_gpus,
    poisson_quantile,
    usable_context,
)
from flatout.plan.goal_probability import PricePerHour, probability, triangular_values
from flatout.plan.goal_text import parse_goal
from flatout.records.goal import GoalEstimate


@pytest.mark.parametrize(
    ("text", "tokens", "days", "usd"),
    [
        ("100B tokens in 30 days", 100e9, 30, None),
        ("1.5T tokens within 2 weeks", 1.5e12, 14, None),
        ("300 billion tokens", 300e9, None, None),
        ("1T tokens for $2M", 1e12, None, 2e6),
        ("1T tokens in 30 days under $2,000,000", 1e12, 30, 2e6),
        ("1t tokens under usd 500k in 1 month", 1e12, 365.25 / 12, 5e5),
        ("1000 steps in 12 hours", 1000 * 64 * 2048, 0.5, None),
        ("2e6 sequences", 2e6 * 2048, None, None),
        ("15,000,000,000 tokens in 1 day", 15e9, 1, None),
    ],
)
def test_a_goal_in_words(text: str, tokens: float, days: float | None, usd: float | None) -> None:
    goal = parse_goal(text, global_batch=64, seq=2048)
    assert goal.tokens == pytest.approx(tokens)
    assert goal.days == (None if days is None else pytest.approx(days))
    assert goal.usd == usd


@pytest.mark.parametrize(
    "text",
    [
        *("", "fast", "100B in 30 days", "tokens in 30 days", "100B tokens in days", "100B tokens by friday"),
        *(
            "100B tokens in 30 days please",
            "-5 tokens",
            "0 tokens",
            "100B tokens in 0 days",
            "100Q tokens",
            "1e99 tokens",
        ),
    ],
)
def test_what_is_no_goal_is_refused_in_one_line_with_examples(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_goal(text, global_batch=64, seq=2048)
    assert "\n" not in str(caught.value)
    assert "100B tokens in 30 days" in caught.value.hint


@pytest.mark.parametrize(
    ("gpus", "checkpoint_s", "share"),
    [
        *((512, 5, 0.990), (512, 30, 0.980), (1024, 5, 0.984), (1024, 30, 0.971), (1024, 120, 0.947)),
        *((4096, 30, 0.930), (4096, 300, 0.837), (16384, 5, 0.871), (16384, 120, 0.740)),
    ],
)
def test_the_share_that_counts_is_that_of_a_table_worked_out_elsewhere(
    gpus: int, checkpoint_s: float, share: float
) -> None:
    """At 6.5 interruptions per 1,000 node-days and 600 s for a restart."""
    assert effective_share(gpus / 8, 6.5, 600, checkpoint_s) == pytest.approx(share, abs=0.006)


def test_at_no_size_is_less_than_nothing_left() -> None:
    assert effective_share(1e6, 6.5, 1800, 120) == pytest.approx(0.05)


@pytest.mark.parametrize("mean", [0.01, 0.3, 1.0, 2.5, 7.0, 40.0, 419.0])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_poisson_quantiles(mean: float, share: float) -> None:
    assert poisson_quantile(share, mean) == stats.poisson.ppf(share, mean)


def test_llama_3s_own_run_is_interrupted_as_often_as_it_was() -> None:
    """16,384 GPUs, 54 days, 419 interruptions that were not planned (arXiv 2407.21783)."""
    planned = search.plan(setting_of("llama3-8b", "h100x16"), num_layouts=1).layouts[0]
    planned = msgspec.structs.replace(planned, step_time_s=54 * 86400.0, step_time_interval_s=(1e6, 1e7))
    found = estimated(parse_goal("1 tokens", global_batch=1, seq=1), interruptions(), 16384, 1, planned)
    assert found.interruptions.value * found.effective_share.value == pytest.approx(419, rel=0.01)
    assert found.interruptions.low < 419 < found.interruptions.high


def test_days_are_steps_times_their_time_over_the_share_that_counts() -> None:
    context = setting_of("llama3-8b", "h100x16")
    goal = parse_goal("1B tokens", global_batch=64, seq=2048)
    found = candidate(context, goal, interruptions(), 16)
    assert found.num_steps == 7630  # 1e9 / (64 * 2048), rounded up
    seconds = found.num_steps * found.planned.step_time_s / found.effective_share.value
    assert found.days.value == pytest.approx(seconds / 86400)
    assert found.days.low < found.days.value < found.days.high


def test_more_gpus_take_fewer_days() -> None:
    context = setting_of("llama3-8b", "h100x64")
    found = list(candidates(context, parse_goal("1B tokens", global_batch=64, seq=2048), interruptions()))
    assert {8, 16, 24, 32, 48, 64} <= {one.num_gpus for one in found}
    days = [one.days.value for one in found if one.num_gpus in (8, 16, 32, 64)]
    assert days == sorted(days, reverse=True)


def test_numbers_that_even_the_peak_could_not_do_in_time_are_not_tried() -> None:
    context = setting_of("llama3-8b", "h100x64")
    goal = parse_goal("100B tokens in 1 day", global_batch=64, seq=2048)
    flops = 6 * 8.03e9 * 100e9
    assert all(
        one.num_gpus * 989e12 * 86400 > 0.9 * flops or one.num_gpus == 64
        for one in candidates(context, goal, interruptions())
    )


def test_every_number_of_whole_nodes_and_the_given_number_are_tried() -> None:
    found = numbers_of_gpus(100, 8)
    assert [number for number in found if number <= 100] == [*range(8, 97, 8), 100]
    assert {128, 192, 256} <= set(found)
    assert all(number % 8 == 0 or number == 100 for number in found)
    assert [number for number in numbers_of_gpus(6, 8) if number <= 6] == [1, 2, 4, 6], "a part of a node"
    assert [number for number in numbers_of_gpus(8, 8) if number <= 8] == [8]
    assert [number for number in numbers_of_gpus(16, 4) if number <= 16] == [4, 8, 12, 16]


def candidate_of(
    *, step_s: float, interval_s: tuple[float, float], share: tuple[float, float, float], num_steps: int = 1000
) -> GoalCandidate:
    planned = search.plan(setting_of("llama3-8b", "h100x16"), num_layouts=1).layouts[0]
    low, typical, high = share
    estimate = GoalEstimate(value=typical, low=low, high=high, source="")
    return GoalCandidate(
        num_gpus=16,
        planned=msgspec.structs.replace(planned, step_time_s=step_s, step_time_interval_s=interval_s),
        num_steps=num_steps,
        days=estimate,
        interruptions=estimate,
        effective_share=estimate,
    )


@pytest.mark.parametrize(("limit_s", "expected"), [(8000, 0.05), (10_000, 0.5), (12_500, 0.95)])
def test_the_probability_is_that_of_the_step_times_interval(limit_s: float, expected: float) -> None:
    """10 s per step, with a 90 % interval of a quarter more or a fifth less, and 1,000 steps without interruptions."""
    found = candidate_of(step_s=10, interval_s=(8, 12.5), share=(1, 1, 1))
    assert probability(found, days=limit_s / 86400, usd=None, price=None) == pytest.approx(expected, abs=1e-5)


def test_the_probability_is_that_of_drawn_steps_shares_and_prices() -> None:
    """The same distributions, drawn at random: log-normal steps, triangular shares and prices."""
    found = candidate_of(step_s=10, interval_s=(8, 12.5), share=(0.7, 0.95, 0.99))
    rng = np.random.default_rng(3)
    steps_s = 10 * np.exp(rng.normal(0, np.log(12.5 / 8) / 2 / 1.6449, 400_000))
    days = 1000 * steps_s / rng.triangular(0.7, 0.95, 0.99, 400_000) / 86400
    usd = days * 24 * 16 * rng.triangular(2, 3, 5, 400_000)
    price = PricePerHour(2, 3, 5)
    in_time = probability(found, days=0.13, usd=None, price=price)
    affordable = probability(found, days=None, usd=160.0, price=price)
    both = probability(found, days=0.13, usd=160.0, price=price)
    assert in_time == pytest.approx(float(np.mean(days <= 0.13)), abs=0.005)
    assert affordable == pytest.approx(float(np.mean(usd <= 160)), abs=0.005)
    assert both == pytest.approx(float(np.mean((days <= 0.13) & (usd <= 160))), abs=0.005)


def test_without_a_limit_or_a_price_there_is_no_probability() -> None:
    found = candidate_of(step_s=10, interval_s=(8, 12.5), share=(0.9, 0.95, 0.99))
    assert probability(found, days=None, usd=None, price=None) is None
    assert probability(found, days=1, usd=100, price=None) is None
    assert probability(found, days=None, usd=100, price=PricePerHour(0, 0, 0)) == 1.0


def test_triangular_values_are_quantiles() -> None:
    found = triangular_values(1, 2, 5)
    middles = (np.arange(len(found)) + 0.5) / len(found)
    assert found == pytest.approx(stats.triang.ppf(middles, 0.25, loc=1, scale=4))
    assert triangular_values(3, 3, 3) == pytest.approx([3.0])


def test_of_a_number_that_divides_badly_the_largest_that_divides_is_used() -> None:
    assert usable_context(setting_of("llama3-8b", "h100x64")).spec.cluster.num_gpus == 64
    assert usable_context(setting_of("llama3-8b", "h100x104")).spec.cluster.num_gpus == 96  # 13 nodes
    assert usable_context(setting_of("llama3-8b", "h100x13")).spec.cluster.num_gpus == 8
    with pytest.raises(InputError, match="2 GPUs"):
        usable_context(setting_of("llama3-70b", "h100x2"))
