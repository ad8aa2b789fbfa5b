"""Steps that grow within each epoch are named as such, and never called a drift, a leak or a stall."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from tests.step_log.recorded_ranks import rank_of, steps_of

from flatout.attribute.job import attribute_job
from flatout.diagnose.find import diagnose
from flatout.diagnose.rules import drift
from flatout.records.diagnosis import Diagnosis, Finding
from flatout.records.recording import Steps
from flatout.step_log import sawtooth
from flatout.step_log.job_log import job_log


def diagnosed(*ranks: Steps) -> Diagnosis:
    log = job_log([rank_of(number, of_rank, len(ranks)) for number, of_rank in enumerate(ranks)])
    return diagnose(attribute_job([]), log=log)


def by_name(*ranks: Steps) -> dict[str, Finding]:
    return {finding.name: finding for finding in diagnosed(*ranks).findings}


def epochs(*of_epochs: Sequence[float], noise_s: float = 0.0, seed: int = 7) -> list[float]:
    times = np.concatenate([np.asarray(epoch) for epoch in of_epochs])
    return list(times + noise_s * np.random.default_rng(seed).standard_normal(len(times)))


def line(num: int, first_s: float, last_s: float) -> list[float]:
    return list(np.linspace(first_s, last_s, num))


def ends(num_epochs: int, period: int) -> dict[int, float]:
    """A loader runs out in the first step of each epoch but the first."""
    return dict.fromkeys(range(period, num_epochs * period, period), 1.0)


def test_growing_epochs_are_named_with_their_ends_and_their_cost() -> None:
    times = epochs(*[line(100, 0.010, 0.030)] * 4, noise_s=0.0005)
    rank = steps_of(times, num_loader_ends=ends(4, 100))
    (finding,) = diagnosed(rank, rank).findings
    assert finding.name == "epoch-sawtooth"
    assert finding.evidence["num_epochs"] == 3, "the end of the fourth was not recorded"
    assert (finding.evidence["period_steps"], finding.evidence["direction"]) == (100, "grow")
    assert finding.evidence["first_s"] == pytest.approx(0.0125, rel=0.03)
    assert finding.evidence["last_s"] == pytest.approx(0.0275, rel=0.03)
    assert finding.cost_s_per_step == pytest.approx(0.020 - 0.0125, rel=0.05)
    assert finding.evidence["steps"] == [0, 100, 200, 300]
    assert (finding.evidence["boundaries"], finding.confidence, finding.safety) == ("loader", "high", "semantic")
    assert "shuffle" in finding.changes[0]
    words = " ".join((finding.title, *finding.changes))
    assert not [word for word in ("leak", "drift", "clocks", "tensors kept") if word in words]


@pytest.mark.parametrize(("num_epochs", "confidence"), [(4, "high"), (3, "medium")])
def test_three_recorded_ends_of_epochs_are_enough_to_be_sure(num_epochs: int, confidence: str) -> None:
    times = epochs(*[line(100, 0.010, 0.030)] * num_epochs, noise_s=0.0005)
    (finding,) = diagnosed(steps_of(times, num_loader_ends=ends(num_epochs, 100))).findings
    assert (finding.evidence["num_epochs"], finding.confidence) == (num_epochs - 1, confidence)


@pytest.mark.parametrize(
    "epoch",
    [
        line(100, 0.030, 0.010),  # the longest first
        list(0.005 + 0.030 * np.linspace(0, 1, 60) ** 3),  # lengths are seldom even
        line(24, 0.010, 0.050),  # short epochs
        line(400, 0.010, 0.013),  # little growth
        [0.010 + 0.002 * (step // 12) for step in range(120)],  # buckets in order
    ],
)
@pytest.mark.parametrize("has_loader", [True, False])
def test_other_shapes(epoch: list[float], has_loader: bool) -> None:
    num, period = 6, len(epoch)
    columns = {"num_loader_ends": ends(num, period)} if has_loader else {}
    rank = steps_of(epochs(*[epoch] * num, noise_s=0.0003), **columns)
    (finding,) = diagnosed(rank, rank, rank).findings
    assert (finding.name, finding.evidence["boundaries"]) == (
        "epoch-sawtooth",
        "loader" if has_loader else "step times",
    )
    assert finding.evidence["period_steps"] == pytest.approx(period, abs=1)


def test_a_sampler_that_orders_within_groups_has_its_own_period() -> None:
    """HF's group_by_length sorts groups of 50 batches, the longest first: 5 groups an epoch."""
    rank = steps_of(epochs(*[line(50, 0.030, 0.010)] * 10), num_loader_ends=ends(2, 250))
    (finding,) = diagnosed(rank).findings
    assert (finding.name, finding.evidence["boundaries"]) == ("epoch-sawtooth", "step times")
    assert finding.evidence["period_steps"] == 50


@pytest.mark.parametrize(("last_s", "is_found"), [(0.0141, False), (0.0151, True)])
def test_the_change_is_a_fifth_at_least(last_s: float, is_found: bool) -> None:
    """The medians of the quarters are 1/8 from the ends: 20 % is 14.6 ms."""
    rank = steps_of(epochs(*[line(80, 0.0115, last_s)] * 8), num_loader_ends=ends(8, 80))
    assert ("epoch-sawtooth" in by_name(rank)) == is_found


