"""Changes of level: planted ones are found where they are; outliers, states, drifts and noise are not changes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from tests.track.series import Values, noisy

from flatout.records.tracking import Segmentation
from flatout.track import level_changes, patterns, split_tests
from flatout.track.level_changes import segmentation

RATE = 0.01
EFFECT = 0.01


def found(values: Values, *, rate: float = RATE, min_effect: float = EFFECT) -> Segmentation:
    return segmentation(list(values), rate=rate, min_effect=min_effect)


def places(values: Values) -> list[int]:
    return [change.index for change in found(values).changes]


def test_a_step_is_found_at_its_place_with_its_levels() -> None:
    (change,) = found(noisy([100.0] * 30 + [110.0] * 30, noise=0.01)).changes
    assert change.index == 30
    assert change.before == pytest.approx(100, rel=0.01)
    assert change.after == pytest.approx(110, rel=0.01)
    assert change.low <= 30 <= change.high


def test_several_steps_up_and_down_are_found() -> None:
    levels = [100.0] * 25 + [108.0] * 25 + [120.0] * 25 + [95.0] * 25
    assert places(noisy(levels, noise=0.01)) == [25, 50, 75]


def test_the_place_is_as_uncertain_as_the_noise_makes_it() -> None:
    """Over many series, the true place is in the stated range at least as often as stated."""
    is_in, widths = [], []
    for seed in range(60):
        for change in found(noisy([100.0] * 40 + [105.0] * 40, noise=0.03, seed=seed)).changes[:1]:
            is_in.append(change.low <= 40 <= change.high)
            widths.append(change.high - change.low)
    assert len(is_in) > 50
    assert np.mean(is_in) >= 0.95
    assert 1 < np.median(widths) < 20


@pytest.mark.parametrize("num_results", [12, 40, 120])
@pytest.mark.parametrize(
    "noise",
    [
        lambda rng, n: 0.03 * rng.standard_normal(n),
        lambda rng, n: 0.03 * rng.standard_t(2.5, n),
        lambda rng, n: 0.05 * np.exp(rng.standard_normal(n)),
        lambda rng, n: 0.02 * rng.standard_normal(n) + (rng.random(n) < 0.05) * rng.uniform(0.2, 1, n),
        lambda rng, n: 0.03 * rng.standard_normal(n) + 0.1 * (rng.random(n) < 0.3),
    ],
    ids=["normal", "long tails", "skewed", "outliers", "two overlapping states"],
)
def test_false_alarms_are_as_rare_as_stated(num_results: int, noise: object) -> None:
    """At a rate of 5 %, at most 9 of 80 series without a change: the 99th percentile of the binomial distribution."""
    rng = np.random.default_rng(num_results)
    alarms = sum(
        bool(segmentation(list(100 * np.exp(noise(rng, num_results))), rate=0.05, min_effect=EFFECT).changes)  # type: ignore[operator]
        for _ in range(80)
    )
    assert alarms <= stats.binom.ppf(0.99, 80, 0.05)


def correlated(rng: np.random.Generator, num_results: int, correlation: float) -> Values:
    """Return values without a change, of which each resembles the one before it."""
    values = 0.03 * rng.standard_normal(num_results)
    for index in range(1, num_results):
        values[index] += correlation * values[index - 1]
    return 100 * np.exp(values)


@pytest.mark.parametrize(("num_results", "correlation"), [(100, 0.3), (300, 0.3), (100, 0.6)])
def test_neighbours_that_are_alike_do_not_raise_the_rate(num_results: int, correlation: float) -> None:
    """At a rate of 5 %, at most 6 of 40: the 99th percentile; a quarter before results counted for fewer.

    `benchmarks/track_change_points.py --unchanged N` draws more.
    """
    rng = np.random.default_rng(num_results)
    alarms = sum(bool(found(correlated(rng, num_results, correlation), rate=0.05).changes) for _ in range(40))
    assert alarms <= stats.binom.ppf(0.99, 40, 0.05)


def test_a_change_among_neighbours_that_are_alike_is_still_found() -> None:
    rng = np.random.default_rng(4)
    values = correlated(rng, 100, 0.5)
    values[50:] *= 1.2
    check = found(values)
    (change,) = check.changes
    assert abs(change.index - 50) <= 2
    assert check.correlation == pytest.approx(0.5, abs=0.2)


def test_the_correlation_of_independent_results_is_not_stated() -> None:
    stated = [found(noisy([100.0] * 40, seed=seed)).correlation for seed in range(60)]
    assert sum(value > 0 for value in stated) <= stats.binom.ppf(0.99, 60, 0.05)


@pytest.mark.parametrize("least_errors", [split_tests.POSSIBLE, split_tests.SHOWN])
def test_a_correlation_counts_from_a_number_of_standard_errors(least_errors: float) -> None:
    """A hundred values around one level have a standard error of 0.1, and a bias of (1 + 3 r) / 100."""
    base = np.tile([1.0, -1.0], 50)
    for factor, counts in ((0.98, False), (1.02, True)):
        wanted = factor * least_errors / math.sqrt(100)
        plain = (wanted - 0.01) / 1.03
        values = _with_correlation(base, plain)
        counted = split_tests.neighbour_correlation(values, num_levels=1, least_errors=least_errors)
        assert counted == (pytest.approx(wanted) if counts else 0.0)


def _with_correlation(base: Values, plain: float) -> Values:
    """Return a mix of a constant and an alternation with this plain correlation: 99 products over 100 squares."""
    share = (1 + plain / 0.99) / 2
    return np.sqrt(share) + np.sqrt(1 - share) * base


def test_a_smaller_rate_asks_for_more_evidence() -> None:
    values = noisy([100.0] * 14 + [103.0] * 8, noise=0.012, seed=3)
    (change,) = found(values, rate=0.2).changes
    limit = change.p_value * level_changes.TESTS_PER_RESULT * len(values)
    assert found(values, rate=limit * 1.01).changes
    assert not found(values, rate=limit * 0.99).changes


def test_single_outliers_are_named_and_are_not_changes() -> None:
    values = noisy([100.0] * 60, noise=0.01)
    values[[10, 31, 59]] = 180, 40, 150
    check = found(values)
    assert not check.changes
    assert {10, 31, 59} <= set(check.outliers)


def test_three_results_may_be_outliers_and_four_are_a_level() -> None:
    """With 40 results and a rate of 1 %, a run of three with 5 % outliers each is more likely than the rate allows."""
    assert 40 * 0.05**2 > RATE > 40 * 0.05**3
    assert places(noisy([100.0] * 37 + [130.0] * 3, noise=0.01)) == []
    assert places(noisy([100.0] * 36 + [130.0] * 4, noise=0.01)) == [36]


def test_with_more_outliers_in_the_history_a_longer_run_is_needed() -> None:
    """With a seventh of outliers in 60 results, a run of four is likelier than the rate allows, and one of six not."""
    assert 60 * (1 / 7) ** 4 > RATE > 60 * (1 / 7) ** 6
    found_after = {4: 0, 6: 0}
    for seed in range(12):
        rng = np.random.default_rng(seed)
        for length in found_after:
            values = noisy([100.0] * 56 + [130.0] * length, noise=0.01, seed=seed)
            values[3:56:7] *= rng.uniform(1.2, 1.8, 8)
            found_after[length] += 56 in places(values)
    assert found_after[4] == 0
    assert found_after[6] >= 11


@pytest.mark.parametrize("stay", [0.5, 0.85])
def test_a_machine_with_two_states_does_not_change(stay: float) -> None:
    rng = np.random.default_rng(2)
    state = [0]
    for _ in range(79):
        state.append(state[-1] if rng.random() < stay else 1 - state[-1])
    check = found(noisy([100.0 + 20 * each for each in state], noise=0.01))
    assert not check.changes
    assert check.states is not None
    assert (check.states.low, check.states.high) == (pytest.approx(100, rel=0.02), pytest.approx(120, rel=0.02))
    assert check.states.high_share == pytest.approx(np.mean(state))


def test_a_step_and_the_way_back_are_changes_and_a_third_switch_makes_two_states() -> None:
    once = [100.0] * 20 + [120.0] * 20 + [100.0] * 20
    assert places(noisy(once, noise=0.01)) == [20, 40]
    check = found(noisy([*once, *[120.0] * 20], noise=0.01))
    assert not check.changes
    assert check.states is not None
    assert check.states.num_switches == 3


def test_a_machine_with_two_states_changes_if_both_states_do() -> None:
    states = np.tile([0.0, 0.0, 0.0, 1.0, 1.0], 20)
    levels = np.where(states > 0, 120.0, 100.0)
    levels[50:] *= 1.05
    check = found(noisy(levels, noise=0.005))
    assert [change.index for change in check.changes] == [50]
    assert check.changes[0].after / check.changes[0].before == pytest.approx(1.05, rel=0.005)
    # That the machine stays in one of them is no change.
    levels = np.where(states > 0, 120.0, 100.0)
    levels[80:] = 121.5
    assert found(noisy(levels, noise=0.005)).changes == ()


def test_states_that_overlap_are_noise() -> None:
    """Four robust standard deviations apart are two states, and less is not."""
    order = np.tile([0.0, 0.0, 0.0, 1.0, 1.0, 1.0], 20)
    noise = stats.norm.ppf((np.arange(60) + 0.5) / 60)
    noise = np.clip(noise, -1.5, 1.5)  # so that the widest gap is between the states
    sd = split_tests.robust_sd(noise)
    rng = np.random.default_rng(0)
    values = np.empty(120)
    values[order == 0], values[order == 1] = rng.permutation(noise), rng.permutation(noise)
    assert patterns.two_states(values + 4.05 * sd * order, 0.0) is not None
    assert patterns.two_states(values + 3.95 * sd * order, 0.0) is None


def test_an_outlier_is_four_standard_deviations_from_its_level() -> None:
    rests = np.append(0.01 * np.random.default_rng(0).permutation(stats.norm.ppf((np.arange(60) + 0.5) / 60)), 1.0)
    level, sd = float(np.median(rests)), split_tests.robust_sd(rests)
    for distance, is_named in ((3.95, False), (4.05, True)):
        values = np.append(rests[:-1], level + distance * sd)  # as far above the median as before, so both stay
        assert (60 in found(100 * np.exp(values)).outliers) is is_named


def test_each_state_needs_two_results_on_both_sides_of_a_change() -> None:
    is_high = np.array([True, False] * 10 + [True] * 8 + [False] * 2)
    assert level_changes._of_both_states([20], is_high) == [20]
    assert level_changes._of_both_states([20], np.append(is_high[:-2], [True, False])) == []


def test_a_rare_state_is_made_of_outliers() -> None:
    """A tenth of the results is a state."""
    rng = np.random.default_rng(1)
    base = rng.standard_normal(100)
    for size, is_state in ((9, False), (12, True)):
        values = base.copy()
        for start in range(0, size, 3):
            values[10 + 9 * start : 13 + 9 * start] += 50
        assert (patterns.two_states(values, 0.0) is not None) is is_state


def test_a_slow_drift_is_no_step() -> None:
    check = found(noisy(np.linspace(100, 130, 80), noise=0.01))
    assert not check.changes
    assert check.drift is not None
    assert check.drift.start == pytest.approx(100, rel=0.03)
    assert check.drift.end == pytest.approx(130, rel=0.03)


def test_a_staircase_is_no_drift() -> None:
    check = found(noisy([100.0] * 20 + [110.0] * 20 + [120.0] * 20 + [130.0] * 20, noise=0.005))
    assert [change.index for change in check.changes] == [20, 40, 60]
    assert check.drift is None


def test_a_step_on_a_drift_is_found_in_addition_to_it() -> None:
    levels = np.linspace(100, 115, 100)
    levels[60:] *= 1.25
    check = found(noisy(levels, noise=0.005))
    assert [change.index for change in check.changes] == [60]
    assert check.drift is not None
    assert check.changes[0].after / check.changes[0].before == pytest.approx(1.25, rel=0.02)


def test_a_change_below_the_smallest_effect_is_not_reported() -> None:
    for after, is_reported in ((100.9, False), (101.1, True)):
        values = noisy([100.0] * 200 + [after] * 200, noise=0.0005)
        assert bool(found(values).changes) is is_reported


def test_eight_results_can_show_a_change_and_seven_cannot() -> None:
    values = noisy([100.0] * 4 + [200.0] * 4, noise=0.001)
    assert found(values).changes
    assert not found(values[1:]).changes


def test_constant_values_and_bytes_are_judged_without_noise() -> None:
    assert not found(np.full(30, 1e9)).changes
    assert not found(np.array([1e9, 1e9 + 4096] * 15)).changes
    assert places(np.array([1e9] * 20 + [1.1e9] * 10)) == [20]


def test_values_of_zero_and_below_are_compared_by_differences() -> None:
    values = np.concatenate([np.full(20, 0.0), np.full(20, 0.5)]) + 0.01 * np.random.default_rng(0).standard_normal(40)
    check = found(values)
    assert [change.index for change in check.changes] == [20]
    assert check.level == pytest.approx(0.5, abs=0.02)


def test_neighbours_that_depend_on_each_other_count_for_fewer() -> None:
    """The p-value of a step in noise with memory is larger than that of the same step in shuffled noise."""
    rng = np.random.default_rng(5)
    rests = np.zeros(80)
    for index in range(1, 80):
        rests[index] = 0.7 * rests[index - 1] + rng.standard_normal()
    step = np.repeat([0.0, 3.0], 40)
    shuffled = np.concatenate([rng.permutation(rests[:40]), rng.permutation(rests[40:])])
    assert split_tests.split_log_p(step + rests, 40, 0.0) > split_tests.split_log_p(step + shuffled, 40, 0.0) + 5


def test_the_test_is_students() -> None:
    """Without values to clip, the p-value is SciPy's."""
    rng = np.random.default_rng(0)
    values = rng.uniform(-1, 1, 20) + np.repeat([0.0, 0.4], 10)
    expected = stats.ttest_ind(values[:10], values[10:]).pvalue
    assert math.exp(split_tests.split_log_p(values, 10, 0.0)) == pytest.approx(expected)
    log_p, split = split_tests.best_splits(values[None, :], 4, 0.0)
    by_hand = {at: stats.ttest_ind(values[:at], values[at:]).pvalue for at in range(4, 17)}
    assert int(split[0]) == min(by_hand, key=lambda at: by_hand[at])
    assert math.exp(log_p[0]) == pytest.approx(min(by_hand.values()))


