"""Wrong gradients are refused while no loss shows them, and those of the same training pass; the truth is known."""

from __future__ import annotations

import math
import re

import msgspec
import numpy as np
import pytest
from tests.trial.training import FAULTS, Fault, changes, losses, train, trial

from flatout.records.change import Argument, Change, ChangeSet, Knob, Patch, Safety
from flatout.records.trial import GradientNorms, TrialResult
from flatout.trial.gates import check_losses
from flatout.trial.gradient_gate import check_gradients, gradient_note

WARM_UP = 1e-7  # a learning rate at which no step changes anything


def made(fault: Fault = "none", **how: object) -> TrialResult:
    trained = train(fault, **how)  # type: ignore[arg-type]
    return trial(trained.losses, gradients=trained.gradients)


def of_norms(*norms: float, **values: object) -> TrialResult:
    values = {"num_parameters": 10, "rank_spread": 0.0} | values
    return trial((), gradients=(GradientNorms(norms=norms, **values),))  # type: ignore[arg-type]


SEEDED = [made(rate=WARM_UP) for _ in range(3)]
NOISY = [made(rate=WARM_UP, float_noise=5e-4, noise_seed=seed) for seed in range(3)]
CLIPPED = [made(rate=WARM_UP, max_norm=1e-3) for _ in range(3)]
NOISY_CLIPPED = [made(rate=WARM_UP, float_noise=5e-4, noise_seed=seed, max_norm=1e-3) for seed in range(3)]
UNSEEDED = [made(rate=WARM_UP, seed=seed, resample_seed=seed) for seed in range(3)]


@pytest.mark.parametrize("safety", ["exact", "rounding"])
@pytest.mark.parametrize("baselines", [SEEDED, NOISY], ids=["deterministic", "noisy"])
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "wrong sign"])
def test_wrong_gradients_are_refused_in_the_warm_up_of_the_learning_rate(
    baselines: list[TrialResult], fault: Fault, safety: Safety
) -> None:
    candidate = made(fault, rate=WARM_UP, float_noise=5e-4, noise_seed=9)
    assert check_losses(candidate, baselines, changes(safety)).is_passed  # the hole
    gate = check_gradients(candidate, baselines, changes(safety))
    assert not gate.is_passed, gate.reason


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "wrong sign"])
def test_a_run_with_other_samples_makes_the_gate_no_more_lenient_for_other_families(fault: Fault) -> None:
    other = msgspec.structs.replace(made(rate=WARM_UP, resample_seed=7), has_other_samples=True)
    candidate = made(fault, rate=WARM_UP)
    assert check_gradients(candidate, [*SEEDED, other], changes()) == check_gradients(candidate, SEEDED, changes())
    assert gradient_note([*SEEDED, other]) == gradient_note(SEEDED)


@pytest.mark.parametrize("baselines", [CLIPPED, NOISY_CLIPPED], ids=["deterministic", "noisy"])
@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "wrong sign"])
def test_wrong_gradients_are_refused_though_the_script_clips_them(baselines: list[TrialResult], fault: Fault) -> None:
    candidate = made(fault, rate=WARM_UP, float_noise=5e-4, noise_seed=9, max_norm=1e-3)
    for safety in ("exact", "rounding"):
        gate = check_gradients(candidate, baselines, changes(safety))  # type: ignore[arg-type]
        assert not gate.is_passed, gate.reason
    if fault == "half":
        assert candidate.gradients[0].norms == pytest.approx(baselines[0].gradients[0].norms, rel=1e-3)  # the hole
        assert re.match(r"the norm of its first gradients before clipping is 0\.(5|4999) times the job's", gate.reason)


