"""Wrong gradients are refused, and what only adds up in another order is not; the truth is known by construction."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from tests.trial.training import FAULTS, Fault, changes, losses, trial

from flatout.records.change import Safety
from flatout.records.trial import TrialResult
from flatout.trial import gates
from flatout.trial.gates import check_losses, check_memory, loss_note

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
    # Rounding is held to a band of the curve; on so easy a problem three of four ranks lower the loss as well as four.
    [(fault, "exact") for fault in FAULTS] + [(fault, "rounding") for fault in FAULTS if fault != "one rank left out"],
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


def test_a_training_that_stands_still_is_refused_where_few_steps_would_lower_the_loss_by_half_a_per_cent() -> None:
    """The mean of five such losses differs by no more than an exact change may: single ones do."""
    trained = losses(rate=3e-4, num_steps=5)
    frozen = losses("frozen", rate=3e-4, num_steps=5)
    later = [still / moved - 1 for still, moved in zip(frozen, trained, strict=True)]
    assert later[0] == 0
    assert 0.002 < max(later) < 0.006
    assert np.mean(later) < 0.005
    gate = check_losses(trial(frozen), [trial(trained)] * 3, changes())
    assert not gate.is_passed and gate.reason.startswith("the first 5 losses differ")


@pytest.mark.parametrize(("factor", "is_passed"), [(1.003, True), (1.01, False)])
def test_an_exact_change_may_move_the_mean_loss_by_half_a_per_cent_after_the_first_steps(
    factor: float, is_passed: bool
) -> None:
    """Both are bitwise the same for five steps; then float noise has grown, or something else is trained."""
    same, later = losses()[:5], losses()[5:]
    gate = check_losses(trial((*same, *(factor * loss for loss in later))), DETERMINISTIC, changes())
    assert gate.is_passed == is_passed, gate.reason


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1.1e100, -1e300])
def test_a_loss_that_is_not_finite_is_refused(value: float) -> None:
    broken = (*losses()[:10], value, *losses()[11:])
    gate = check_losses(trial(broken), DETERMINISTIC, changes("semantic"))
    assert not gate.is_passed and gate.reason == "its loss is not finite, but the baseline's is"


def test_losses_up_to_ten_to_the_hundredth_are_compared() -> None:
    large = [trial([1e100 * (1 - run / 1000)] * 30) for run in range(3)]
    assert check_losses(trial([1e100] * 30), large, changes("semantic")).is_passed
    assert not check_losses(trial([-1e100] * 30), large, changes("semantic")).is_passed


@pytest.mark.parametrize("at", [0, 1, 10, 29])
@pytest.mark.parametrize("safety", ["exact", "rounding", "semantic"])
def test_a_loss_that_is_no_number_is_refused_from_whichever_step_on(at: int, safety: Safety) -> None:
    gate = check_losses(trial((*losses()[:at], *(math.nan,) * (30 - at))), DETERMINISTIC, changes(safety))
    assert not gate.is_passed


def test_a_loss_that_is_no_number_after_a_few_hundred_steps_is_refused() -> None:
    """The recorder keeps each of the first 512 losses, so an absent one was not a number."""
    known = losses(num_steps=600)
    gate = check_losses(trial((*known[:300], *(math.nan,) * 300)), [trial(known)] * 3, changes("semantic"))
    assert not gate.is_passed and gate.reason.startswith("the loss of its step 301 is not a number")


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


def without_first(found: tuple[float, ...]) -> tuple[float, ...]:
    """As the recorder leaves it of a job that accumulates gradients."""
    return (math.nan, *found[1:])


@pytest.mark.parametrize("fault", ["none", *FAULTS])
def test_a_first_loss_that_is_not_known_does_not_switch_the_gate_off(fault: Fault) -> None:
    baselines = [trial(without_first(losses())) for _ in range(3)]
    assert loss_note(baselines) is None
    gate = check_losses(trial(without_first(losses(fault))), baselines, changes())
    assert gate.is_passed == (fault == "none")
    assert "of 29 steps are bitwise the same" in gate.reason or "differ by" in gate.reason
    # A change by which the recorder knows the first loss, too.
    assert check_losses(trial(losses(fault)), baselines, changes()).is_passed == (fault == "none")


def test_a_candidate_whose_loss_is_no_number_where_only_the_first_may_be_unknown_is_refused() -> None:
    baselines = [trial(without_first(losses())) for _ in range(3)]
    broken = (math.nan, *losses()[1:4], *[math.nan] * 26)
    gate = check_losses(trial(broken), baselines, changes())
    assert not gate.is_passed and gate.reason == "the loss of its step 5 is not a number, but the baseline's is"
    never = check_losses(trial((math.nan,) * 30), baselines, changes())
    assert not never.is_passed and never.reason == "the candidate reports no loss, but the baseline does"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_job_whose_own_loss_is_not_finite_is_told(value: float) -> None:
    baselines = [trial((*losses()[:at], *[value] * (30 - at))) for at in (7, 5, 9)]
    assert loss_note(baselines) == (
        "the job's own loss is not finite at step 6 and after: how changes affect it is not checked there"
    )


def test_a_job_whose_runs_differ_much_is_told_how_little_the_gate_sees() -> None:
    assert loss_note(DETERMINISTIC) is None and loss_note(NOISY) is None and loss_note([trial(())]) is not None
    wild = [trial(tuple(factor * loss for loss in losses())) for factor in (0.95, 1.0, 1.05)]
    assert re.match(r"mean losses of the unchanged job differ by 5.0 % .* only above 60 %", loss_note(wild) or "")


@pytest.mark.parametrize("safety", ["exact", "rounding", "semantic"])
@pytest.mark.parametrize(("spread", "is_judged"), [(0.245, True), (0.255, False), (1.8, False)])
def test_a_gate_refuses_to_judge_by_runs_that_differ_by_more_than_a_quarter(
    spread: float, is_judged: bool, safety: Safety
) -> None:
    """Runs that resume from each other's checkpoints differ by far more; `spread` is the means' standard deviation."""
    baselines = [trial(tuple(factor * loss for loss in losses())) for factor in (1 - spread, 1.0, 1 + spread)]
    candidate = trial(tuple(1.0001 * loss for loss in losses()))
    gate = check_losses(candidate, baselines, changes(safety))
    assert gate.is_passed == is_judged
    assert ("cannot be judged" in gate.reason) != is_judged
    note = loss_note(baselines) or ""
    assert ("only above 90 %" in note) == is_judged and ("cannot be judged" in note) != is_judged
    same = check_losses(baselines[1], baselines, changes(safety))
    assert same.is_passed  # bitwise the same is no matter of noise


@pytest.mark.filterwarnings("error")
def test_two_runs_show_that_they_differ_too_much_and_one_does_not() -> None:
    baselines = [trial(tuple(factor * loss for loss in losses())) for factor in (0.7, 1.3)]
    candidate = trial(tuple(1.0001 * loss for loss in losses()))
    assert "cannot be judged" in check_losses(candidate, baselines, changes("rounding")).reason
    assert check_losses(candidate, [trial(losses())], changes("rounding")).is_passed


@pytest.mark.parametrize(
    ("factor", "is_passed"), [(0.0, False), (0.09, False), (0.11, True), (1.89, True), (1.91, False)]
)
def test_no_spread_lets_a_loss_pass_that_is_nine_tenths_off(factor: float, is_passed: bool) -> None:
    """Twelve times this spread would be 240 %."""
    baselines = [trial(tuple(scale * loss for loss in losses())) for scale in (0.8, 1.0, 1.2)]
    gate = check_losses(trial(tuple(factor * loss for loss in losses())), baselines, changes("rounding"))
    assert gate.is_passed == is_passed, gate.reason


@pytest.mark.parametrize(("spread", "passes"), [(0.002, False), (0.012, False), (0.03, True), (0.06, True)])
def test_a_note_is_written_wherever_a_loss_that_is_a_fifth_too_high_passes(spread: float, passes: bool) -> None:
    """Baselines differ by `spread` in their means; the candidate's loss is 22 % higher, as of a broken training."""
    baselines = [trial(tuple(factor * loss for loss in losses())) for factor in (1 - spread, 1.0, 1 + spread)]
    gate = check_losses(trial(tuple(1.22 * loss for loss in losses())), baselines, changes("rounding"))
    assert gate.is_passed == passes
    assert (loss_note(baselines) is not None) == passes


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
    [(DETERMINISTIC, "frozen"), (DETERMINISTIC, "wrong sign"), (RESAMPLED, "frozen"), (RESAMPLED, "wrong sign")],
    ids=["deterministic-frozen", "deterministic-sign", "resampled-frozen", "resampled-sign"],
)
def test_a_dataloader_change_that_breaks_the_training_is_refused(baselines: list[TrialResult], fault: Fault) -> None:
    gate = check_losses(trial(losses(fault, resample_seed=60)), baselines, changes(family="dataloader"))
    assert not gate.is_passed, gate.reason


