"""A change of the loader is adopted only after an epoch boundary, or with the words that there was none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.change.jobs import facts
from tests.tune.simulated import BUCKET, COMMUNICATION, COSTS, STEP_S, SimulatedRunner, tuned

from flatout.emit.heading import heading
from flatout.records.change import ChangeSet, JobFacts
from flatout.records.trial import TrialResult
from flatout.records.tuning import TuneResult
from flatout.report.tuning_phrases import headline
from flatout.tune.epoch_check import LOADER_IS_UNCHECKED, num_steps_over_boundary

EPOCH = 40  # steps
WORKERS = "dataloader-workers=15"


class EpochRunner(SimulatedRunner):
    """`later`: how much faster the workers make a step after the first epoch. Ten steps are the warm-up."""

    def __init__(
        self, later: float, *, job: JobFacts, fails: bool = False, change: str = WORKERS, workers: int = 2
    ) -> None:
        super().__init__(
            {change: 1.3},
            job=job,
            between_sd=0.002,
            step_sd=0.005,
            costs=COSTS if change == WORKERS else COMMUNICATION,
            ends=lambda _, changes: {"loader_workers": workers if changes.changes else 2},
        )
        self.later, self.fails, self.change = later, fails, change
        self.long: list[str] = []  # arms of trials with an epoch boundary

    def trial(self, changes: ChangeSet, num_steps: int, place: str = "", *, other_samples: bool = False) -> TrialResult:
        result = super().trial(changes, num_steps, place)
        end = EPOCH - 10
        if num_steps <= end:
            return msgspec.structs.replace(result, epoch_ends=())
        self.long.append(changes.name)
        if self.fails and changes.changes:
            return msgspec.structs.replace(result, outcome="failed", cause="error", problem="a worker died")
        has_workers = any(change.name == self.change for change in changes.changes)
        step_s = STEP_S / (self.later if has_workers else 1.0)
        steps = (*result.step_s[:end], *[step_s] * (num_steps - end))
        return msgspec.structs.replace(result, step_s=steps, epoch_ends=(end,))


def tune(runner: EpochRunner, **options: object) -> TuneResult:
    return tuned(runner, max_rounds=1, **options)


def adopted(result: TuneResult) -> list[str]:
    return [change.name for change in result.tuning.changes.changes]


KNOWN = facts(loader_batches=EPOCH, transport=None)


def test_a_win_of_the_first_epoch_that_is_lost_after_it_is_not_adopted() -> None:
    """1.3x in the first epoch, and 1.8x slower afterwards, as with a data set that caches its samples."""
    runner = EpochRunner(1 / 1.8, job=KNOWN)
    result = tune(runner)
    assert WORKERS not in adopted(result)
    (tried,) = [tried for tried in result.tried if tried.changes == (WORKERS,) and tried.outcome == "not confirmed"]
    assert "after an epoch boundary it is slower, 0.56x" in tried.reason
    assert runner.long[:2] == ["baseline", WORKERS], "both arms had the boundary"
    assert tried.verdict is None, "no pairs were spent on it"


@pytest.mark.parametrize(("workers", "is_adopted"), [(2, True), (8, False)])
def test_a_change_that_brings_other_workers_is_one_of_the_loader_whatever_it_is_called(
    workers: int, is_adopted: bool
) -> None:
    """As by an argument of the script's own, of which nobody knows what it does."""
    runner = EpochRunner(1 / 1.8, job=KNOWN, change=BUCKET, workers=workers)
    result = tune(runner)
    assert (BUCKET in adopted(result)) == is_adopted
    assert any("after an epoch boundary it is slower" in tried.reason for tried in result.tried) != is_adopted


def test_a_win_that_lasts_is_adopted_and_says_so() -> None:
    result = tune(EpochRunner(1.2, job=KNOWN))
    assert WORKERS in adopted(result)
    (tried,) = [tried for tried in result.tried if WORKERS in tried.changes and tried.outcome == "adopted"]
    assert "after an epoch boundary it is 1.20x as fast" in tried.reason
    assert not any("epoch boundary" in note for note in result.notes)
    assert "first epoch" not in headline(result)
    assert not any("first epoch" in line for line in heading(result.tuning))