@pytest.mark.parametrize("seed", range(10))
def test_the_same_training_passes_where_it_clips(seed: int) -> None:
    for baselines in (CLIPPED, NOISY_CLIPPED):
        other = made(rate=WARM_UP, float_noise=5e-4, noise_seed=100 + seed, max_norm=1e-3)
        gate = check_gradients(other, baselines, changes())
        assert gate.is_passed and "; the norm of its gradients before clipping is 1 times the job's" in gate.reason
    unseeded = [made(rate=WARM_UP, seed=one, resample_seed=one, max_norm=1e-3) for one in (0, 1, 2, 50 + seed)]
    gate = check_gradients(unseeded[3], unseeded[:3], changes())
    assert gate.is_passed, gate.reason


def test_norms_before_clipping_are_held_against_those_that_are_known() -> None:
    def clipped(*before: float, norm: float = 1.0) -> TrialResult:
        return of_norms(*[norm] * 5, unclipped=before)

    base = [clipped(*[4.0] * 5), clipped(), clipped(math.nan, *[4.0] * 4)]
    passed = check_gradients(clipped(*[4.0] * 5), base, changes())
    assert passed.is_passed and "before clipping is 1 times the job's, the mean over 4 steps" in passed.reason
    gate = check_gradients(clipped(math.nan, *[2.0] * 4), base, changes())
    assert not gate.is_passed and "the norm of its gradients before clipping is 0.5 times" in gate.reason
    # The size that is left is held against the job's as ever: it clips no more, or to another norm.
    for norm in (4.0, 0.5):
        gate = check_gradients(clipped(*[4.0] * 5, norm=norm), base, changes())
        assert not gate.is_passed and gate.reason.startswith(f"the norm of its first gradients is {norm:g} times")
    unknown = check_gradients(clipped(), base, changes())
    assert unknown.is_passed and unknown.reason.endswith("; its value before clipping is unknown: not checked")
    never = check_gradients(clipped(2.0, *[math.nan] * 4), [base[2]] * 3, changes())
    assert never.is_passed and "no step has known gradient norms before clipping in all runs" in never.reason
    # What only the candidate clips is seen in what it leaves.
    assert check_gradients(clipped(2.0, 2.0), [clipped()] * 3, changes()).is_passed
    on = check_gradients(clipped(*[2.0] * 5), [clipped(*[4.0] * 5)], changes(), others=[clipped(), *base])
    assert not on.is_passed


@pytest.mark.parametrize("fault", ["no sync", "frozen"])
def test_ranks_that_differ_and_gradients_that_are_missing_are_refused_in_scripts_without_a_seed(fault: Fault) -> None:
    gate = check_gradients(made(fault, rate=WARM_UP, seed=20), UNSEEDED, changes())
    assert not gate.is_passed, gate.reason


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("baselines", [SEEDED, NOISY], ids=["deterministic", "noisy"])
def test_sums_in_another_order_pass(baselines: list[TrialResult], seed: int) -> None:
    gate = check_gradients(made(rate=WARM_UP, float_noise=5e-4, noise_seed=100 + seed), baselines, changes())
    assert gate.is_passed, gate.reason


@pytest.mark.parametrize("seed", range(50, 70))
def test_another_run_of_a_script_without_a_seed_passes(seed: int) -> None:
    gate = check_gradients(made(rate=WARM_UP, seed=seed, resample_seed=seed), UNSEEDED, changes())
    assert gate.is_passed, gate.reason


@pytest.mark.parametrize("seed", range(20))
def test_other_samples_pass_where_the_loader_may_draw_them(seed: int) -> None:
    other = made(rate=WARM_UP, resample_seed=seed)
    assert check_gradients(other, SEEDED, changes(family="dataloader")).is_passed
    workers = [msgspec.structs.replace(one, loader_workers=0) for one in SEEDED]
    assert check_gradients(msgspec.structs.replace(other, loader_workers=4), workers, changes()).is_passed


@pytest.mark.parametrize("factor", [0.5, 2.0])
@pytest.mark.parametrize("seed", range(5))
def test_half_and_twice_are_refused_also_where_the_loader_may_draw_other_samples(factor: float, seed: int) -> None:
    base = [of_norms(1.0, 1.02, 0.98, 0.99, 1.01)] * 3
    noise = np.random.default_rng(seed).normal(0, 0.02, 5)
    same, wrong = (of_norms(*(times * np.exp(noise))) for times in (1.0, factor))
    assert check_gradients(same, base, changes(family="dataloader")).is_passed
    assert not check_gradients(wrong, base, changes(family="dataloader")).is_passed


