"""The probability of running out of memory, and its correction by runs with known outcomes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.plan.test_model import machine_of, one_case

from flatout.catalog import all_models
from flatout.plan.fits import (
    COMMON_SD,
    LAYOUT_SD,
    PART_SD,
    PEAK_SD,
    PROVEN,
    SAFE,
    USABLE,
    MemoryCalibration,
    Outcome,
    out_of_memory_probability,
    with_outcomes,
)
from flatout.plan.inputs import CostModelInputs
from flatout.plan.memory import PARTS, MemoryConstants, memory
from flatout.records.plan import Layout, Software

NEMO = Software(gradient_bytes=2.0, held_gradient_bytes=2.0)


def case(memory_gib: float = 80.0, **changed: Any) -> CostModelInputs:
    """A 70 B model on 64 GPUs as NVIDIA trains it, on GPUs of any size."""
    machine = machine_of("h100x64", "bf16") | {"memory": memory_gib * 2.0**30}
    layout = {"tp": 4, "sequence_parallel": True, "pp": 4, "vpp": 5, "cp": 2, "dp": 2, "zero": 1}
    layout |= {"num_micro_batches": 64}
    return one_case(all_models()["llama3-70b"], machine, Layout(**(layout | changed)), 8192, NEMO)


def probability(inputs: CostModelInputs, calibration: MemoryCalibration | None = None) -> float:
    return float(out_of_memory_probability(inputs, calibration or MemoryCalibration())[0])


def test_the_probability_is_one_half_where_the_need_is_the_limit() -> None:
    constants = MemoryConstants(returned=1e-12)
    need = float(memory(case(), constants).total[0])
    at_limit = case(memory_gib=need / USABLE / 2**30)
    assert probability(at_limit, MemoryCalibration(constants=constants)) == pytest.approx(0.5, abs=1e-6)


def test_the_probability_falls_with_the_gpus_memory_and_has_both_sides_of_the_default_risk() -> None:
    falling = [probability(case(memory_gib=size)) for size in (40, 56, 64, 72, 80, 141)]
    assert falling == sorted(falling, reverse=True)
    assert falling[0] > 0.95
    assert falling[-1] < 1e-3
    assert falling[1] > SAFE > falling[4]


def test_nvidias_own_layout_of_a_70b_model_is_safe() -> None:
    """14.61 s on 64 H100 (NVIDIA/dgxc-benchmarking 25.02): it ran, with gradients in bf16."""
    assert probability(case()) < SAFE


def test_a_run_that_fitted_proves_its_layout_and_moves_its_neighbours() -> None:
    small = 56.0
    doubtful, neighbour = case(memory_gib=small), case(memory_gib=small, vpp=4)
    assert probability(doubtful) > SAFE
    after = with_outcomes(doubtful, [Outcome(None, ran_out=False)], MemoryCalibration())
    assert probability(doubtful, after) == PROVEN
    assert probability(neighbour, after) < 0.6 * probability(neighbour)
    larger = case(memory_gib=small, cp=1, dp=4)
    assert PROVEN < probability(larger, after) < probability(larger)


def test_what_needs_less_of_every_part_than_a_run_that_fitted_is_proven_too() -> None:
    proven = with_outcomes(case(memory_gib=56), [Outcome(None, ran_out=False)], MemoryCalibration())
    less = case(memory_gib=56, num_micro_batches=2, vpp=1)
    assert probability(less, proven) <= PROVEN
    less_memory = case(memory_gib=55)
    assert probability(less_memory, proven) > PROVEN


def test_a_run_that_ran_out_raises_the_probability_of_all_that_need_as_much() -> None:
    roomy = case(memory_gib=80)
    before = probability(roomy)
    after = with_outcomes(roomy, [Outcome(None, ran_out=True)], MemoryCalibration())
    assert before < SAFE
    assert probability(roomy, after) >= 1 - PROVEN
    assert probability(case(memory_gib=80, vpp=10), after) > 3 * before


def test_a_measured_peak_moves_the_expectation_to_it() -> None:
    predicted = float(memory(case(), MemoryConstants()).total[0])
    after = with_outcomes(case(), [Outcome(predicted * 1.2, ran_out=False)], MemoryCalibration())
    # Of a layout that needs more of a part, so that the run does not prove it.
    more = case(cp=1, dp=4)
    assert probability(more, after) > probability(more)
    shares = [*_shares(case()), 1.0]
    deviations = [*PART_SD.values(), COMMON_SD]
    variance = sum((share * deviation) ** 2 for share, deviation in zip(shares, deviations, strict=True))
    moved = variance / (variance + PEAK_SD**2)  # of the way from the prediction to the measured peak
    assert after.means @ np.array(shares) == pytest.approx(moved * np.log(1.2), rel=1e-6)


def _shares(inputs: CostModelInputs) -> list[float]:
    estimate = memory(inputs, MemoryConstants())
    return [float(np.ravel(part)[0] / estimate.total[0]) for part in estimate.parts.values()]


def test_more_runs_that_fitted_make_it_safer_and_never_certain() -> None:
    doubtful = case(memory_gib=56)
    one = with_outcomes(doubtful, [Outcome(None, ran_out=False)], MemoryCalibration())
    both = with_outcomes(case(memory_gib=56, dp=4), [Outcome(None, ran_out=False)], one)
    other = case(memory_gib=56, vpp=4)
    assert 0 < probability(other, both) < probability(other, one)


def test_a_cut_normal_distribution_has_the_moments_of_samples() -> None:
    """By brute force: the truncated distribution on both sides of a limit."""
    from flatout.plan.fits import _cut

    samples = np.random.default_rng(0).normal(1.0, 0.5, 400_000)
    for is_above in (False, True):
        left = samples[samples > 1.3] if is_above else samples[samples <= 1.3]
        mean, variance = _cut(1.0, 0.25, 1.3, is_above=is_above)
        assert mean == pytest.approx(left.mean(), abs=0.003)
        assert variance == pytest.approx(left.var(), rel=0.02)


@pytest.mark.parametrize("ran_out", [False, True])
def test_an_outcome_moves_and_narrows_the_errors_as_draws_from_them_show(ran_out: bool) -> None:
    """Errors are drawn from the prior, and those are kept under which the layout has this outcome."""
    prior = MemoryCalibration()
    inputs = case(memory_gib=68.0)
    estimate = memory(inputs, prior.constants)
    shares = np.array([*(float(np.ravel(estimate.parts[part])[0]) for part in PARTS), float(estimate.total[0])])
    shares /= float(estimate.total[0])
    draw = np.random.default_rng(5)
    errors = draw.multivariate_normal(prior.means, prior.covariance, 400_000)
    needs = np.log(float(estimate.total[0])) + errors @ shares + draw.normal(0.0, LAYOUT_SD, len(errors))
    limit = np.log(USABLE * 68.0 * 2**30) - np.log1p(-prior.constants.returned)
    kept = errors[(needs > limit) == ran_out]
    posterior = with_outcomes(inputs, [Outcome(None, ran_out)], prior)
    assert 0.05 < len(kept) / len(errors) < 0.95
    assert posterior.means == pytest.approx(kept.mean(axis=0), abs=0.01)
    spreads = np.sqrt(np.diag(posterior.covariance))
    assert spreads == pytest.approx(kept.std(axis=0), rel=0.02)
    assert np.sqrt(shares @ posterior.covariance @ shares) == pytest.approx((kept @ shares).std(), rel=0.02)


def test_a_measured_peak_leaves_the_uncertainty_of_a_normal_distribution_given_one_of_its_sums() -> None:
    prior = MemoryCalibration()
    estimate = memory(case(), prior.constants)
    total = float(estimate.total[0])
    shares = np.array([*(float(np.ravel(estimate.parts[part])[0]) for part in PARTS), total]) / total
    before = float(shares @ prior.covariance @ shares)
    posterior = with_outcomes(case(), [Outcome(1.1 * total, False)], prior)
    after = float(shares @ posterior.covariance @ shares)
    assert after == pytest.approx(before * PEAK_SD**2 / (before + PEAK_SD**2), rel=1e-6)
    assert float(shares @ posterior.means) == pytest.approx(np.log(1.1) * before / (before + PEAK_SD**2), rel=1e-6)
