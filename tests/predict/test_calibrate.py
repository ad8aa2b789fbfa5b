from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from tests.predict.jobs import change, reducing_job, situation

from flatout.predict.calibrate import Calibration, calibrate, median_absolute_error
from flatout.predict.predict import predict
from flatout.records.prediction import Outcome, Prediction


def outcome(predicted: float, measured: float, family: str = "nccl") -> Outcome:
    return Outcome(
        family=family, change="c", predicted=predicted, measured=measured, machine="4 x H200", date="2026-11-28"
    )


def history(rng: np.random.Generator, biases: dict[str, float], each: int, noise: float = 0.15) -> list[Outcome]:
    """Outcomes whose log error has a mean of its own in each family."""
    found = []
    for family, bias in biases.items():
        for _ in range(each):
            predicted = math.exp(rng.uniform(0.0, 1.0))
            found.append(outcome(predicted, predicted * math.exp(bias + rng.normal(0, noise)), family))
    return found


def corrected(found: Sequence[Outcome], calibration: Calibration) -> list[Outcome]:
    return [outcome(o.predicted * calibration.of(o.family)[0], o.measured, o.family) for o in found]


@pytest.mark.parametrize("size", [3, 10, 30])
def test_errors_go_down_out_of_sample(size: int) -> None:
    before, after = [], []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        biases = {f"family{n}": rng.normal(0, 0.2) for n in range(5)}
        learned = calibrate(history(rng, biases, size))
        fresh = history(rng, biases, 20)
        before.append(median_absolute_error(fresh))
        after.append(median_absolute_error(corrected(fresh, learned)))
    assert np.mean(after) < 0.9 * np.mean(before)


def test_without_a_bias_learning_does_little_harm() -> None:
    before, after = [], []
    for seed in range(200):
        rng = np.random.default_rng(seed)
        biases = dict.fromkeys(("a", "b"), 0.0)
        learned = calibrate(history(rng, biases, 2))
        fresh = history(rng, biases, 20)
        before.append(median_absolute_error(fresh))
        after.append(median_absolute_error(corrected(fresh, learned)))
    assert np.mean(after) < 1.1 * np.mean(before)


@pytest.mark.parametrize("ratio", [1e-3, 0.5, 2.0, 1e3])
def test_one_wild_outcome_moves_little(ratio: float) -> None:
    factor, spread = calibrate([outcome(2.0, 2.0 * ratio)]).of("nccl")
    assert 0.7 < factor < 1.45
    assert 1.0 <= spread < 1.3


def test_two_outcomes_that_agree_move_more_than_one() -> None:
    one = calibrate([outcome(2.0, 1.5)]).of("nccl")[0]
    two = calibrate([outcome(2.0, 1.5)] * 2).of("nccl")[0]
    many = calibrate([outcome(2.0, 1.5)] * 50).of("nccl")[0]
    assert 1.0 > one > two > many == pytest.approx(0.75, rel=0.03)


def test_a_family_never_seen_is_not_corrected() -> None:
    assert calibrate([outcome(2.0, 1.0)]).of("ddp") == (1.0, 1.0)
    assert calibrate([]).of("nccl") == (1.0, 1.0)
    assert median_absolute_error([]) is None


def test_a_correction_is_applied_and_undone_for_the_history() -> None:
    made = situation(*reducing_job(passes=2, reduce_us=400))
    plain = predict(made, change("ddp-no-sync=2"))
    learned = calibrate([outcome(2.0, 1.6, "ddp")] * 10)
    found = predict(made, change("ddp-no-sync=2"), learned)
    assert isinstance(plain, Prediction)
    assert isinstance(found, Prediction)
    assert found.speedup == pytest.approx(plain.speedup * learned.of("ddp")[0])
    assert found.speedup / found.correction == pytest.approx(plain.speedup)