@pytest.mark.parametrize(
    ("safety", "factor", "is_passed"),
    [
        ("exact", 1.003, True),
        ("exact", 1.02, False),
        ("rounding", 1.05, True),
        ("rounding", 0.95, True),
        ("rounding", 1.25, False),
        ("semantic", 7.0, True),
    ],
)
def test_the_classes_have_their_bands(safety: Safety, factor: float, is_passed: bool) -> None:
    gate = check_gradients(of_norms(*[factor] * 5), [of_norms(*[1.0] * 5)] * 3, changes(safety))
    assert gate.is_passed == is_passed, gate.reason


def test_the_reason_says_by_how_much() -> None:
    base = [of_norms(4.0, 4.0)] * 3
    gate = check_gradients(of_norms(2.0, 2.0), base, changes())
    assert gate.reason == ("the norm of its first gradients is 0.5 times the job's, and 0.99 to 1.01 is allowed")
    late = check_gradients(of_norms(4.0, *[2.0] * 4), [of_norms(*[4.0] * 5)] * 3, changes())
    assert late.reason == (
        "the norm of its gradients is 0.574 times the job's, the mean over 5 steps, and 0.952 to 1.05 is allowed"
    )


@pytest.mark.parametrize(("factor", "is_passed"), [(1.1, True), (1.35, False)])
def test_later_gradients_of_a_change_that_rounds_may_differ_by_a_fifth(factor: float, is_passed: bool) -> None:
    """The first ones are the same; means of five steps then differ by 1.1^0.8 = 1.08 or by 1.35^0.8 = 1.27."""
    gate = check_gradients(of_norms(4.0, *[4.0 * factor] * 4), [of_norms(*[4.0] * 5)] * 3, changes("rounding"))
    assert gate.is_passed == is_passed, gate.reason


@pytest.mark.parametrize(("spread", "is_passed"), [(0.006, False), (0.02, True)])
def test_jobs_whose_norms_differ_by_more_than_a_per_cent_are_taken_for_runs_without_a_seed(
    spread: float, is_passed: bool
) -> None:
    """Three runs may be alike by chance where nothing fixes them; where a seed does, 15 % more is another training."""
    base = [of_norms(*[factor] * 5) for factor in (1 - spread, 1.0, 1 + spread)]
    first_differs = of_norms(*[1.15] * 5)
    assert check_gradients(first_differs, base, changes()).is_passed == is_passed


def test_half_and_twice_are_refused_in_scripts_whose_norms_differ_by_a_few_per_cent_from_run_to_run() -> None:
    random = np.random.default_rng(3)
    for _ in range(50):
        own, *others = np.exp(random.normal(0, 0.05, 4) + random.normal(0, 0.02, (5, 4))).T
        base = [of_norms(*norms) for norms in others]
        for factor in (0.5, 2.0):
            assert not check_gradients(of_norms(*(factor * own)), base, changes()).is_passed


def test_a_rank_whose_gradients_are_not_reduced_is_told_also_where_clipping_hides_their_size() -> None:
    base = [of_norms(1.0, 1.0, rank_spread=0.0)] * 3
    gate = check_gradients(of_norms(1.0, 1.0, rank_spread=0.2), base, changes("rounding"))
    assert not gate.is_passed and gate.reason == (
        "the norm of a parameter's gradient differs by 20 % between ranks, and they agree in the job: not all gradients"
        " are reduced"
    )
    # Unlike GPUs, or norms taken in TF32, whose numbers are 2^-11 apart; but not batches that are much alike.
    assert check_gradients(of_norms(1.0, 1.0, rank_spread=2**-11), base, changes()).is_passed
    assert not check_gradients(of_norms(1.0, 1.0, rank_spread=0.002), base, changes()).is_passed