def test_a_value_far_away_is_clipped_at_three_standard_deviations() -> None:
    values = np.concatenate([stats.norm.ppf((np.arange(40) + 0.5) / 40), [4.0]])
    far = np.concatenate([values[:-1], [4000.0]])
    near = np.concatenate([values[:-1], [2.0]])
    test = [split_tests.split_log_p(each, 35, 0.0) for each in (values, far, near)]
    assert test[0] == pytest.approx(test[1])
    assert test[0] != pytest.approx(test[2])


def test_seeded_intervals_cover_both_ends_and_their_length_grows_slowly() -> None:
    for length in (8, 100, 1000):
        layers = split_tests.seeded_intervals(length, 8)
        assert layers[0][0] == length
        assert all(starts[0] == 0 and starts[-1] == length - width for width, starts in layers)
        total = sum(width * len(starts) for width, starts in layers)
        assert total <= 5 * length * math.log2(2 * length)


def test_ten_thousand_results_need_few_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work is counted, not timed: values in tested windows, for ten times as many results at most 15 times more."""
    counted = []
    original = split_tests.best_splits

    def counting(windows: Values, least: int, floor_sd: float) -> object:
        counted.append(windows.size)
        return original(windows, least, floor_sd)

    monkeypatch.setattr(level_changes, "best_splits", counting)
    work = []
    for length in (1_000, 10_000):
        counted.clear()
        found(noisy([100.0] * (length // 2) + [110.0] * (length // 2), noise=0.02))
        work.append(sum(counted))
    assert work[1] < 15 * work[0]
