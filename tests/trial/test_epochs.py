"""The time of a later epoch, from trials that have an epoch boundary."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.change.jobs import facts
from tests.trial.recordings import rank

from flatout.change.catalogue import all_changes
from flatout.records.change import ChangeSet
from flatout.records.trial import TrialResult
from flatout.trial.epochs import changes_loader, later_epoch_ratio
from flatout.trial.result import epoch_ends, mean_steps


def trial(*step_s: float, ends: tuple[int, ...] | None = None) -> TrialResult:
    return TrialResult(index=0, arm="x", outcome="completed", step_s=step_s, epoch_ends=ends)


def test_the_first_epoch_does_not_count() -> None:
    """The baseline is slow in its first epoch only; the candidate never: later it is not faster."""
    before = trial(*[0.04] * 10, *[0.02] * 5, ends=(10,))
    after = trial(*[0.02] * 15, ends=(10,))
    assert later_epoch_ratio(before, after, 10) == pytest.approx(1.0)


def test_the_start_of_an_epoch_counts_once_per_epoch() -> None:
    """1 s of starting workers, in an epoch of 100 steps of 10 ms: 10 + 10 ms per step, however few steps follow."""
    before = trial(*[0.01] * 10, 1.01, *[0.01] * 4, ends=(10,))
    after = trial(*[0.01] * 15, ends=(10,))
    assert later_epoch_ratio(before, after, 100) == pytest.approx(2.0)


def test_without_the_length_of_an_epoch_the_steps_after_its_start_stand_for_it() -> None:
    before = trial(*[0.01] * 10, 0.05, *[0.01] * 4, ends=(10,))
    assert later_epoch_ratio(before, trial(*[0.01] * 15, ends=(10,)), None) == pytest.approx(0.09 / 0.05)


@pytest.mark.parametrize(("num_after", "is_enough"), [(2, False), (3, True)])
def test_a_few_steps_after_the_boundary_are_needed_in_both_arms(num_after: int, is_enough: bool) -> None:
    full, short = trial(*[0.01] * 20, ends=(10,)), trial(*[0.01] * (11 + num_after), ends=(10,))
    assert (later_epoch_ratio(full, short, 10) is not None) == is_enough
    assert (later_epoch_ratio(short, full, 10) is not None) == is_enough


@pytest.mark.parametrize("ends", [None, ()])
def test_without_a_boundary_in_both_arms_nothing_is_known(ends: tuple[int, ...] | None) -> None:
    with_one, without = trial(*[0.01] * 20, ends=(10,)), trial(*[0.01] * 20, ends=ends)
    assert later_epoch_ratio(with_one, without, 10) is later_epoch_ratio(without, with_one, 10) is None


def test_changes_of_how_batches_are_made_are_changes_of_the_loader() -> None:
    changes = {change.name: change for change in all_changes(facts(loader_workers=2))}
    of_loader = {name for name, change in changes.items() if changes_loader(ChangeSet(changes=(change,)))}
    assert {"dataloader-workers=7", "dataloader-prefetch=4", "dataloader-persistent-workers"} <= of_loader
    assert not {"non-blocking-copies", "ddp-bucket=100"} & of_loader


def test_the_boundaries_are_places_among_the_measured_steps(tmp_path: Path) -> None:
    """A loader of either rank that ended; steps before the measured ones have no place."""
    ranks = [rank(0), rank(1)]
    assert epoch_ends(ranks) is None, "not recorded"
    numbers = ranks[0].steps.number
    settled = ranks[0].settled_step
    assert settled is not None
    with_ends = []
    for number, each in enumerate(ranks):
        ends = np.zeros(len(numbers))
        ends[int(np.flatnonzero(numbers == settled + 1 + number)[0])] = 1
        ends[0] = 1
        steps = msgspec.structs.replace(each.steps, num_loader_ends=ends)
        with_ends.append(msgspec.structs.replace(each, steps=steps))
    assert len(mean_steps(with_ends)) > 3
    assert epoch_ends(with_ends) == (1, 2)