@pytest.mark.parametrize(("workers", "is_passed"), [(4, True), (0, False), (None, False)])
def test_other_samples_pass_where_an_argument_of_the_script_gave_its_loader_other_workers(
    workers: int | None, is_passed: bool
) -> None:
    baselines = [msgspec.structs.replace(one, loader_workers=0) for one in DETERMINISTIC]
    candidate = msgspec.structs.replace(trial(losses(resample_seed=50)), loader_workers=workers)
    assert check_losses(candidate, baselines, changes(family="arguments")).is_passed == is_passed
    broken = msgspec.structs.replace(trial(losses("wrong sign", resample_seed=50)), loader_workers=workers)
    assert not check_losses(broken, baselines, changes(family="arguments")).is_passed


@pytest.mark.parametrize("fault", ["half", "twice", "frozen", "wrong sign"])
@pytest.mark.parametrize("family", ["ddp", "dataloader"])
def test_a_script_without_a_seed_hides_no_broken_training(fault: Fault, family: str) -> None:
    """Its single losses differ by half of their size from run to run, their means by a few per cent."""
    baselines = [trial(losses(resample_seed=seed)) for seed in range(8)]  # as many as when pairs are run
    gate = check_losses(trial(losses(fault, resample_seed=60)), baselines, changes(family=family))
    assert not gate.is_passed and gate.reason.startswith("the mean loss of 30 steps differs by")


