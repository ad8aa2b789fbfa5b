"""The order of the candidates; changes that cost accuracy are tried only where a prediction says that they pay."""

from __future__ import annotations

import pytest

from flatout.change.catalogue import all_changes
from flatout.records.change import JobFacts
from flatout.records.prediction import Prediction
from flatout.tune.choose import expected_speedup, split_by_gain


def prediction(name: str, speedup: float) -> Prediction:
    return Prediction(change=name, family="ddp", speedup=speedup, low=speedup, high=2 * speedup, how="")


@pytest.mark.parametrize(("speedup", "is_tried"), [(1.011, True), (1.009, False), (0.5, False)])
def test_compression_is_tried_only_if_it_is_predicted_to_pay(speedup: float, is_tried: bool) -> None:
    possible = [change for change in all_changes(JobFacts()) if change.family == "ddp"]
    predictions = {change.name: prediction(change.name, speedup) for change in possible}
    tried, not_paying = split_by_gain(possible, predictions)
    compressions = {change.name for change in possible if change.knob.only_if_it_pays}
    assert "ddp-compression=int8" in compressions
    assert {change.name for change in not_paying} == (set() if is_tried else compressions)
    assert len(tried) + len(not_paying) == len(possible)


def test_without_a_prediction_a_trial_tells() -> None:
    possible = list(all_changes(JobFacts()))
    assert split_by_gain(possible, {}) == (possible, [])


@pytest.mark.parametrize(("cores", "expected"), [(8.0, 2**0.5), (2.0, 1.0)])
def test_of_workers_without_a_core_no_more_is_expected_than_predicted(cores: float, expected: float) -> None:
    """Predicted is 1x, and 2x at most."""
    facts = JobFacts(num_ranks=2, ranks_per_host=2, cores_allowed=cores, loader_workers=0)
    (one,) = [change for change in all_changes(facts) if change.name == "dataloader-workers=1"]
    predictions = {one.name: prediction(one.name, 1.0)}
    assert expected_speedup(one, predictions, facts) == pytest.approx(expected)
