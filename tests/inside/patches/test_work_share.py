"""One rank gets fewer samples of each step and the others the rest: the same samples, as many steps on all ranks."""

from __future__ import annotations

from typing import Any

import pytest
from torch.utils.data import DataLoader, DistributedSampler

from flatout.inside.patches.report import Report, Reports
from flatout.inside.patches.work_share import SharedBatches, shares, work_share


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Report:
    """The patch, put into torch for one test."""
    monkeypatch.setattr(DataLoader, "__init__", DataLoader.__init__)
    report = Report("work_share", {}, Reports())
    work_share(report, rank=1, percent=50)
    return report


def loader(rank: int, num_samples: int, num_ranks: int = 3, **settings: Any) -> DataLoader[int]:
    data = list(range(num_samples))
    sampler = DistributedSampler(data, num_replicas=num_ranks, rank=rank, seed=5)
    sampler.set_epoch(2)
    return DataLoader(data, batch_size=8, sampler=sampler, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("percent", "expected"), [(50, [10, 4, 10]), (75, [9, 6, 9]), (70, [10, 5, 9]), (10, [12, 1, 11])]
)
def test_shares_add_up_to_equal_batches(percent: int, expected: list[int]) -> None:
    found = shares(8, 3, 1, percent)
    assert found == expected and sum(found) == 24


@pytest.mark.parametrize("num_samples", [72, 80, 73, 5, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_each_sample_is_in_one_batch_and_all_ranks_make_as_many_steps(
    num_samples: int, drop_last: bool, report: Report
) -> None:
    loaders = [loader(rank, num_samples, drop_last=drop_last) for rank in range(3)]
    batches = [list(each.batch_sampler) for each in loaders]  # type: ignore[arg-type]
    assert {len(of_rank) for of_rank in batches} == {len(loaders[0])}
    for step in range(num_samples // 24):
        assert [len(of_rank[step]) for of_rank in batches] == [10, 4, 10]
    samples = sorted(sample for of_rank in batches for batch in of_rank for sample in batch)
    if drop_last:
        assert len(set(samples)) == len(samples) == num_samples // 24 * 24
    else:
        assert set(samples) == set(range(num_samples)) and all(batch for of_rank in batches for batch in of_rank)
    assert report.is_applied


def test_the_epoch_and_the_seed_are_those_of_the_sampler(report: Report) -> None:
    one = loader(0, 72)
    first = list(one.batch_sampler)  # type: ignore[arg-type]
    assert list(one.batch_sampler) == first  # type: ignore[arg-type]
    one.sampler.set_epoch(3)  # type: ignore[attr-defined]
    assert list(one.batch_sampler) != first  # type: ignore[arg-type]
    report.is_on = False
    assert [len(batch) for batch in one.batch_sampler] == [8, 8, 8] and len(one) == 3  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "make",
    [
        lambda: DataLoader(list(range(9)), batch_size=4, shuffle=True),  # type: ignore[arg-type]
        lambda: loader(0, 9, num_ranks=1),
        lambda: DataLoader(list(range(9)), batch_size=None),  # type: ignore[arg-type]
    ],
)
def test_other_loaders_stay_as_they_are(make: Any, report: Report) -> None:
    assert not isinstance(make().batch_sampler, SharedBatches) and not report.is_applied