@pytest.mark.parametrize(("noise_s", "is_found"), [(0.006, True), (0.012, False)])
def test_the_place_in_the_epoch_explains_the_time(noise_s: float, is_found: bool) -> None:
    """The standard deviation of the line is 5.8 ms: the correlation is 0.69 and 0.43."""
    times = epochs(*[line(100, 0.060, 0.080)] * 6, noise_s=noise_s)
    assert ("epoch-sawtooth" in by_name(steps_of(times, num_loader_ends=ends(6, 100)))) == is_found


@pytest.mark.parametrize(("num_epochs", "is_found"), [(2, False), (3, True)])
def test_two_epochs_must_end(num_epochs: int, is_found: bool) -> None:
    times = epochs(*[line(60, 0.010, 0.030)] * num_epochs)
    assert ("epoch-sawtooth" in by_name(steps_of(times, num_loader_ends=ends(num_epochs, 60)))) == is_found


@pytest.mark.parametrize(("num_sorted", "is_found"), [(5, False), (6, True)])
def test_three_in_four_epochs_agree(num_sorted: int, is_found: bool) -> None:
    flat, growing = [0.020] * 60, line(60, 0.010, 0.030)
    is_sorted = [True, True, False, True, True, False, num_sorted == 6, True]
    assert sum(is_sorted) == num_sorted
    times = epochs(*[growing if grows else flat for grows in is_sorted], flat)
    assert ("epoch-sawtooth" in by_name(steps_of(times, num_loader_ends=ends(9, 60)))) == is_found


@pytest.mark.parametrize(("num_flat", "is_found"), [(150, True), (260, False)])
def test_a_pattern_of_less_than_half_the_job_does_not_describe_it(num_flat: int, is_found: bool) -> None:
    """The times fall back four times, so five teeth are 200 of 350 or of 460 steps; no loader was recorded."""
    times = epochs(*[line(40, 0.010, 0.030)] * 5, [0.010] * num_flat)
    assert ("epoch-sawtooth" in by_name(steps_of(times))) == is_found


def test_a_sorted_first_epoch_alone_is_none() -> None:
    times = epochs(line(100, 0.010, 0.030), *[[0.020] * 100] * 5, noise_s=0.002)
    found = by_name(steps_of(times, num_loader_ends=ends(6, 100)))
    assert not {"epoch-sawtooth", "drift"} & set(found)


@pytest.mark.parametrize("seed", range(20))
def test_shuffled_batches_are_none(seed: int) -> None:
    lengths = np.random.default_rng(seed).gamma(2.0, 0.010, size=400) + 0.005
    found = by_name(steps_of(list(lengths), num_loader_ends=ends(8, 50)))
    assert "epoch-sawtooth" not in found
    assert "epoch-sawtooth" not in by_name(steps_of(list(lengths)))


def test_stalls_in_such_a_job_are_still_found_and_each_second_once() -> None:
    growing = epochs(*[line(100, 0.010, 0.030)] * 5)
    starts, saves, unknown = (
        dict.fromkeys(range(100, 500, 100), 1.0),
        {150: 0.6, 350: 0.6},
        {70 * n: 0.4 for n in range(1, 7)},
    )
    for stalls in (starts, saves, unknown):
        for step, seconds in stalls.items():
            growing[step] += seconds
    rank = steps_of(growing, loader_start_s=starts, num_loader_ends=ends(5, 100), checkpoint_s=saves)
    found = by_name(rank, rank)
    assert set(found) == {"epoch-sawtooth", "epoch-boundary", "checkpoint-stall", "periodic-stall"}
    assert found["epoch-boundary"].cost_s_per_step == pytest.approx(4 * 1.0 / 500, rel=0.02)
    assert found["checkpoint-stall"].cost_s_per_step == pytest.approx(2 * 0.6 / 500, rel=0.02)
    assert found["periodic-stall"].cost_s_per_step == pytest.approx(6 * 0.4 / 490, rel=0.03)
    assert sum(finding.cost_s_per_step for finding in found.values()) < sum(growing) / 500


def test_epochs_that_also_take_longer_and_longer_drift_too() -> None:
    times = epochs(*[line(100, 0.010 * scale, 0.030 * scale) for scale in (1.0, 1.2, 1.4, 1.6, 1.8)])
    found = by_name(steps_of(times, num_loader_ends=ends(5, 100)))
    assert set(found) == {"epoch-sawtooth", "drift"}
    assert found["drift"].evidence["first_s"] == pytest.approx(0.020, rel=0.03)
    assert found["drift"].evidence["last_s"] == pytest.approx(0.032, rel=0.03)


def test_growth_in_less_than_an_epoch_says_what_would_tell() -> None:
    growing = line(200, 0.010, 0.030)
    assert drift.PAST_THE_EPOCH[0] in by_name(steps_of(growing))["drift"].changes
    with_end = by_name(steps_of(growing, num_loader_ends={100: 1.0}))
    assert drift.PAST_THE_EPOCH[0] not in with_end["drift"].changes


def test_a_list_that_is_emptied_at_regular_steps_is_described_as_such() -> None:
    (finding,) = diagnosed(steps_of(epochs(*[line(40, 0.010, 0.030)] * 8))).findings
    assert "collected and then dropped" in finding.changes[-1]
    assert finding.confidence == "medium"


@pytest.mark.parametrize(("num", "is_found"), [(sawtooth.MIN_TOOTH_STEPS - 1, False), (sawtooth.MIN_TOOTH_STEPS, True)])
def test_epochs_of_a_few_steps_show_no_pattern(num: int, is_found: bool) -> None:
    times = epochs(*[line(num, 0.010, 0.030)] * 10)
    assert ("epoch-sawtooth" in by_name(steps_of(times, num_loader_ends=ends(10, num)))) == is_found