@pytest.mark.parametrize(("num_steps", "num_ranks"), [(1, 2), (5, 4)])
def test_unlike_gpus_that_differ_somewhat_more_than_in_three_runs_pass(num_steps: int, num_ranks: int) -> None:
    """Each rank takes the norm of each step with a relative error of 0.1 % of its own.

    Of four such runs each is as likely as the others to show the largest difference, so a limit at the largest of
    three baselines would refuse one in four. With two ranks and one step, one in a hundred is 3.3 times as large.
    """
    errors = np.random.default_rng(0).normal(0, 1e-3, (400, 4, num_steps, num_ranks))  # candidates x runs x ...
    spreads = np.ptp(errors, axis=3).max(axis=2)
    ratios = spreads[:, 0] / spreads[:, 1:].max(axis=1)
    assert (ratios > 1).mean() == pytest.approx(0.25, abs=0.05)
    if num_steps == 1:
        assert (ratios > 10 / 3).sum() >= 4
    unreduced = made("no sync", rate=WARM_UP).gradients[0].rank_spread
    for own, *others in spreads.tolist():
        base = [of_norms(1.0, 1.0, rank_spread=spread) for spread in others]
        gate = check_gradients(of_norms(1.0, 1.0, rank_spread=own), base, changes())
        assert gate.is_passed, gate.reason
        assert not check_gradients(of_norms(1.0, 1.0, rank_spread=unreduced), base, changes()).is_passed


def share_beyond(times: float, least: float, first: np.ndarray) -> float:
    """The share of candidates (first column) that are farther than that from the mean of the other runs."""
    farthest = np.abs(first[:, 1:] - first[:, 1:].mean(axis=1, keepdims=True)).max(axis=1)
    return float((np.abs(first[:, 0] - first[:, 1:].mean(axis=1)) > np.maximum(least, times * farthest)).mean())


def test_first_gradients_that_differ_as_those_of_three_baselines_do_are_seldom_refused() -> None:
    """Norms of the first step with a relative standard deviation of 0.45 %, where 1 % is always allowed."""
    logs = np.random.default_rng(1).normal(0, 0.0045, (400, 4))
    logs = logs[np.abs(logs[:, 1:] - logs[:, 1:].mean(axis=1, keepdims=True)).max(axis=1) < 0.0099]  # else unseeded
    refused = 0
    for own, *others in np.exp(logs).tolist():
        gate = check_gradients(of_norms(own), [of_norms(norm) for norm in others], changes())
        refused += not gate.is_passed and "first gradients" in gate.reason
    assert share_beyond(1.0, 0.01, logs) > 0.05, "a limit at the farthest of them would refuse many"
    assert refused <= 0.02 * len(logs)


def test_other_samples_whose_norms_differ_from_step_to_step_are_seldom_refused_and_half_of_them_is() -> None:
    """Steps differ by 20 %, so means of five by 9 %, and two such means by 13 %: one pair in 12 by more than 25 %."""
    draws = np.exp(np.random.default_rng(2).normal(0, 0.2, (400, 2, 5)))
    means = np.log(draws).mean(axis=2)
    assert (np.abs(means[:, 0] - means[:, 1]) > math.log(1.25)).sum() >= 32, "a band of 25 % alone would refuse these"

    def num_refused(factor: float) -> int:
        return sum(
            not check_gradients(of_norms(*own), [of_norms(*base)] * 3, changes(family="dataloader")).is_passed
            for own, base in (draws * [[[factor], [1.0]]]).tolist()
        )

    assert num_refused(1.0) <= 24
    assert num_refused(0.5) >= 360


def test_ranks_that_train_apart_in_the_job_may_do_so_with_a_change() -> None:
    for spreads in ((0.2, 0.1, 0.15), (0.02, 0.015, 0.018)):
        base = [of_norms(1.0, 1.0, rank_spread=spread) for spread in spreads]
        assert check_gradients(of_norms(1.0, 1.0, rank_spread=0.9), base, changes()).is_passed
    # Whether they differ by less than a per cent or do not at all, they agree: 8 % more is no chance.
    base = [of_norms(1.0, 1.0, rank_spread=spread) for spread in (0.005, 0.004, 0.003)]
    assert not check_gradients(of_norms(1.0, 1.0, rank_spread=0.08), base, changes()).is_passed


