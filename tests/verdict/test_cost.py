"""The cost of a trial is that of whole periods, whichever part of a period its window happens to hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from tests.verdict.trials import trial

from flatout.records.trial import BASELINE, StepSpell, TrialResult
from flatout.verdict.arm_step import arm_step
from flatout.verdict.cost import trial_costs


def window(
    index: int,
    first: int,
    num_steps: int,
    *,
    arm: str = BASELINE,
    regular: float = 0.1,
    ends: dict[int, float] | None = None,
    **values: Any,
) -> TrialResult:
    """A trial that begins at step `first`; each step whose number an entry of `ends` divides takes its seconds more."""
    steps = []
    for number in range(first, first + num_steps):
        extra = sum(seconds for period, seconds in (ends or {}).items() if number % period == 0)
        steps.append(regular + extra)
    return trial(index, arm, steps, first_step=first, **values)


def without_numbers(trials: Sequence[TrialResult]) -> list[TrialResult]:
    return [msgspec.structs.replace(one, first_step=None) for one in trials]


def hooked(one: TrialResult, **periods: int) -> TrialResult:
    """The trial with what hooks see: spells of each kind, every so many steps from the job's start."""
    assert one.first_step is not None
    last = one.first_step + len(one.step_s)
    spells = [
        StepSpell(number, kind, 0.0)  # type: ignore[arg-type]
        for kind, period in periods.items()
        for number in range(period, last, period)
    ]
    return msgspec.structs.replace(one, spells=tuple(sorted(spells, key=lambda spell: spell.step)))


FIRSTS = (31, 43, 42, 38, 33)  # two of the windows of 20 steps hold two ends of epochs of 15 steps, the others one


@pytest.mark.parametrize("num_steps", [20, 30, 37, 60])
def test_one_boundary_or_two_in_the_window_cost_the_same(num_steps: int) -> None:
    trials = [window(i, first, num_steps, ends={15: 2.4}) for i, first in enumerate(FIRSTS)]
    truth = math.log(0.1 + 2.4 / 15)
    for known in (trials, [hooked(one, epoch_end=15) for one in trials]):
        costs = trial_costs(known, "step_s")
        assert [costs[i].log for i in range(5)] == pytest.approx([truth] * 5, abs=1e-3)
        assert costs[0].regular_s == pytest.approx(0.1, abs=1e-3)
        assert costs[0].boundary_s == pytest.approx(2.4, abs=1e-2)
        assert costs[0].period_steps == 15
        assert costs[0].holds_period
        assert costs[0].is_whole


def test_an_old_journal_tells_the_period_by_the_gaps_of_two_windows() -> None:
    trials = without_numbers([window(i, first, 31, ends={15: 2.4}) for i, first in enumerate((29, 30, 34, 44))])
    costs = trial_costs(trials, "step_s")
    assert costs[0].period_steps == 15
    assert [costs[i].log for i in range(4)] == pytest.approx([math.log(0.1 + 2.4 / 15)] * 4, abs=1e-3)


def test_the_second_row_of_the_issue_is_not_what_the_windows_happened_to_hold() -> None:
    """15 steps an epoch, 176 -> 63 ms a step, 2.6 -> 2.2 s a boundary: two boundaries in each baseline, then one."""
    baselines = [window(i, first, 20, regular=0.176, ends={15: 2.424}) for i, first in enumerate((26, 27, 28, 29))]
    candidates = [
        window(4 + i, first, 20, arm="workers", regular=0.063, ends={15: 2.137}) for i, first in enumerate((31, 34, 37))
    ]
    trials = baselines + candidates
    means = {one.index: math.log(sum(one.step_s) / 20) for one in trials}
    assert math.exp(means[0] - means[4]) == pytest.approx(2.47, abs=0.1)
    costs = trial_costs([hooked(one, epoch_end=15) for one in trials], "step_s")
    truth = (0.176 + 2.424 / 15) / (0.063 + 2.137 / 15)
    assert math.exp(costs[0].log - costs[4].log) == pytest.approx(truth, abs=0.01)
    assert truth == pytest.approx(1.64, abs=0.01)


