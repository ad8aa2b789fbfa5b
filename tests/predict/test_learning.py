"""`benchmarks/predict_learning.py`: what counts as a history of what is held out, and that its results are kept."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from benchmarks import predict_learning
from benchmarks.predict_learning import TUNINGS, error, of_repeated, of_sequence, repeated, row, tunings_of

from flatout.records.prediction import PredictionRecord

RESULTS = Path(predict_learning.__file__).parent / "results"


def outcome(change: str, measured: float, job: str, predicted: float = 1.5) -> PredictionRecord:
    return PredictionRecord(
        family="nccl", change=change, predicted=predicted, measured=measured, machine="gpu", date=job,
        low=predicted / 1.3, high=predicted * 1.3,
    )  # fmt: skip


def test_the_ratio_that_is_held_out_is_not_in_its_own_history() -> None:
    """Two repetitions of three agree with the prediction: the third is off by as much as without a history."""
    found = of_repeated([(outcome("a", 1.5, "job"), (1.5, 1.5, 3.0))], [])
    assert found["same job"][2] == found["none"][2] == pytest.approx(0.5)
    assert found["same job"][0] > 0.0  # one of the others says 3.0
    assert found["other jobs"] == found["none"]


def test_pairs_of_the_same_job_are_no_other_jobs() -> None:
    pair = outcome("a", 3.0, "job")
    others = [pair, outcome("b", 3.0, "job"), outcome("c", 1.0, "elsewhere")]
    found = of_repeated([(pair, (3.0, 3.0, 3.0))], others)
    assert found["other jobs"][0] == error(pair, [others[2]]) > found["none"][0]
    assert found["same job"][0] < found["none"][0]


def test_what_comes_later_is_no_history() -> None:
    tunings = [("a", [outcome("x", 3.0, "1")]), ("b", [outcome("x", 3.0, "2")]), ("a", [outcome("x", 3.0, "3")])]
    found = of_sequence(tunings)
    assert [found[name][0] for name in found] == [pytest.approx(0.5)] * 4
    assert found["same job"][1] == found["none"][1] and found["other jobs"][1] < found["none"][1]
    assert found["both"][2] < found["same job"][2] < found["none"][2]


def test_the_kept_results_are_those_of_the_kept_pairs() -> None:
    """And the claims that the docs make of them."""
    kept = json.loads((RESULTS / "predict_learning.json").read_text())
    rows = json.loads((RESULTS / "predict_error.json").read_text())["rows"]
    pairs = list(repeated(rows))
    for device, what in (("gpu", "GPU pairs, measured three times"), ("cpu", "CPU pairs, measured three times")):
        of_device = [(one, ratios) for name, one, ratios in pairs if name == device]
        found = of_repeated([one for one in of_device if one[1]], [one for one, _ in of_device])
        mean = row(what, found, lambda values: math.fsum(values) / len(values))
        (told,) = (line for line in kept["mean_absolute_error"] if line["what"] == what)
        assert mean == pytest.approx(told, abs=2e-3)
        assert mean["same job"] < 0.95 * mean["none"]
        assert mean["other jobs"] < 1.02 * mean["none"]


def test_a_gpu_job_that_is_tuned_again_is_predicted_better() -> None:
    found = of_sequence(tunings_of(TUNINGS["GPU tunings of one job, in their order"]))
    assert found["same job"][:2] == found["none"][:2], "nothing is known in the first tuning"
    assert math.fsum(found["same job"][2:]) < 0.5 * math.fsum(found["none"][2:])
