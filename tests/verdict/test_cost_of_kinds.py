"""The cost of windows of jobs whose periodic work is of other kinds: the truth is known by construction."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from flatout.records.trial import BASELINE, SpellKind, StepSpell, TrialResult
from flatout.verdict.cost import trial_costs

REGULAR_S = 0.05
Extra = Callable[[int], float]  # seconds beyond the regular step, by the number of the step


def trials(
    arm: str, num_trials: int, num_steps: int, extra: Extra, *hooked: tuple[SpellKind, int], seed: int
) -> list[TrialResult]:
    """Trials that begin at any step, with spells of each kind every so many steps."""
    rng = np.random.default_rng(seed)
    made = []
    for place in range(num_trials):
        first = int(rng.integers(15, 60))
        last = first + num_steps
        noise = np.exp(rng.normal(0, 0.03, num_steps))
        spells = [StepSpell(number, kind, 1.0) for kind, period in hooked for number in range(period, last, period)]
        made.append(
            TrialResult(
                index=100 * seed + place,
                arm=arm,
                outcome="completed",
                step_s=tuple(float(REGULAR_S * n + extra(first + i)) for i, n in enumerate(noise)),
                first_step=first,
                spells=tuple(sorted(spells, key=lambda spell: spell.step)),
            )
        )
    return made


def check(arms: Sequence[tuple[list[TrialResult], float]]) -> None:
    """Compare the costs of all trials with the true seconds per step of their arm."""
    costs = trial_costs([trial for of_arm, _ in arms for trial in of_arm], "step_s")
    for of_arm, true_s in arms:
        logs = [costs[trial.index].log for trial in of_arm]
        assert logs == pytest.approx([math.log(true_s)] * len(logs), abs=0.03)
        assert all(costs[trial.index].is_whole for trial in of_arm)


def test_a_checkpoint_for_which_the_other_rank_waits_in_its_next_step() -> None:
    """The mean over two ranks has half of it in each of two steps, and the hook sees one of them."""
    save_s = 1.4
    found = trials(
        BASELINE, 6, 60, lambda number: save_s / 2 if number % 40 in (0, 1) else 0.0, ("checkpoint", 40), seed=1
    )
    check([(found, REGULAR_S + save_s / 40)])


def test_a_checkpoint_that_is_written_in_the_background_costs_what_is_left_of_it() -> None:
    before = trials(BASELINE, 4, 60, lambda number: 1.4 * (number % 40 == 0), ("checkpoint", 40), seed=1)
    after = trials("background", 3, 60, lambda number: 0.1 * (number % 40 == 0), ("checkpoint", 40), seed=2)
    check([(before, REGULAR_S + 1.4 / 40), (after, REGULAR_S + 0.1 / 40)])


def test_an_evaluation_without_a_hook_next_to_epochs_with_one() -> None:
    def extra(number: int) -> float:
        return 1.0 * (number % 25 == 0) + 2.0 * (number % 40 == 0)

    check([(trials(BASELINE, 6, 100, extra, ("epoch_end", 40), seed=3), REGULAR_S + 1 / 25 + 2 / 40)])


def test_metrics_that_are_logged_every_tenth_step() -> None:
    found = trials(BASELINE, 6, 21, lambda number: 0.02 * (number % 10 == 0), ("logging", 10), seed=4)
    check([(found, REGULAR_S + 0.002)])


def test_a_loader_whose_every_fourth_step_waits_and_its_fix() -> None:
    before = trials(BASELINE, 4, 22, lambda number: 0.2 * (number % 4 == 0), seed=5)
    after = trials("workers", 3, 22, lambda number: 0.0, seed=6)
    check([(before, REGULAR_S + 0.05), (after, REGULAR_S)])


def loaded_steps_s(num_workers: int, load: float, num_steps: int, rng: np.random.Generator) -> list[float]:
    """Steps that wait for their batches: each worker makes every n-th batch, and is at most two ahead.

    `load` is the time in which all workers together make a batch, in regular steps.
    """
    taken, free = [0.0], [0.0] * num_workers
    for batch in range(num_steps + 1):
        worker = batch % num_workers
        earliest = taken[batch - 2 * num_workers + 1] if batch >= 2 * num_workers else 0.0
        makes_s = REGULAR_S * num_workers * load * np.exp(rng.normal(0, 0.15))
        free[worker] = max(free[worker], earliest) + makes_s
        step_s = REGULAR_S * np.exp(rng.normal(0, 0.02)) if batch else 0.0
        taken.append(max(taken[-1] + step_s, free[worker]))
    return np.diff(taken[1:]).tolist()


@pytest.mark.parametrize("num_workers", [2, 3, 8])
@pytest.mark.parametrize("load", [1.45, 1.9])
def test_a_loader_that_cannot_keep_up_costs_what_its_steps_take(num_workers: int, load: float) -> None:
    """Some windows have a third of their steps long, others a little more; batches come in twos, threes or bursts."""
    rng = np.random.default_rng(num_workers)
    errors = []
    for _ in range(6):
        windows = [loaded_steps_s(num_workers, load, 75, rng)[15:] for _ in range(3)]
        made = [
            TrialResult(index=i, arm=BASELINE, outcome="completed", step_s=tuple(window), first_step=15, spells=())
            for i, window in enumerate(windows)
        ]
        logs = [cost.log for cost in trial_costs(made, "step_s").values()]
        errors.append(float(np.mean(logs)) - math.log(np.mean(windows)))
    assert max(map(abs, errors)) < 0.1


def test_steps_that_only_drift_have_no_work() -> None:
    found = trials(BASELINE, 4, 60, lambda number: 0.0, seed=7)
    costs = trial_costs(found, "step_s")
    assert all(not cost.work for cost in costs.values())