def test_a_long_step_of_unknown_frequency_has_no_size() -> None:
    """Windows shorter than the period, in an old journal: only the regular steps are compared, and that is said."""
    trials = without_numbers([window(i, first, 20, ends={40: 2.4}) for i, first in enumerate((30, 32, 34, 36))])
    costs = trial_costs(trials, "step_s")
    assert costs[0].log == pytest.approx(math.log(0.1), abs=1e-6)
    assert costs[0].unknown == ("unknown",)
    assert not costs[0].is_whole


def test_an_epoch_longer_than_every_window_is_said_to_be_missing() -> None:
    trials = [hooked(window(i, 20, 20, steps_per_epoch=1000)) for i in range(3)]
    costs = trial_costs(trials, "step_s")
    assert costs[0].log == pytest.approx(math.log(0.1))
    assert costs[0].unknown == ("epoch_end",)
    assert costs[0].period_steps == 1000
    assert not costs[0].holds_period


def test_a_checkpoint_each_20_and_an_epoch_each_50_are_told_apart() -> None:
    truth = math.log(0.1 + 2.4 / 50 + 0.8 / 20)
    trials = [window(i, first, 110, ends={50: 2.4, 20: 0.8}) for i, first in enumerate(FIRSTS)]
    costs = trial_costs([hooked(one, epoch_end=50, checkpoint=20) for one in trials], "step_s")
    assert costs[0].log == pytest.approx(truth, abs=1e-3)
    found = {work.kinds: work for work in costs[0].work}
    assert found[("epoch_end",)].extra_s == pytest.approx(2.4, abs=0.01)
    assert found[("checkpoint",)].period_steps == 20


def test_an_epochs_evaluation_and_checkpoint_are_one_boundary() -> None:
    trials = [hooked(window(i, first, 40, ends={15: 2.4})) for i, first in enumerate(FIRSTS)]
    trials = [hooked(one, epoch_end=15, evaluation=15, checkpoint=15) for one in trials]
    costs = trial_costs(trials, "step_s")
    assert costs[0].work[0].kinds == ("epoch_end", "evaluation", "checkpoint")
    assert len(costs[0].work) == 1


def test_an_arm_without_the_work_does_not_pay_for_it() -> None:
    """The candidate no longer checkpoints: that it has no checkpoint in 100 steps is not chance."""
    baselines = [hooked(window(i, first, 60, ends={20: 0.8}), checkpoint=20) for i, first in enumerate(FIRSTS)]
    candidates = [hooked(window(5 + i, 40, 60, arm="candidate")) for i in range(3)]
    costs = trial_costs([*baselines, *candidates], "step_s")
    assert costs[0].log == pytest.approx(math.log(0.1 + 0.8 / 20), abs=1e-3)
    assert costs[5].log == pytest.approx(math.log(0.1))
    assert costs[5].is_whole


def test_a_window_without_the_boundary_takes_that_of_its_arm() -> None:
    firsts = (34, 50, 47, 64)  # the third window of 12 steps has no boundary
    trials = [hooked(window(i, first, 12, ends={15: 2.4}), epoch_end=15) for i, first in enumerate(firsts)]
    costs = trial_costs(trials, "step_s")
    assert max(trials[2].step_s) < 1
    assert costs[2].log == pytest.approx(costs[0].log, abs=1e-3)
    assert costs[2].is_whole
    assert not costs[2].holds_period


