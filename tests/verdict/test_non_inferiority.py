"""The verdict on a loss: worked out by hand, by an enumeration of all outcomes, and by simulation at the limit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, multinomial

from flatout.records.compression import Evaluation, LossVerdict, MaxLoss
from flatout.verdict.non_inferiority import LEVEL, AnswerChanges, exact_p_value, judge_loss, standardised

ONE_PERCENT = MaxLoss(value=0.01, is_relative=True)


def evaluation(samples: list[float] | np.ndarray) -> Evaluation:
    values = tuple(float(sample) for sample in samples)
    return Evaluation(value=math.fsum(values) / len(values), num_samples=len(values), samples=values)


def share(value: float, num_samples: int | None) -> Evaluation:
    return Evaluation(value=value, num_samples=num_samples)


def judged(untouched: Evaluation, variant: Evaluation, limit: MaxLoss = ONE_PERCENT, **asked: bool) -> LossVerdict:
    return judge_loss(untouched, variant, limit, **{"is_higher_better": True, **asked})


def test_samples_without_any_difference_show_what_their_number_allows() -> None:
    """By hand: with a loss of 1 % in each of n right answers, none is lost with probability 0.99^n; 0.05 needs 299."""
    outcomes = {n: judged(evaluation([1] * n), evaluation([1] * n)).outcome for n in (50, 280, 310)}
    assert outcomes == {50: "undecided", 280: "undecided", 310: "non_inferior"}
    most_loss = judged(evaluation([1] * 50), evaluation([1] * 50)).most_loss
    assert most_loss == pytest.approx(1 - 0.049 ** (1 / 50), abs=1e-3)


@pytest.mark.parametrize(("worsened", "improved", "allowed"), [(1, 0, 4.0), (2, 1, 3.5), (0, 2, 0.7), (3, 3, 5.0)])
def test_the_p_value_is_the_largest_over_all_outcomes_that_are_as_good(
    worsened: int, improved: int, allowed: float
) -> None:
    """By enumeration, over all chances of better answers: more than the interval, so the test's value is within."""
    num = 40
    counts = AnswerChanges(num=num, worsened=worsened, improved=improved)
    observed = standardised(worsened, improved, allowed)
    outcomes = [(x, u) for u in range(num + 1) for x in range(num + 1 - u)]
    as_good = [(x, u) for x, u in outcomes if standardised(x, u, allowed) >= observed - 1e-12]

    counted = np.array([[u, x, num - x - u] for x, u in as_good])

    def probability(improving: float) -> float:
        worsening = improving + allowed / num
        chances = [improving, worsening, 1 - improving - worsening]
        return float(multinomial.pmf(counted, num, chances).sum())

    largest = max(probability(improving) for improving in np.linspace(0, (1 - allowed / num) / 2, 301))
    found = exact_p_value(counts, allowed)
    assert probability(improved / num) <= found <= largest + 0.0011


def test_a_variant_that_loses_the_limit_is_called_non_inferior_in_at_most_5_percent() -> None:
    """A slice of `benchmarks/non_inferiority.py`: 150 drawn evaluations with a true loss of exactly 3 %."""
    random = np.random.RandomState(7)
    accuracy, improving, num = 0.9, 0.1, 400
    worsening = (0.03 * accuracy + improving * (1 - accuracy)) / accuracy
    limit = MaxLoss(value=0.03, is_relative=True)
    num_false = 0
    for _ in range(150):
        untouched = random.random_sample(num) < accuracy
        draws = random.random_sample(num)
        variant = np.where(untouched, draws >= worsening, draws < improving)
        asked = {"needs_most_loss": False}
        num_false += judged(evaluation(untouched), evaluation(variant), limit, **asked).outcome == "non_inferior"
    assert 1 <= num_false <= binom.ppf(0.999, 150, LEVEL)


def test_a_clear_loss_is_inferior_and_a_gain_is_not() -> None:
    untouched, worse = [1.0] * 90 + [0.0] * 10, [1.0] * 70 + [0.0] * 30
    assert judged(evaluation(untouched), evaluation(worse)).outcome == "inferior"
    assert judged(evaluation(worse), evaluation(untouched)).outcome == "non_inferior"
    assert judged(evaluation(untouched), evaluation(worse)).loss == pytest.approx(20 / 90)


def test_an_error_rate_is_worse_if_it_rises() -> None:
    """The same answers as errors: an absolute limit asks for the same, with the signs exchanged."""
    untouched, variant = [1.0] * 380 + [0.0] * 20, [1.0] * 379 + [0.0] * 21
    limit = MaxLoss(value=0.02, is_relative=False)
    right = judged(evaluation(untouched), evaluation(variant), limit)
    wrong = judged(
        evaluation([1 - x for x in untouched]), evaluation([1 - x for x in variant]), limit, is_higher_better=False
    )
    assert (right.outcome, right.most_loss, right.loss) == (wrong.outcome, wrong.most_loss, pytest.approx(wrong.loss))
    assert right.outcome == "non_inferior"


def test_losses_of_samples_are_compared_one_by_one() -> None:
    random = np.random.RandomState(1)
    untouched = random.lognormal(0, 1, 3000)
    noise = random.normal(0, 0.001, 3000)
    asked = {"is_higher_better": False}
    same = judged(evaluation(untouched), evaluation(untouched + noise), MaxLoss(value=0.05, is_relative=True), **asked)
    worse = judged(evaluation(untouched), evaluation(untouched * 1.2), MaxLoss(value=0.05, is_relative=True), **asked)
    assert (same.method, same.outcome, worse.outcome) == ("paired_mean", "non_inferior", "inferior")
    few = judged(evaluation(untouched[:9]), evaluation(untouched[:9]), **asked)
    assert (few.outcome, few.method) == ("unknown", "none")


def test_one_unseen_sample_may_be_as_bad_as_the_worst_that_was_seen() -> None:
    """Twenty equal losses between 0 and 10: one more that is worse by 10 makes a mean loss of 0.5 possible."""
    untouched = evaluation(np.linspace(0, 10, 20))
    limit = MaxLoss(value=0.5, is_relative=False)
    assert judged(untouched, untouched, limit, is_higher_better=False).outcome == "undecided"


def test_shares_without_samples_need_their_number() -> None:
    unknown = judged(share(0.9, None), share(0.9, None))
    assert (unknown.outcome, unknown.most_loss, unknown.reason) == ("unknown", None, "the number of samples is unknown")
    assert judged(share(0.9, 1000), share(0.9, 1000)).outcome == "undecided"
    assert judged(share(0.9, 100_000), share(0.9, 100_000)).outcome == "non_inferior"
    assert judged(share(0.9, 1000), share(0.8, 1000)).outcome == "inferior"
    assert judged(share(91.0, 1000), share(91.0, 1000)).outcome == "unknown"


def test_samples_in_another_order_are_not_paired() -> None:
    samples = [1.0, 0.0] * 400
    found = judged(evaluation(samples), evaluation(samples), is_paired=False)
    assert (found.method, found.outcome) == ("unpaired", "undecided")


def test_numbers_that_do_not_match_show_nothing() -> None:
    assert judged(evaluation([1.0] * 400), evaluation([1.0] * 399)).outcome == "unknown"
    assert judged(evaluation([1.0, math.nan]), evaluation([1.0, 1.0])).outcome == "unknown"
