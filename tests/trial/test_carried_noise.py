"""Float noise that a training carries far is no reason to refuse a change, and hides no wrong update."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from tests.trial import training, unstable
from tests.trial.training import FAULTS, Fault, changes

from flatout.records.trial import GradientNorms, TrialResult
from flatout.trial.gates import _carried_noise, check_losses, loss_note
from flatout.trial.gradient_gate import check_gradients

NOISE = 3e-4  # of TF32, relative to a sum
DISTURBANCE = 2.0**-8  # as in `inside.other_rounding` on a GPU


def trial(*, has_other_rounding: bool = False, **how: Any) -> TrialResult:
    trained = unstable.train(**how)
    norms = GradientNorms(num_parameters=1, norms=trained.norms[: training.NUM_CHECKED])
    made = training.trial(trained.losses, gradients=(norms,))
    return msgspec.structs.replace(made, has_other_rounding=has_other_rounding)


def with_noise(**how: Any) -> TrialResult:
    return trial(float_noise=NOISE, **how)


def disturbed(seed: int = 50) -> TrialResult:
    return trial(disturbed=DISTURBANCE, noise_seed=seed, has_other_rounding=True)


BASELINES = [trial(), trial()]


def test_the_loss_rises_at_first_and_float_noise_changes_it_by_a_fifth_within_five_steps() -> None:
    """The truth of this job: so does ImageNet's script at its own learning rate (7.0, 9.7, 29, 34, 28)."""
    base, other = np.array(trial().losses), np.array(with_noise().losses)
    assert 1.3 * base[0] < base[1] < base[2]
    differences = np.abs(other - base)[:5] / base[:5].mean()
    assert differences[0] < 1e-4 and differences[1] < 0.01 and differences.max() > 0.2


@pytest.mark.parametrize("seed", range(6))
def test_noise_is_refused_only_until_a_trial_shows_how_far_it_carries(seed: int) -> None:
    candidate = with_noise(noise_seed=seed)
    first = check_losses(candidate, BASELINES, changes())
    assert not first.is_passed and first.may_be_noise
    for gate in (check_losses, check_gradients):
        passed = gate(candidate, [*BASELINES, disturbed()], changes())  # type: ignore[operator]
        assert passed.is_passed and not passed.may_be_noise, passed.reason


@pytest.mark.parametrize("fault", [{"scale": 2.0}, {"scale": 0.5}, {"scale": 0.9}, {"scale": 1.1}, {"stale": True}])
@pytest.mark.parametrize("disturbance", [50, 51, 52])
def test_wrong_updates_are_refused_by_their_losses_all_the_same(fault: dict[str, Any], disturbance: int) -> None:
    for seed in range(4):
        gate = check_losses(with_noise(noise_seed=seed, **fault), [*BASELINES, disturbed(disturbance)], changes())
        assert not gate.is_passed and not gate.may_be_noise
        assert gate.reason.startswith(("the loss of step 2 differs", "the loss of step 3 differs"))


@pytest.mark.parametrize("fault", FAULTS)
def test_in_a_stable_training_the_disturbance_makes_the_gate_no_more_lenient(fault: Fault) -> None:
    usual = training.trial(training.losses())
    noisy = training.trial(training.losses(float_noise=5e-4, noise_seed=3))
    baselines = [usual, usual, msgspec.structs.replace(noisy, has_other_rounding=True)]
    assert not check_losses(training.trial(training.losses(fault)), baselines, changes()).is_passed


def test_a_disturbed_trial_that_diverges_hides_nothing() -> None:
    """Losses that are not finite in the job itself are not checked; here only the disturbed run has them."""
    losses = disturbed().losses
    for end in (float("inf"), float("nan")):
        diverged = msgspec.structs.replace(disturbed(), losses=(*losses[:4], end, *losses[5:]))
        gate = check_losses(with_noise(), [*BASELINES, diverged], changes())
        assert not gate.is_passed and gate.may_be_noise


def test_a_disturbed_trial_of_fewer_steps_shows_how_far_noise_carries_too() -> None:
    """A trial's time is fixed, and not its number of steps."""
    shorter = msgspec.structs.replace(disturbed(), losses=disturbed().losses[:-3])
    assert check_losses(with_noise(), [*BASELINES, shorter], changes()).is_passed


def test_a_candidate_that_begins_otherwise_or_draws_other_samples_needs_no_such_trial() -> None:
    """Noise changes the first loss by 2e-3 at most: it was not updated yet."""
    noise = with_noise()
    other = msgspec.structs.replace(noise, losses=(1.003 * noise.losses[0], *noise.losses[1:]))
    assert not check_losses(other, BASELINES, changes()).may_be_noise
    alike = msgspec.structs.replace(noise, losses=(1.001 * noise.losses[0], *noise.losses[1:]))
    assert check_losses(alike, BASELINES, changes()).may_be_noise
    assert not check_losses(noise, BASELINES, changes(family="dataloader")).may_be_noise
    assert check_losses(noise, BASELINES, changes("rounding")).may_be_noise
    far = msgspec.structs.replace(noise, losses=(noise.losses[0], *(9 * loss for loss in noise.losses[1:])))
    gate = check_losses(far, BASELINES, changes("semantic"))
    assert not gate.is_passed and not gate.may_be_noise


@pytest.mark.parametrize(("factor", "is_passed"), [(1.005, True), (1.02, False)])
def test_the_first_gradients_are_still_held_to_those_of_the_job(factor: float, is_passed: bool) -> None:
    """The disturbance came after them, although the later norms of these runs differ by up to a tenth."""
    (norms,) = trial().gradients
    (later,) = with_noise().gradients
    mine = msgspec.structs.replace(norms, norms=(factor * norms.norms[0], *later.norms[1:]))
    candidate = msgspec.structs.replace(with_noise(), gradients=(mine,))
    assert check_gradients(candidate, [*BASELINES, disturbed()], changes()).is_passed == is_passed


def test_noise_may_change_a_rising_loss_by_a_twentieth_of_the_rise_and_later_ones_as_the_next_step_shows() -> None:
    mean, spread = np.array([1.0, 1.4, 1.5, 1.6, 1.5, 1.5]), np.array([0.0, 1e-5, 1e-3, 2e-3, 1e-3, 4e-3])
    assert _carried_noise(mean, spread) == pytest.approx([2e-3, 0.02, 0.024, 0.024, 0.048])
    assert _carried_noise(mean[::-1], spread)[1] == 2e-3  # it falls, as it does from batch to batch


def test_a_disturbed_trial_is_no_reason_to_ask_for_seeds() -> None:
    assert loss_note([*BASELINES, disturbed()]) is None
