"""How many values name a cause: one where ranks are quiet, several where they are noisy, and none that cannot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from flatout.keep.heartbeats import HeartbeatSample, TimedExchange
from flatout.watch.diagnosis.exchanges import FIRST_STEP, Exchanges
from flatout.watch.diagnosis.rank_times import LEAST_BEFORE, MOST_ERROR, MOST_KEPT, UNKNOWN, RankTimes, num_needed


def filled(before: list[float], since: list[float]) -> RankTimes:
    times = RankTimes()
    for step, value in enumerate([*before, *since]):
        times.add(step, {0: value, 1: 0.02})
    return times


def test_on_a_quiet_machine_one_value_is_enough() -> None:
    compared = filled([0.02] * LEAST_BEFORE, [0.05]).compared(LEAST_BEFORE, 0.03)
    assert compared.before_s == {0: 0.02, 1: 0.02} and compared.since_s == {0: 0.05, 1: 0.02}


def test_without_values_before_nothing_is_compared() -> None:
    assert filled([0.02] * (LEAST_BEFORE - 1), [0.05] * 9).compared(LEAST_BEFORE - 1, 0.03) is UNKNOWN
    assert filled([0.02] * 9, []).compared(9, 0.03) is UNKNOWN


@pytest.mark.parametrize("sd_s", [0.01, 0.02])
def test_as_many_values_are_needed_as_make_the_median_known(sd_s: float) -> None:
    generator = np.random.default_rng(1)
    slower_s = 0.02
    values = [{0: float(value)} for value in generator.normal(0.02, sd_s, 4000)]
    needed = num_needed(values, [], slower_s)
    medians = [np.median(generator.normal(0.02, sd_s, needed)) for _ in range(2000)]
    assert np.std(medians) == pytest.approx(MOST_ERROR * slower_s, rel=0.25)


def test_a_trend_needs_no_more_values_than_its_noise() -> None:
    steady = [{0: 0.02 + 0.001 * (number % 2)} for number in range(40)]
    rising = [{0: 0.02 + 0.001 * (number % 2) + 0.0001 * number} for number in range(40)]
    assert num_needed(rising, [], 0.01) <= num_needed(steady, [], 0.01) + 1


def test_old_values_are_dropped() -> None:
    times = filled([0.02] * 30, [0.05] * MOST_KEPT)
    assert times.compared(30, 0.03) is UNKNOWN


@pytest.mark.parametrize(
    ("exposed_s", "behind_s"),
    [((0.02, 0.05), (0.03, -0.03)), ((0.05, 0.02, 0.05, 0.04), (-0.005, 0.025, -0.005, 0.005))],
)
def test_a_rank_is_behind_by_how_much_less_than_its_peers_it_waits(
    exposed_s: tuple[float, ...], behind_s: tuple[float, ...]
) -> None:
    exchanges = Exchanges()
    for step in range(FIRST_STEP, FIRST_STEP + 4):
        exchanges.add([_sample(rank, step, each, len(exposed_s)) for rank, each in enumerate(exposed_s)])
    behind = exchanges.compared_behind(FIRST_STEP + LEAST_BEFORE - 1, 0.01)
    assert behind.since_s == pytest.approx(dict(enumerate(behind_s)))


def _sample(rank: int, step: int, exposed_s: float, num_ranks: int) -> HeartbeatSample:
    exchange = TimedExchange(iteration=step, exposed_ns=round(exposed_s * 1e9), per_step=1, num_ranks=num_ranks)
    return cast("HeartbeatSample", SimpleNamespace(rank=rank, name=f"rank-{rank}", exchange=exchange))