def with_other_samples(seed: int) -> TrialResult:
    return msgspec.structs.replace(trial(losses(resample_seed=seed)), has_other_samples=True)


def test_one_run_with_other_samples_shows_how_far_losses_differ_by_the_samples_drawn() -> None:
    """At the edge of divergence, means differ by more than the noise of the batches of one run says."""
    rate = 0.7
    seeded = [trial(losses(rate=rate))] * 2
    other = msgspec.structs.replace(trial(losses(resample_seed=2, rate=rate)), has_other_samples=True)
    candidates = [trial(losses(resample_seed=50 + seed, rate=rate)) for seed in range(20)]

    def num_passed(baselines: list[TrialResult]) -> int:
        return sum(check_losses(one, baselines, changes(family="dataloader")).is_passed for one in candidates)

    assert num_passed(seeded) < 15 and num_passed([*seeded, other]) == 20


def test_a_run_with_other_samples_makes_the_gate_no_more_lenient_for_other_families() -> None:
    baselines = [*DETERMINISTIC, with_other_samples(1)]
    resampled = trial(losses(resample_seed=50))
    assert check_losses(resampled, baselines, changes(family="dataloader")).is_passed
    for fault in FAULTS:
        alone = check_losses(trial(losses(fault)), DETERMINISTIC, changes())
        assert check_losses(trial(losses(fault)), baselines, changes()) == alone
    assert not check_losses(resampled, baselines, changes()).is_passed
    assert loss_note(baselines) == loss_note(DETERMINISTIC)