@pytest.mark.parametrize(("later", "is_adopted"), [(0.99, False), (1.01, True)])
def test_a_change_of_the_loader_must_not_be_slower_after_the_boundary(later: float, is_adopted: bool) -> None:
    assert (WORKERS in adopted(tune(EpochRunner(later, job=KNOWN)))) == is_adopted


def test_a_change_that_fails_over_the_boundary_is_not_adopted() -> None:
    result = tune(EpochRunner(1.2, job=KNOWN, fails=True))
    assert WORKERS not in adopted(result)
    assert any("over an epoch boundary it fails: a worker died" in tried.reason for tried in result.tried)


@pytest.mark.parametrize(
    ("job", "options"),
    [
        (facts(transport=None), {}),  # the length of an epoch is unknown
        (facts(loader_batches=10_000_000, transport=None), {"budget_s": 10_000.0}),  # too long
    ],
)
def test_where_no_boundary_can_be_had_the_words_say_so(job: JobFacts, options: dict[str, object]) -> None:
    runner = EpochRunner(1 / 1.8, job=job)
    result = tune(runner, **options)
    assert WORKERS in adopted(result)
    assert not runner.long
    assert any(LOADER_IS_UNCHECKED in note for note in result.notes)
    assert " faster (1." in headline(result) and "in the first epoch; later epochs are unknown" in headline(result)
    assert any("Measured in the first epoch only" in line for line in heading(result.tuning))


def test_a_job_that_ends_within_its_first_epoch_is_known_whole() -> None:
    class OneEpochRunner(EpochRunner):
        def trial(
            self, changes: ChangeSet, num_steps: int, place: str = "", *, other_samples: bool = False
        ) -> TrialResult:
            result = super().trial(changes, num_steps, place)
            return msgspec.structs.replace(result, step_s=result.step_s[: EPOCH - 10], epoch_ends=())

    result = tune(OneEpochRunner(1 / 1.8, job=KNOWN))
    assert WORKERS in adopted(result)
    (tried,) = [tried for tried in result.tried if WORKERS in tried.changes and tried.outcome == "adopted"]
    assert "the job ends within its first epoch" in tried.reason
    assert "first epoch" not in headline(result)


def test_pairs_that_have_the_boundary_need_no_further_trials() -> None:
    runner = EpochRunner(1.2, job=KNOWN)
    result = tune(runner, num_steps=EPOCH)
    assert WORKERS in adopted(result)
    (tried,) = [tried for tried in result.tried if WORKERS in tried.changes and tried.outcome == "adopted"]
    assert "after an epoch boundary it is" in tried.reason


def long_enough(*, budget_s: float, spent_s: float = 0.0, steps_per_epoch: int | None = EPOCH) -> int | None:
    """Trials take 25 s for 20 steps of 0.25 s; two over the boundary take 2 x (25 + 80 x 0.25) = 90 s."""
    setup: Any = SimpleNamespace(
        runner=SimpleNamespace(usual_s=25.0, spent_s=lambda: spent_s),
        options=SimpleNamespace(budget_s=budget_s),
    )
    # After two trials there is no noise floor yet.
    baselines = (SimpleNamespace(step_s=(0.25,) * 20), SimpleNamespace(step_s=(0.24,) * 20))
    progress: Any = SimpleNamespace(
        first=SimpleNamespace(facts=facts(loader_batches=steps_per_epoch)),
        evidence=SimpleNamespace(baselines=baselines),
        floor=None,
    )
    return num_steps_over_boundary(setup, progress)


@pytest.mark.parametrize(
    ("budget_s", "spent_s", "is_affordable"),
    [(350, 0, False), (370, 0, True), (1000, 915, False), (1000, 905, True)],
)
def test_two_trials_over_the_boundary_take_at_most_a_quarter_of_the_budget_and_what_is_left(
    budget_s: float, spent_s: float, is_affordable: bool
) -> None:
    assert (long_enough(budget_s=budget_s, spent_s=spent_s) is not None) == is_affordable


def test_a_trial_reaches_well_into_the_second_epoch() -> None:
    assert long_enough(budget_s=1e9) == 2 * EPOCH
    assert long_enough(budget_s=1e9, steps_per_epoch=5000) == 5100
    assert long_enough(budget_s=1e9, steps_per_epoch=None) is None
