"""When a trial has counted enough steps: by number, by seconds, by precision, or because it is clearly worse."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from flatout.inside.phases.counted_steps import BatchMeans, CountedSteps
from flatout.inside.settings import StopRule


def counted(rule: StopRule, times: Iterable[float], *, ahead: int = 0) -> tuple[int, str | None]:
    """Return how many steps were counted when the rule applied, and the reason."""
    steps = CountedSteps(rule)
    for step_s in times:
        steps.add(step_s)
        reason = steps.reason_to_stop(ahead)
        if reason is not None:
            return steps.num_steps, reason
    return steps.num_steps, None


def noisy(step_s: float, sd: float, seed: int = 0, correlation: float = 0.0) -> Iterator[float]:
    """Yield step times whose logarithms are normal, each correlated with the one before."""
    random = np.random.default_rng(seed)
    deviation = random.normal(0, sd)
    while True:
        yield step_s * math.exp(deviation)
        deviation = correlation * deviation + math.sqrt(1 - correlation**2) * random.normal(0, sd)


def rule(**values: float) -> StopRule:
    return StopRule(**({"min_steps": 5, "max_steps": 1000, "relative_error": 0.01} | values))  # type: ignore[arg-type]


@pytest.mark.parametrize(("min_steps", "expected"), [(5, 5), (8, 8)])
def test_steady_steps_end_at_the_least_number(min_steps: int, expected: int) -> None:
    assert counted(rule(min_steps=min_steps), noisy(1.0, 0.001)) == (expected, "enough")


def test_an_open_rule_without_a_precision_counts_the_most_steps() -> None:
    assert counted(rule(relative_error=0.0, max_steps=40), itertools.repeat(1.0)) == (40, "max")


def test_the_least_seconds_are_counted_without_the_longest_steps() -> None:
    # Of 20 steps the longest one does not count, so 19 steps of 0.1 s are 1.9 s; a batch has two steps then.
    assert counted(rule(min_s=1.85, relative_error=1.0), itertools.repeat(0.1)) == (20, "enough")
    # An evaluation of ten seconds in the third step does not make the trial long enough.
    times = [0.1, 0.1, 10.0, *[0.1] * 200]
    assert counted(rule(min_s=1.85, relative_error=2.0), times)[0] == 20


def test_the_most_seconds_end_a_noisy_trial_but_not_before_the_least_steps() -> None:
    assert counted(rule(max_s=10.0), noisy(1.0, 0.5)) == (pytest.approx(10, abs=2), "max")
    assert counted(rule(max_s=2.0, min_steps=7), noisy(1.0, 0.5)) == (7, "max")


@pytest.mark.parametrize("sd", [0.05, 0.1, 0.2])
def test_the_length_follows_the_noise_of_the_steps(sd: float) -> None:
    lengths = [counted(rule(max_steps=10_000), noisy(1.0, sd, seed))[0] for seed in range(40)]
    needed = (sd / 0.01) ** 2  # if the spread were known
    assert needed < np.median(lengths) < 2 * needed


@pytest.mark.parametrize("correlation", [0.0, 0.7])
def test_the_error_of_the_mean_is_the_one_asked_for_even_if_steps_are_correlated(correlation: float) -> None:
    asked = 0.01
    errors = []
    for seed in range(200):
        times = list(itertools.islice(noisy(1.0, 0.05, seed, correlation), 3000))
        number, _ = counted(rule(max_steps=3000, relative_error=asked, min_steps=20), times)
        errors.append(np.mean(times[:number]) / math.exp(0.05**2 / 2) - 1)
    allowed = 1.2 if correlation == 0.0 else 1.5  # the least 20 steps show a slow wave only in part
    assert np.std(errors) < allowed * asked
    assert abs(np.mean(errors)) < 0.2 * asked  # no bias towards trials that look fast or slow


@pytest.mark.parametrize("period", [2, 3, 4, 5, 8])
def test_a_short_period_does_not_end_a_trial_within_it(period: int) -> None:
    """One step in a few waits for the loader: whatever the phase, the mean of the counted steps is right.

    The least number of steps must hold a period: what has not happened yet cannot prolong a trial.
    """
    waits = [1.0, *[0.1] * (period - 1)]
    true_s = sum(waits) / period
    for phase in range(period):
        times = list(itertools.islice(itertools.cycle(waits[phase:] + waits[:phase]), 4000))
        number, reason = counted(rule(min_steps=period + 2, max_steps=4000, relative_error=0.02), times)
        assert reason == "enough"
        assert np.mean(times[:number]) == pytest.approx(true_s, rel=0.04)


def test_a_spike_prolongs_a_trial() -> None:
    steady = list(itertools.islice(noisy(0.01, 0.01), 5000))
    number, _ = counted(rule(min_steps=40, max_steps=5000), steady)
    spiked = [*steady[:30], 0.2, *steady[30:]]
    longer, _ = counted(rule(min_steps=40, max_steps=5000), spiked)
    assert number == 40
    assert longer > 1000  # the spike is then known to be 2 % of the time


def test_a_spike_in_the_last_steps_is_seen_before_the_trial_ends() -> None:
    """At 64 steps a batch has eight: the trial does not end while the spike is in a batch that is still open."""
    times = [*itertools.islice(noisy(0.01, 0.01), 65), 0.5, *[0.01] * 10]
    assert counted(rule(min_steps=66, max_steps=75), times) == (75, "max")


@pytest.mark.parametrize("num_boundaries", [2, 4])
def test_boundaries_that_are_known_do_not_prolong_a_trial_unless_there_are_too_many(num_boundaries: int) -> None:
    """Of 40 steps with a period of 20, three boundaries are expected at most."""
    steady = list(itertools.islice(noisy(0.01, 0.01), 2000))
    for place in range(3, 3 + 8 * num_boundaries, 8):
        steady[place] = 0.2
    number, _ = counted(rule(min_steps=40, max_steps=2000, period=20), steady)
    assert number < 50 if num_boundaries == 2 else number > 1000


@pytest.mark.parametrize(("factor", "is_prolonged"), [(1.45, False), (1.6, True)])
def test_only_a_long_step_is_a_boundary(factor: float, is_prolonged: bool) -> None:
    """With a period, a step of 1.6 medians is left out of the precision; without one, it is like any other step."""
    steady = list(itertools.islice(noisy(0.01, 0.001), 2000))
    steady[10] *= factor
    with_period, without = (
        counted(rule(min_steps=40, max_steps=2000, relative_error=0.002, period=period), steady)[0]
        for period in (20, None)
    )
    assert without > 40
    assert (with_period < without) == is_prolonged


def test_a_trial_that_has_measured_for_long_needs_less_precision() -> None:
    """An error of 1 % per root second is 3 % after nine seconds."""
    times = list(itertools.islice(noisy(0.1, 0.3), 5000))
    lengths = [
        counted(rule(relative_error=0.001, error_per_root_s=growth, max_steps=5000), times)[0]
        for growth in (0.0, 0.01, 0.02)
    ]
    assert lengths[0] == 5000 > lengths[1] > lengths[2]
    needed = 0.3 / 0.01 / math.sqrt(0.1)  # where 0.3 / root(steps) is 0.01 * root(0.1 s * steps)
    assert needed <= lengths[1] < 3 * needed


def test_a_trend_prolongs_a_trial() -> None:
    times = [1.0 + 0.5 * math.exp(-number / 20) for number in range(400)]
    assert counted(rule(max_steps=400), times)[0] > 60


@pytest.mark.parametrize(("step_s", "reason"), [(2.2, "abandoned"), (1.9, "enough")])
def test_a_clearly_worse_candidate_is_abandoned(step_s: float, reason: str) -> None:
    times = noisy(step_s, 0.02)
    assert counted(rule(min_steps=20, abandon_step_s=2.0), times) == (4 if reason == "abandoned" else 20, reason)


def test_a_candidate_is_not_abandoned_for_a_few_long_steps() -> None:
    times = [0.1, 30.0, 0.1, 0.1, 30.0, 0.1, 0.1, 30.0, *[0.1] * 30]
    assert counted(rule(min_steps=20, max_steps=30, abandon_step_s=2.0), times) == (30, "max")


def test_noise_alone_abandons_hardly_any_candidate() -> None:
    """At most one in twenty candidates just below the limit is abandoned, although each is examined at many steps."""
    abandoned = [
        counted(rule(min_steps=200, max_steps=200, abandon_step_s=1.0 * math.exp(0.005)), noisy(1.0, 0.1, seed))[1]
        for seed in range(600)
    ].count("abandoned")
    assert abandoned <= 30


@pytest.mark.parametrize(("step_s", "is_cut"), [(0.4, True), (0.9, False)])
def test_a_clearly_better_candidate_needs_no_better_precision(step_s: float, is_cut: bool) -> None:
    times = list(itertools.islice(noisy(step_s, 0.3), 3000))
    number, reason = counted(rule(max_steps=3000, accept_step_s=0.8), times)
    assert reason == "enough"
    assert (number < 40) == is_cut


def test_a_decision_ahead_counts_the_steps_until_all_ranks_stop() -> None:
    assert counted(rule(min_steps=12), noisy(1.0, 0.001), ahead=4) == (8, "enough")
    assert counted(rule(max_steps=30, relative_error=0.0), itertools.repeat(1.0), ahead=4) == (26, "max")


def test_few_batches_have_no_spread() -> None:
    batches = BatchMeans()
    for step_s in (1.0, 1.1, 0.9):
        batches.add(step_s)
    assert math.isinf(batches.standard_error())
    batches.add(1.0)
    assert batches.standard_error() == pytest.approx(1.62 * np.std([1.0, 1.1, 0.9, 1.0], ddof=1) / 2)


def test_batches_grow_so_that_there_are_never_more_than_fifteen() -> None:
    batches = BatchMeans()
    for number in range(1000):
        batches.add(float(number))
        assert len(batches.means) < 16
    assert batches.means[0] == np.mean(range(64))