@pytest.mark.parametrize("fault", ["half", "frozen", "wrong sign"])
def test_a_run_with_other_samples_hides_no_loader_that_breaks_the_training(fault: Fault) -> None:
    broken = trial(losses(fault, resample_seed=60))
    assert not check_losses(broken, [*DETERMINISTIC, with_other_samples(1)], changes(family="dataloader")).is_passed


def runs_that_differ_as_a_whole(num_baselines: int, count: int) -> Iterator[tuple[TrialResult, list[TrialResult]]]:
    """A candidate and its baselines, all of the same training: each run has one factor, with a deviation of 10 %.

    A script without a seed also begins elsewhere each time: all losses of a run are higher or lower together.
    """
    draw = np.random.default_rng(num_baselines)
    curve = np.array(losses())
    for factors in np.exp(draw.normal(0, 0.1, (count, num_baselines + 1))):
        runs = [trial(tuple((factor * curve).tolist())) for factor in factors]
        yield runs[0], runs[1:]


def num_refused(num_baselines: int, family: str) -> tuple[int, int]:
    """Count the candidates out of 200 that are refused by the mean loss, and by the first losses."""
    reasons = [
        gate.reason
        for candidate, baselines in runs_that_differ_as_a_whole(num_baselines, 200)
        if not (gate := check_losses(candidate, baselines, changes(family=family))).is_passed
    ]
    by_mean = sum(reason.startswith("the mean loss") for reason in reasons)
    return by_mean, len(reasons) - by_mean


@pytest.mark.parametrize("num_baselines", [3, 4, 10])
@pytest.mark.parametrize("family", ["ddp", "dataloader"])
def test_runs_that_differ_as_a_whole_are_seldom_refused(num_baselines: int, family: str) -> None:
    """With three baselines, fewer than 1 % of normal runs are more than twelve times as far away as the farthest one.

    The probability of being k times as far from the mean of three runs as the farthest of them is
    1 - d / sqrt(1 + d^2), with d = k c / sqrt(4/3) and c between 0.71 and 0.82, depending on how the three are spaced:
    0.7 to 0.9 % for k = 12, 6 to 7 % for k = 4, 42 to 48 % for k = 1. More baselines make it rarer.
    """
    by_mean, by_first = num_refused(num_baselines, family)
    assert by_mean <= 4
    # An exact change is also held to four times the farthest in its first losses: about 13 of 200 with three baselines.
    assert by_first <= (20 if family == "ddp" and num_baselines < 10 else 0)