def test_a_parameter_that_is_left_out_is_told_also_where_its_share_of_the_norm_is_small() -> None:
    base = [of_norms(1.0, 1.1, faint=(7,)), of_norms(1.2, 0.9), of_norms(0.9, 1.3)]
    gate = check_gradients(of_norms(1.0, 1.1, without=(3, 5), faint=(3, 5)), base, changes("rounding"))
    assert not gate.is_passed and gate.reason == (
        "2 of 10 parameters get no gradient (the first of them is number 4 of the optimizer), but do in the"
        " unchanged job"
    )
    # One that has next to none in the job may have none at all: a bias before a batch norm.
    assert check_gradients(of_norms(1.0, 1.1, without=(7,), faint=(7,)), base, changes()).is_passed


def test_gradients_that_are_not_finite_are_refused_where_the_jobs_are() -> None:
    gate = check_gradients(of_norms(1.0, math.inf), [of_norms(1.0, 1.0)] * 3, changes("rounding"))
    assert not gate.is_passed
    assert gate.reason == "the gradients of its step 2 are not finite, but those of the unchanged job are"
    assert check_gradients(of_norms(1.0, math.inf), [of_norms(1.0, math.inf)] * 3, changes()).is_passed


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    gate = check_gradients(of_norms(1.0, num_parameters=9), [of_norms(1.0)] * 3, changes())
    assert not gate.is_passed and gate.reason == "the optimizer has 9 parameters, and 10 in the job"


def test_each_optimizer_is_held_against_its_own() -> None:
    """A small one beside a large one."""

    def both(large: float, small: float) -> TrialResult:
        return trial((), gradients=of_norms(*[large] * 5).gradients + of_norms(*[small] * 5).gradients)

    gate = check_gradients(both(100.0, 0.05), [both(100.0, 0.1)] * 3, changes())
    assert not gate.is_passed and gate.reason.startswith("optimizer 2: the norm of its first gradients is 0.5 times")
    # One that is not seen in each trial, as it steps late, is not compared.
    assert check_gradients(of_norms(*[100.0] * 5), [both(100.0, 0.1)] * 3, changes()).is_passed


def test_an_optimizer_of_which_nothing_is_known_keeps_no_other_from_being_checked() -> None:
    unknown = GradientNorms(num_parameters=None, norms=(math.nan,) * 5)

    def beside(norm: float) -> TrialResult:
        return trial((), gradients=(unknown, *of_norms(*[norm] * 5).gradients))

    gate = check_gradients(beside(0.5), [beside(1.0)] * 3, changes())
    assert not gate.is_passed and gate.reason.startswith("optimizer 2: the norm of its first gradients is 0.5 times")
    assert check_gradients(beside(1.0), [beside(1.0)] * 3, changes()).is_passed
    note = gradient_note([beside(1.0)] * 3)
    assert note is not None and note.startswith("the gradients of the job's optimizer 1 are unknown")
    known = trial((), gradients=of_norms(1.0, 1.0).gradients * 2)
    assert check_gradients(known, [beside(1.0)] * 3, changes()).is_passed


def test_what_is_not_known_is_not_checked_and_says_so() -> None:
    unknown = trial(losses())
    for candidate, baselines in ((unknown, [of_norms(1.0)]), (of_norms(1.0), [unknown])):
        gate = check_gradients(candidate, baselines, changes())
        assert gate.is_passed and "are unknown" in gate.reason
    never = check_gradients(of_norms(math.nan, 1.0), [of_norms(1.0, math.nan)] * 3, changes())
    assert never.is_passed and "no step has known gradient norms in all runs" in never.reason
    # Steps that a GradScaler left out in one of them.
    assert not check_gradients(of_norms(math.nan, 0.5), [of_norms(1.0, 1.0)] * 3, changes()).is_passed
    note = gradient_note([unknown] * 3)
    assert note == "the job's gradients are unknown: whether changes alter them is not checked"