def test_a_boundary_that_the_arm_never_showed_is_assumed_and_that_is_said() -> None:
    baselines = [hooked(window(i, first, 30, ends={15: 2.4}), epoch_end=15) for i, first in enumerate(FIRSTS)]
    candidate = msgspec.structs.replace(
        hooked(window(5, 31, 12, arm="candidate", regular=0.05), epoch_end=15), arm="candidate"
    )
    costs = trial_costs([*baselines, candidate], "step_s")
    assert costs[5].log == pytest.approx(math.log(0.05 + 2.4 / 15), abs=1e-3)
    assert costs[5].unknown == ("epoch_end",)
    assert costs[0].is_whole


def test_steps_that_grow_within_an_epoch_weigh_alike() -> None:
    def growing(index: int, first: int) -> TrialResult:
        steps = [0.1 + 0.01 * (number % 15) for number in range(first, first + 22)]
        return trial(index, BASELINE, steps, first_step=first, spells=(StepSpell(15, "epoch_end", 0.0),))

    costs = trial_costs([growing(i, first) for i, first in enumerate((16, 20, 24))], "step_s")
    assert [costs[i].log for i in range(3)] == pytest.approx([math.log(0.1 + 0.01 * 7)] * 3, abs=1e-3)


def test_per_sample_and_per_token_and_energy() -> None:
    trials = [
        hooked(
            window(i, first, 20, ends={15: 2.4}, samples_per_step=8.0, tokens_per_step=800.0, energy_j_per_step=50.0),
            epoch_end=15,
        )
        for i, first in enumerate(FIRSTS)
    ]
    step_s = 0.1 + 2.4 / 15
    assert trial_costs(trials, "s_per_sample")[0].log == pytest.approx(math.log(step_s / 8), abs=1e-3)
    assert trial_costs(trials, "s_per_token")[0].log == pytest.approx(math.log(step_s / 800), abs=1e-3)
    mean_s = sum(trials[0].step_s) / 20
    assert trial_costs(trials, "j_per_step")[0].log == pytest.approx(math.log(50 * step_s / mean_s), abs=1e-3)


def test_peak_memory_needs_no_steps() -> None:
    costs = trial_costs([trial(0, peak_memory_bytes=1000)], "peak_memory_bytes")
    assert costs[0].log == pytest.approx(math.log(1000))
    assert costs[0].step_s is None


def test_a_trial_that_has_no_cost_is_absent() -> None:
    assert trial_costs([trial(0), trial(1, samples_per_step=4.0)], "s_per_sample").keys() == {1}


def test_the_parts_of_an_arms_step_add_up_to_it() -> None:
    trials = [
        hooked(window(i, first, 110, regular=0.1 + i / 100, ends={50: 2.4, 20: 0.8}), epoch_end=50, checkpoint=20)
        for i, first in enumerate(FIRSTS)
    ]
    costs = trial_costs(trials, "step_s")
    step = arm_step(list(costs.values()))
    assert step is not None
    assert step.step_s == pytest.approx(math.exp(sum(cost.log for cost in costs.values()) / 5))
    assert step.regular_s + sum(work.per_step_s for work in step.work) == pytest.approx(step.step_s)
    assert [work.kinds for work in step.work] == [("epoch_end",), ("checkpoint",)]
    assert step.work[0].extra_s == pytest.approx(2.4, rel=0.02)
    assert arm_step([]) is None


@pytest.mark.parametrize(("extra_s", "is_said"), [(0.051, True), (0.049, False)])
def test_a_single_spike_is_in_no_cost_and_is_said_from_a_hundredth_of_the_time_on(
    extra_s: float, is_said: bool
) -> None:
    """Five seconds of steps of 10 ms, with one spike in one trial of ten."""
    trials = [trial(i, BASELINE, [0.01] * 50) for i in range(10)]
    spiky = [0.01] * 49 + [0.01 + extra_s]
    costs = trial_costs([*trials[:9], trial(9, BASELINE, spiky)], "step_s")
    assert costs[9].log == pytest.approx(math.log(0.01), abs=1e-6)
    assert all(cost.is_whole != is_said for cost in costs.values())
