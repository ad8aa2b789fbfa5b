"""Wrong gradients are refused, and what only adds up in another order is not; the truth is known by construction."""

from __future__ import annotations

import math

import pytest
from tests.trial.training import FAULTS, Fault, changes, losses, trial

from flatout.records.change import Safety
from flatout.records.trial import TrialResult
from flatout.trial.gates import check_losses, check_memory

DETERMINISTIC = [trial(losses()) for _ in range(3)]
# What bf16 sums in another order differ by, from run to run.
NOISY = [trial(losses(float_noise=5e-4, noise_seed=seed)) for seed in range(3)]
RESAMPLED = [trial(losses(resample_seed=seed)) for seed in range(3)]  # a script without a seed


def test_the_very_same_losses_pass() -> None:
    gate = check_losses(trial(losses()), DETERMINISTIC, changes())
    assert gate.is_passed and gate.reason == "the losses of 30 steps are bitwise the same"


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("baselines", [DETERMINISTIC, NOISY], ids=["deterministic", "noisy"])
def test_sums_in_another_order_pass(baselines: list[TrialResult], seed: int) -> None:
    candidate = trial(losses(float_noise=5e-4, noise_seed=100 + seed))
    gate = check_losses(candidate, baselines, changes())
    assert gate.is_passed, gate.reason


@pytest.mark.parametrize(
    ("fault", "safety"),
    # Rounding is held to the mean loss alone, which on so easy a problem each rank lowers as well by itself.
    [(fault, "exact") for fault in FAULTS]
    + [(fault, "rounding") for fault in FAULTS if fault not in ("no sync", "one rank left out")],
)
@pytest.mark.parametrize("baselines", [DETERMINISTIC, NOISY], ids=["deterministic", "noisy"])
def test_wrong_gradients_are_refused(baselines: list[TrialResult], fault: Fault, safety: Safety) -> None:
    """Ranks that are not synchronised train as well as before on a convex problem, but not the same."""
    gate = check_losses(trial(losses(fault)), baselines, changes(safety))
    assert not gate.is_passed, gate.reason


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_gradients_that_also_add_up_in_another_order_are_refused(fault: Fault) -> None:
    gate = check_losses(trial(losses(fault, float_noise=5e-4, noise_seed=9)), NOISY, changes())
    assert not gate.is_passed
    assert gate.reason.startswith("the first 5 losses differ by")


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_refused(value: float) -> None:
    broken = (*losses()[:10], value, *losses()[11:])
    gate = check_losses(trial(broken), DETERMINISTIC, changes("semantic"))
    assert not gate.is_passed and gate.reason == "its loss is not finite, and the baseline's is"


@pytest.mark.parametrize("at", [0, 1, 10, 29])
@pytest.mark.parametrize("safety", ["exact", "rounding", "semantic"])
def test_a_loss_that_is_no_number_is_refused_from_whichever_step_on(at: int, safety: Safety) -> None:
    gate = check_losses(trial((*losses()[:at], *(math.nan,) * (30 - at))), DETERMINISTIC, changes(safety))
    assert not gate.is_passed


def test_losses_that_the_recorder_leaves_out_of_long_trials_are_no_fault() -> None:
    known = losses(num_steps=600)
    thinned = tuple(loss if step < 512 or step % 8 == 0 else math.nan for step, loss in enumerate(known))
    assert check_losses(trial(thinned), [trial(known)] * 3, changes()).is_passed
    assert check_losses(trial(known), [trial(thinned)] * 3, changes()).is_passed


def test_a_trial_that_made_fewer_steps_is_compared_as_far_as_it_went() -> None:
    assert check_losses(trial(losses(num_steps=10)), DETERMINISTIC, changes()).is_passed
    assert check_losses(trial(losses(num_steps=90)), DETERMINISTIC, changes()).is_passed


def test_where_the_baseline_is_not_finite_itself_nothing_can_be_said() -> None:
    broken = trial((1.0, math.inf, math.inf))
    for candidate in (broken, trial((1.0, 2.0, 3.0))):
        gate = check_losses(candidate, [broken, trial((1.0, 5.0, math.inf))], changes())
        assert gate.is_passed


def test_a_job_without_losses_is_not_checked_and_says_so() -> None:
    for unknown in ((), (math.nan, math.nan)):
        gate = check_losses(trial(losses()), [trial(unknown)] * 3, changes())
        assert gate.is_passed and "not checked" in gate.reason


def test_a_candidate_that_shows_no_loss_is_refused_where_the_baseline_does() -> None:
    assert not check_losses(trial(()), DETERMINISTIC, changes()).is_passed


@pytest.mark.parametrize("seed", range(10))
def test_another_sample_order_passes_for_the_dataloader_within_the_spread_of_baselines(seed: int) -> None:
    candidate = trial(losses(resample_seed=50 + seed))
    gate = check_losses(candidate, RESAMPLED, changes(family="dataloader"))
    assert gate.is_passed, gate.reason


def test_another_sample_order_is_no_float_noise_for_other_families() -> None:
    assert not check_losses(trial(losses(resample_seed=50)), DETERMINISTIC, changes(family="ddp")).is_passed


@pytest.mark.parametrize(
    ("baselines", "fault"),
    # Where baselines themselves differ by half of a loss, a training that stands still cannot be told in 30 steps.
    [(DETERMINISTIC, "frozen"), (DETERMINISTIC, "wrong sign"), (RESAMPLED, "wrong sign")],
    ids=["deterministic-frozen", "deterministic-sign", "resampled-sign"],
)
def test_a_dataloader_change_that_breaks_the_training_is_refused(baselines: list[TrialResult], fault: Fault) -> None:
    gate = check_losses(trial(losses(fault, resample_seed=60)), baselines, changes(family="dataloader"))
    assert not gate.is_passed, gate.reason


def test_semantic_changes_may_change_what_is_trained() -> None:
    assert check_losses(trial(losses("half")), DETERMINISTIC, changes("semantic")).is_passed


def test_memory_may_grow_by_a_tenth_of_the_highest_baseline() -> None:
    baselines = [trial((), memory=memory) for memory in (900, 1000, 950)]
    assert check_memory(trial((), memory=1100), baselines).is_passed
    refused = check_memory(trial((), memory=1101), baselines)
    assert not refused.is_passed and refused.reason.startswith("peak memory 1.08 KiB against 1,000 B")


def test_memory_that_is_not_known_is_not_checked() -> None:
    assert check_memory(trial((), memory=5), [trial(())]).is_passed
    assert check_memory(trial(()), [trial((), memory=5)]).is_passed
