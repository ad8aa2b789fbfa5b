"""The rule for outliers: what it finds, and how often it is wrong among healthy peers, by simulation."""

from __future__ import annotations

import random
import statistics

import pytest

from flatout.doctor.peers import minority, outliers


def test_one_slow_peer_is_found_and_how_far_off_it_is() -> None:
    values = {"a": 100.0, "b": 101.0, "c": 99.0, "d": 80.0}
    assert outliers(values, share=0.05) == {"d": pytest.approx(80 / statistics.median(values.values()) - 1)}


def test_fewer_than_four_peers_say_nothing() -> None:
    assert outliers({"a": 1.0, "b": 1.0, "c": 9.0}, share=0.05) == {}


def test_a_difference_that_does_not_matter_is_no_outlier_however_alike_the_others_are() -> None:
    assert outliers({"a": 100.0, "b": 100.0, "c": 100.0, "d": 101.0}, share=0.05) == {}


def test_two_groups_of_equal_size_have_no_outlier() -> None:
    assert outliers({"a": 1.0, "b": 1.0, "c": 2.0, "d": 2.0}, share=0.05) == {}


def false_alarms(num_peers: int, noise: float, share: float, trials: int) -> float:
    """Share of groups of healthy peers, of a normal distribution, in which any is called an outlier."""
    source = random.Random(num_peers)
    wrong = 0
    for _ in range(trials):
        wrong += bool(outliers({n: source.gauss(100, 100 * noise) for n in range(num_peers)}, share=share))
    return wrong / trials


# benchmarks/peer_false_alarms.py has more of these: groups of peers with an alarm, of 10,000.
@pytest.mark.parametrize("num_peers", [4, 8, 16, 64])
def test_healthy_peers_with_one_percent_of_noise_give_less_than_one_alarm_in_a_thousand(num_peers: int) -> None:
    assert false_alarms(num_peers, noise=0.01, share=0.05, trials=10_000) < 0.001


def test_a_wide_spread_raises_alarms_more_often_and_with_four_peers_most() -> None:
    """Without the share to save it, the rule of 5 robust spreads alone."""
    rates = {n: false_alarms(n, noise=0.05, share=0.0, trials=2000) for n in (4, 8, 16)}
    assert rates[4] > rates[8] > rates[16]
    assert rates[16] < 0.02


def test_a_peer_ten_percent_slow_is_nearly_always_found() -> None:
    source = random.Random(1)
    found = 0
    for _ in range(1000):
        values = {n: source.gauss(100, 1) for n in range(8)} | {0: source.gauss(90, 1)}
        found += 0 in outliers(values, share=0.05)
    assert found > 850


def test_a_minority_needs_a_majority() -> None:
    assert minority({"a": 1, "b": 1, "c": 2}) == (1, ["c"])
    assert minority({"a": 1, "b": 2}) is None
    assert minority({"a": 1, "b": 1}) is None