@pytest.mark.parametrize(("hook", "is_passed"), [("bf16", False), ("powersgd", True), ("topk", True)])
def test_compression_that_sends_the_rest_later_is_only_held_to_ranks_that_agree(hook: str, is_passed: bool) -> None:
    knob = Knob(name="ddp-compression", family="ddp", summary="", safety="rounding", doc="", source="")
    patch = Patch(name="ddp_hook", parameters={"hook": hook})
    compressed = ChangeSet(changes=(Change(name=hook, knob=knob, patch=patch),))
    base = [of_norms(1.0, 1.0)] * 3
    assert check_gradients(of_norms(1.0, 0.3, without=(2,)), base, compressed).is_passed == is_passed
    assert not check_gradients(of_norms(1.0, 0.3, rank_spread=0.5), base, compressed).is_passed


def test_few_trials_of_what_is_on_are_judged_by_what_the_job_itself_differs_by() -> None:
    random = np.random.default_rng(0)
    runs = [of_norms(*np.exp(random.normal(0, 0.1) + random.normal(0, 0.02, 5))) for _ in range(9)]
    on, jobs = runs[:1], runs[4:]
    other = of_norms(*[1.35] * 5)
    assert not check_gradients(other, on, changes()).is_passed
    assert check_gradients(other, on, changes(), others=jobs).is_passed


def test_a_job_that_clips_or_differs_from_run_to_run_is_told_what_the_gate_does_not_see() -> None:
    assert gradient_note(SEEDED) is None and gradient_note(NOISY) is None
    clipped = gradient_note([of_norms(*[1.0] * 5)] * 3)
    assert clipped is not None and clipped.startswith("the job's gradients have the norm 1 in each of its first steps")
    assert gradient_note(CLIPPED) is None and gradient_note(NOISY_CLIPPED) is None  # their norms before are known
    for unclipped in ((), (math.nan,) * 5):
        untold = gradient_note([of_norms(*[1.0] * 5, unclipped=unclipped)] * 3)
        assert untold is not None and "the norm before clipping is unknown" in untold
    differing = [of_norms(*[1.0] * 3, unclipped=(norm, norm * 1.1, norm)) for norm in (1.0, 1.5, 0.7)]
    assert "only above a factor of" in (gradient_note(differing) or "")
    wild = gradient_note([of_norms(*[norm, norm * 1.1, norm]) for norm in (1.0, 1.5, 0.7)])
    assert wild is not None and "only above a factor of" in wild


@pytest.mark.parametrize(
    ("norms", "is_told"),
    [
        ((1.0, 1.0), False),
        ((1.0, 1.0, 1.0), True),
        ((1.0, 1.0005, 1.0), True),  # as clipping leaves them in TF32, whose numbers are 2^-11 apart
        ((1.0, 1.002, 1.0), False),
    ],
)
def test_norms_that_are_alike_in_three_steps_are_clipped_ones(norms: tuple[float, ...], is_told: bool) -> None:
    """By chance, the norms of two steps can agree to a thousandth, but not those of three."""
    assert (gradient_note([of_norms(*norms)] * 3) is not None) == is_told


@pytest.mark.parametrize("spread", [0.01, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3])
def test_a_note_is_written_wherever_half_the_gradients_would_pass(spread: float) -> None:
    base = [of_norms(*[norm] * 5) for norm in (math.exp(-spread), 1.0, math.exp(spread))]
    gate = check_gradients(of_norms(*[0.5] * 5), base, changes())
    assert (gradient_note(base) is not None) >= gate.is_passed
    assert gradient_note(base) is None or spread > 0.05, "where a tenth more is seen, nothing need be said"


