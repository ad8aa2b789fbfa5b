"""Which of the changes that looked better comes first."""

from __future__ import annotations

import pytest

from flatout.change.catalogue import all_changes
from flatout.records.change import ChangeSet, JobFacts
from flatout.tune.progress import Promise, Round
from flatout.tune.screening import ALIKE, Candidate, _best_first

FACTS = JobFacts(num_ranks=2, ranks_per_host=2, cores_allowed=8.0, loader_workers=0)
CHANGES = {change.name: change for change in all_changes(FACTS)}
ONE, TWO, OTHER = "dataloader-workers=1", "dataloader-workers=2", "nccl-buffer=8"


def ordered(estimates: dict[str, float], promises: dict[str, float]) -> list[str]:
    """Return the changes of the simulated screening, best first."""
    candidates = [
        Candidate(change_set=ChangeSet(changes=(CHANGES[name],)), estimate=estimate)
        for name, estimate in estimates.items()
    ]
    of_changes = {
        name: Promise(expected_speedup=speedup, max_speedup=2 * speedup) for name, speedup in promises.items()
    }
    this_round = Round(number=1, facts=FACTS, promises=of_changes)
    return [one.change_set.name for one in _best_first(candidates, this_round)]


@pytest.mark.parametrize(("ratio", "first"), [(0.99 * ALIKE, TWO), (1.01 * ALIKE, ONE)])
def test_of_values_that_gain_about_the_same_the_one_that_promises_more_is_first(ratio: float, first: str) -> None:
    """A job had 1.97x with one loader worker and 1.91x with two; with half of its pause, only two were of use."""
    assert ordered({ONE: 1.9 * ratio, TWO: 1.9}, {ONE: 1.9, TWO: 2.5})[0] == first


def test_without_promises_the_estimates_decide() -> None:
    assert ordered({TWO: 1.9, ONE: 1.95}, {}) == [ONE, TWO]


def test_changes_of_other_knobs_keep_their_places() -> None:
    assert ordered({OTHER: 1.93, TWO: 1.9, ONE: 1.95}, {ONE: 1.9, TWO: 2.5, OTHER: 3.0}) == [TWO, ONE, OTHER]
