"""Work that the trials of an arm did not measure: the verdict is of the other steps, and both arms count without it."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from flatout.records.trial import BASELINE, StepSpell, TrialResult
from flatout.verdict.arms import judge_arms
from flatout.verdict.cost import MIN_PERIODS_UNNUMBERED, trial_costs, without_work

EPOCH, BOUNDARY_S = 40, 2.0


def numbered(index: int, arm: str, regular_s: float, num_steps: int, *, first: int = 12) -> TrialResult:
    """A trial whose hooks see each end of an epoch, also in the warm-up."""
    step_s = regular_s * np.exp(np.random.default_rng(index).normal(0, 0.01, num_steps))
    ends = range(EPOCH, first + num_steps, EPOCH)
    for number in ends:
        if number >= first:
            step_s[number - first] += BOUNDARY_S
    spells = tuple(StepSpell(number, "epoch_end", 0.0) for number in ends)
    return TrialResult(
        index=index, arm=arm, outcome="completed", step_s=tuple(step_s.tolist()), first_step=first, spells=spells,
        steps_per_epoch=EPOCH,
    )  # fmt: skip


def arms(baseline_steps: int, candidate_steps: int) -> list[TrialResult]:
    order = [BASELINE] * 3 + ["candidate", BASELINE] * 3
    return [
        numbered(index, arm, *((0.1, baseline_steps) if arm == BASELINE else (0.05, candidate_steps)))
        for index, arm in enumerate(order)
    ]


def test_the_speedup_of_the_job_is_not_said_if_the_candidate_never_reached_the_boundary() -> None:
    """Regular steps are twice as fast. With a boundary that stays, the job is 1.5x as fast, which nobody measured."""
    verdict = judge_arms(arms(100, 20), "candidate", chosen_by=frozenset({3}))
    assert verdict.verdict == "better" and verdict.unmeasured_work == ("epoch_end",)
    assert verdict.mean_speedup == pytest.approx(2.0, rel=0.02)
    assert verdict.interval is not None and verdict.interval[0] <= 2.0 <= verdict.interval[1]


def test_the_speedup_of_the_job_is_said_where_both_arms_measured_the_boundary() -> None:
    verdict = judge_arms(arms(100, 100), "candidate", chosen_by=frozenset({3}))
    true_speedup = (0.1 + BOUNDARY_S / EPOCH) / (0.05 + BOUNDARY_S / EPOCH)
    assert verdict.unmeasured_work == ()
    assert verdict.mean_speedup == pytest.approx(true_speedup, rel=0.02)


def test_a_cost_without_work_has_the_seconds_of_the_other_steps() -> None:
    cost = trial_costs(arms(100, 100), "step_s")[0]
    without = without_work(cost, ("epoch_end",))
    assert without.step_s == pytest.approx(0.1, rel=0.01) and without.log == pytest.approx(math.log(without.step_s))
    assert without.work == ()
    assert without_work(cost, ("checkpoint",)) is cost
    per_sample = msgspec.structs.replace(cost, log=cost.log - math.log(8))
    assert without_work(per_sample, ("epoch_end",)).log == pytest.approx(without.log - math.log(8))


def unnumbered(num_steps: int, period: int) -> list[TrialResult]:
    """Trials of an older journal: times alone, each window at another place in the period."""
    made = []
    for index in range(5):
        step_s = np.full(num_steps, 0.1)
        step_s[(3 * index) % period :: period] += BOUNDARY_S
        made.append(TrialResult(index=index, arm=BASELINE, outcome="completed", step_s=tuple(step_s.tolist())))
    return made


@pytest.mark.parametrize(("num_periods", "is_flagged"), [(MIN_PERIODS_UNNUMBERED, False), (1.5, True)])
def test_short_windows_of_an_older_journal_do_not_show_how_often_work_comes(
    num_periods: float, is_flagged: bool
) -> None:
    costs = trial_costs(unnumbered(int(num_periods * 20), 20), "step_s")
    assert any(work.period_steps is not None for cost in costs.values() for work in cost.work)
    assert all(cost.unknown == (("unknown",) if is_flagged else ()) for cost in costs.values())