def test_parameters_that_are_used_by_chance_may_be_others_in_each_run() -> None:
    """A router without a seed: of 64 experts, other ones are never chosen in each run, nor in the candidate."""

    def routed(unused: set[int]) -> TrialResult:
        places = tuple(sorted(unused))
        return of_norms(1.0, 1.0, num_parameters=64, without=places, absent=places, faint=places)

    base = [routed({1, 2, 3}), routed({3, 4, 5}), routed({5, 6, 7})]
    assert check_gradients(routed({8, 9, 10}), base, changes()).is_passed
    assert check_gradients(routed({8}), base, changes(), others=[routed({3})] * 3).is_passed
    assert not check_gradients(routed(set(range(8, 20))), base, changes()).is_passed  # more than chance takes
    # The same ones in each run, as before a weight that begins at 0: one more is no chance.
    gate = check_gradients(routed({1, 2, 3, 8}), [routed({1, 2, 3})] * 3, changes())
    assert not gate.is_passed and "1 of 64 parameters get no gradient (the first of them is number 9" in gate.reason


def test_other_samples_may_choose_other_experts_of_a_seeded_job() -> None:
    seldom = GradientNorms(num_parameters=64, norms=(1.0,) * 5, absent=(1, 2), faint=(1, 2), rank_spread=0.0)
    base = [trial((), gradients=(seldom,))] * 3
    candidate = trial((), gradients=(msgspec.structs.replace(seldom, without=(8,), absent=(1, 8), faint=(1, 8)),))
    assert check_gradients(candidate, base, changes(family="dataloader")).is_passed
    assert not check_gradients(candidate, base, changes()).is_passed


def test_an_argument_that_shards_otherwise_may_give_the_optimizer_other_parameters() -> None:
    base = [of_norms(1.0, 1.0)] * 3
    knob = Knob(name="shard", family="arguments", summary="how it is sharded", safety="exact", doc="", source="")
    change = Change(name="shard=full", knob=knob, argument=Argument(words=(("--shard=full",),)))
    flattened = of_norms(0.7, 0.7, num_parameters=3, rank_spread=0.5)
    gate = check_gradients(flattened, base, ChangeSet(changes=(change,)))
    assert gate.is_passed and "not compared" in gate.reason
    assert not check_gradients(flattened, base, changes()).is_passed


def test_norms_of_runs_that_diverge_by_more_than_a_number_holds_are_no_error() -> None:
    base = [of_norms(1e-150, 1e-150), of_norms(1e150, 1e150)]
    gate = check_gradients(of_norms(1e150, 1e150), base, changes())
    assert not gate.is_passed and "cannot be judged: runs of the unchanged job differ so much that inf" in gate.reason
    assert "cannot be judged" in (gradient_note(base) or "")


@pytest.mark.parametrize(("spread", "is_judged"), [(0.395, True), (0.402, False)])
def test_a_gate_that_would_pass_ten_times_the_gradients_refuses_to_judge(spread: float, is_judged: bool) -> None:
    """Three runs with these norms deviate by `spread`; a new run is 5 * (4 / 3) ** 0.5 of it off."""
    base = [of_norms(*[norm] * 5) for norm in (math.exp(-spread), 1.0, math.exp(spread))]
    gate = check_gradients(of_norms(*[1.0] * 5), base, changes())
    assert gate.is_passed == is_judged, gate.reason
    assert ("cannot be judged" in gate.reason) != is_judged
    assert ("cannot be judged" in (gradient_note(base) or "")) != is_judged


def test_a_scaler_that_skips_a_step_less_has_other_weights_behind_the_next_ones() -> None:
    skipped = math.nan
    base = [of_norms(skipped, skipped, 1.0, 0.9, 0.8)] * 3
    assert check_gradients(of_norms(skipped, 1.0, 0.9, 0.8, 0.72), base, changes()).is_passed
    assert not check_gradients(of_norms(skipped, skipped, 0.9, 0.8, 0.72), base, changes()).is_passed
    assert not check_gradients(of_norms(skipped, 0.5, 0.45, 0.4, 0.36), base, changes()).is_passed