@pytest.mark.parametrize("family", ["ddp", "dataloader"])
def test_a_gate_twelve_times_too_strict_would_refuse_many_of_them(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated runs can show it: with a factor for each step instead, their means agreed and any gate passed."""
    monkeypatch.setattr(gates, "MEAN_SPREADS", 1.0)
    by_mean, _ = num_refused(3, family)
    assert by_mean >= 25


def bent(by: float, *, num_steps: int = 40) -> tuple[TrialResult, TrialResult]:
    """A baseline, and a curve of the same mean: as much below it at first as above it at the end."""
    known = np.array(losses(num_steps=num_steps))
    return trial(tuple(known)), trial(tuple(known + by * known.mean() * np.linspace(-1, 1, num_steps)))


def test_a_curve_that_diverges_with_the_same_mean_loss_is_refused() -> None:
    baseline, candidate = bent(0.05)
    assert np.mean(candidate.losses) == pytest.approx(np.mean(baseline.losses), rel=1e-9)
    gate = check_losses(candidate, [baseline] * 3, changes("rounding"))
    assert not gate.is_passed
    assert re.fullmatch(
        r"the mean loss of steps \d+ to \d+ differs by [\d.]+ %, and [24](\.0)? % is allowed", gate.reason
    )


def test_a_curve_that_departs_only_at_its_end_is_refused() -> None:
    known = losses(num_steps=40)
    end = tuple(loss * (1.03 if step >= 30 else 1.0) for step, loss in enumerate(known))
    assert not check_losses(trial(end), [trial(known)] * 3, changes("rounding")).is_passed
    start = tuple(loss * (1.03 if step < 10 else 1.0) for step, loss in enumerate(known[::-1]))
    assert check_losses(trial(start), [trial(known[::-1])] * 3, changes("rounding")).is_passed  # 4 % until then


@pytest.mark.parametrize(("by", "is_passed"), [(0.03, True), (0.06, False)])
def test_a_curve_that_is_lower_in_its_second_quarter_and_higher_in_its_third_is_held_to_four_per_cent(
    by: float, is_passed: bool
) -> None:
    """The mean over all steps stays the same, and so does the last quarter."""
    quarters = np.repeat([1.0, 1.0 - by, 1.0 + by, 1.0], 10)
    gate = check_losses(trial(tuple(quarters)), [trial((1.0,) * 40)] * 3, changes("rounding"))
    assert gate.is_passed == is_passed, gate.reason


@pytest.mark.parametrize(("factor", "is_passed"), [(1.13, True), (1.25, False)])
def test_a_loss_that_has_all_but_vanished_is_held_to_the_band_of_a_tenth_of_the_mean(
    factor: float, is_passed: bool
) -> None:
    """1.0 for thirty steps, and 0.01 for the last ten: 2 % of a tenth of the mean, 0.07525, are 0.0015."""
    known = (*(1.0,) * 30, *(0.01,) * 10)
    candidate = (*known[:30], *(0.01 * factor,) * 10)
    gate = check_losses(trial(candidate), [trial(known)] * 3, changes("rounding"))
    assert gate.is_passed == is_passed, gate.reason


@pytest.mark.parametrize("seed", range(20))
def test_rounding_passes_and_says_its_band(seed: int) -> None:
    """As bf16 rounds: each gradient by four parts in a thousand."""
    candidate = trial(losses(float_noise=4e-3, noise_seed=seed, num_steps=40))
    gate = check_losses(candidate, [trial(losses(num_steps=40))] * 3, changes("rounding"))
    assert gate.is_passed, gate.reason
    assert "of 40 steps" in gate.reason and "of steps 31 to 40" in gate.reason
    assert gate.reason.count("2.0e-02 is allowed") == 2


def test_rounding_of_losses_that_all_but_vanish_is_no_fault() -> None:
    known = np.array([2.0 * 0.7**step for step in range(40)])
    assert check_losses(trial(tuple(known * 1.01 + 1e-4)), [trial(tuple(known))] * 3, changes("rounding")).is_passed


@pytest.mark.parametrize("num_steps", [1, 2, 3, 4, 5])
def test_few_losses_are_held_to_the_band_as_far_as_they_go(num_steps: int) -> None:
    known = losses(num_steps=num_steps)
    assert check_losses(trial(tuple(1.01 * loss for loss in known)), [trial(known)], changes("rounding")).is_passed
    assert not check_losses(trial(tuple(1.05 * loss for loss in known)), [trial(known)], changes("rounding")).is_passed


def test_semantic_changes_may_change_what_is_trained() -> None:
    assert check_losses(trial(losses("half")), DETERMINISTIC, changes("semantic")).is_passed


def test_semantic_changes_that_diverge_are_refused() -> None:
    """A mean loss of more than twice the job's trains nothing of use."""
    for factor, is_passed in ((1.8, True), (2.5, False)):
        candidate = trial(tuple(factor * loss for loss in losses()))
        assert check_losses(candidate, DETERMINISTIC, changes("semantic")).is_passed == is_passed


def test_memory_may_grow_by_a_tenth_of_the_highest_baseline() -> None:
    baselines = [trial((), memory=memory) for memory in (900, 1000, 950)]
    assert check_memory(trial((), memory=1100), baselines).is_passed
    refused = check_memory(trial((), memory=1101), baselines)
    assert not refused.is_passed and refused.reason.startswith("peak memory 1.08 KiB, baseline 1,000 B")


def test_memory_that_is_not_known_is_not_checked() -> None:
    assert check_memory(trial((), memory=5), [trial(())]).is_passed
    assert check_memory(trial(()), [trial((), memory=5)]).is_passed
