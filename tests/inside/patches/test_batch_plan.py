"""Batches by length: each sample once, as many batches on each rank, and the padding worked out by hand."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler

from flatout.inside.patches import balanced_batches as patch
from flatout.inside.patches.balanced_batches import BalancedBatches, read_lengths, sample_length
from flatout.inside.patches.batch_plan import padding_share, plain_batches, plan_batches
from flatout.inside.patches.report import Report, Reports


def shuffled(number: int, seed: int = 1) -> list[int]:
    return random.Random(seed).sample(range(number), number)


def skewed(number: int, seed: int = 2) -> list[int]:
    draw = random.Random(seed)
    return [1 + int(draw.expovariate(1 / 60)) for _ in range(number)]


@pytest.mark.parametrize("num_samples", [1, 3, 4, 5, 97, 1000])
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("max_tokens", [None, 1, 500])
def test_each_sample_comes_once_and_each_rank_has_as_many_batches(
    num_samples: int, num_ranks: int, max_tokens: int | None
) -> None:
    lengths = skewed(num_samples)
    steps = plan_batches(
        shuffled(num_samples), lengths, batch_size=4, num_ranks=num_ranks, max_tokens=max_tokens
    )  # fmt: skip
    used = sorted(sample for step in steps for batch in step for sample in batch)
    if num_samples >= num_ranks:
        assert used == list(range(num_samples))
    else:  # each rank needs one
        assert set(used) == set(range(num_samples))
        assert len(used) == num_ranks
    assert all(len(step) == num_ranks and all(step) for step in steps)


def test_with_drop_last_all_batches_are_whole() -> None:
    steps = plan_batches(shuffled(103), skewed(103), batch_size=4, num_ranks=2, drop_last=True)
    assert [len(batch) for step in steps for batch in step] == [4] * 24
    assert len({sample for step in steps for batch in step for sample in batch}) == 96


def test_the_padding_of_a_plan_worked_out_by_hand() -> None:
    lengths = [1, 2, 3, 4, 5, 6, 7, 8]
    order = [7, 0, 6, 1, 5, 2, 4, 3]
    # Of two in this order: 8+8, 7+7, 6+6, 5+5 tokens, of which 36 are used.
    assert padding_share(plain_batches(order, batch_size=2, num_ranks=1), lengths) == pytest.approx(1 - 36 / 52)
    # Sorted: 2+2, 4+4, 6+6, 8+8.
    batches = [step[0] for step in plan_batches(order, lengths, batch_size=2, num_ranks=1)]
    assert sorted(map(sorted, batches)) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert padding_share(batches, lengths) == pytest.approx(1 - 36 / 40)


def test_no_batch_has_more_tokens_than_the_budget_unless_one_sample_has() -> None:
    lengths = [*skewed(500), 900]
    steps = plan_batches(shuffled(501), lengths, batch_size=8, num_ranks=2, max_tokens=400)
    for batch in (batch for step in steps for batch in step):
        assert len(batch) * max(lengths[sample] for sample in batch) <= 400 or len(batch) == 1


def test_the_ranks_of_a_step_have_like_lengths() -> None:
    lengths = skewed(4000)
    order = shuffled(4000)
    planned = plan_batches(order, lengths, batch_size=8, num_ranks=4)
    plain = plain_batches(order, batch_size=8, num_ranks=4)

    def imbalance(steps: list[list[list[int]]]) -> float:
        longest = [[max(lengths[sample] for sample in batch) for batch in step] for step in steps]
        return sum(max(step) - sum(step) / len(step) for step in longest)

    per_rank = len(plain) // 4
    before = [[plain[rank * per_rank + number] for rank in range(4)] for number in range(per_rank)]
    assert imbalance(planned) < 0.2 * imbalance(before)


def test_another_order_gives_other_batches_and_the_same_order_the_same() -> None:
    lengths = skewed(300)
    first, again, other = (
        plan_batches(shuffled(300, seed), lengths, batch_size=4, num_ranks=1) for seed in (1, 1, 2)
    )  # fmt: skip
    assert first == again != other


# In a loader.


class Texts(Dataset[list[int]]):
    def __init__(self, number: int = 60, *, is_even: bool = False) -> None:
        self.rows = [[1] * (5 if is_even else length) for length in skewed(number)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> list[int]:
        torch.rand(1)
        return self.rows[row]


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(5))


@pytest.fixture
def loaders(monkeypatch: pytest.MonkeyPatch) -> Report:
    """The patch, put into torch for one test."""
    monkeypatch.setattr(DataLoader, "__init__", DataLoader.__init__)
    report = Report("balanced_batches", {}, Reports())
    patch.balanced_batches(report)
    return report


def test_a_shuffling_loader_gets_batches_by_length_and_keeps_its_random_state(loaders: Report) -> None:
    data = Texts()
    loader = DataLoader(data, batch_size=4, shuffle=True, collate_fn=list)
    before = torch.get_rng_state()
    assert loader.batch_sampler._known_lengths() == [len(row) for row in data.rows]  # type: ignore[union-attr]
    assert torch.equal(torch.get_rng_state(), before)
    batches = list(loader)
    assert sorted(len(row) for batch in batches for row in batch) == sorted(len(row) for row in data.rows)
    assert loaders.is_applied
    share = {name: float(str(loaders.details[f"padding_{name}_percent"])) for name in ("before", "after")}
    lengths = [[len(row) for row in batch] for batch in batches]
    used, padded = sum(map(sum, lengths)), sum(len(batch) * max(batch) for batch in lengths)
    assert share["after"] == pytest.approx(100 * (1 - used / padded), abs=0.06)
    assert share["after"] < 0.5 * share["before"]


def test_the_ranks_of_a_distributed_sampler_share_an_epoch(loaders: Report) -> None:
    data = Texts(61)
    rows = []
    for rank in range(2):
        sampler = DistributedSampler(data, num_replicas=2, rank=rank)
        sampler.set_epoch(4)
        rows.append(list(DataLoader(data, batch_size=4, sampler=sampler).batch_sampler))
    assert len(rows[0]) == len(rows[1])
    assert sorted(row for of_rank in rows for batch in of_rank for row in batch) == list(range(61))


@pytest.mark.parametrize(
    "make",
    [
        lambda data: DataLoader(data, batch_size=4),
        lambda data: DataLoader(data, batch_size=4, sampler=SequentialSampler(data)),
        lambda data: DataLoader(data, batch_size=4, sampler=RandomSampler(data, replacement=True)),
        lambda data: DataLoader(
            data, batch_size=4, sampler=DistributedSampler(data, num_replicas=2, rank=0, shuffle=False)
        ),
        lambda data: DataLoader(data, batch_size=None, shuffle=True),
        lambda data: DataLoader(Stream(), batch_size=2),
    ],
)
def test_other_loaders_stay_as_they_are(make: Any, loaders: Report) -> None:
    assert not isinstance(make(Texts()).batch_sampler, BalancedBatches)


@pytest.mark.parametrize(
    ("data", "note"),
    [
        (Texts(is_even=True), "the samples of a data set have like lengths"),
        ([3.0] * 40, "no length that is known here"),
    ],
)
def test_without_different_lengths_the_batches_are_the_scripts_own(data: Any, note: str, loaders: Report) -> None:
    loader = DataLoader(data, batch_size=4, shuffle=True)
    torch.manual_seed(3)
    batches = list(loader.batch_sampler)
    torch.manual_seed(3)
    plain = torch.utils.data.BatchSampler(RandomSampler(data), 4, drop_last=False)
    assert batches == list(plain)
    assert note in loaders.notes[0]
    assert not loaders.is_applied


@pytest.mark.parametrize(("limit_s", "is_read"), [(60.0, True), (0.0, False)])
def test_lengths_are_read_for_a_minute_at_most(limit_s: float, is_read: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch, "MAX_SCAN_S", limit_s)
    report = Report("balanced_batches", {}, Reports())
    assert (read_lengths(Texts(), report) is not None) is is_read


@pytest.mark.parametrize(("longer_by", "is_used"), [(12, False), (13, True)])
def test_lengths_that_vary_by_less_than_a_twentieth_are_not_balanced(longer_by: int, is_used: bool) -> None:
    """A fifth of the samples is longer by d than 100: the mean is 100 + 0.2 d, and the deviation 0.4 d."""
    rows = [[1] * (100 + (longer_by if number % 5 == 0 else 0)) for number in range(100)]
    assert (read_lengths(rows, Report("balanced_batches", {}, Reports())) is not None) is is_used


@pytest.mark.parametrize(
    ("sample", "length"),
    [
        ([1, 2, 3], 3),
        ("words", 5),
        (torch.zeros(2, 7), 14),
        (torch.zeros(()), None),
        ({"labels": [1], "input_ids": [1, 2]}, 2),
        ((torch.zeros(4), 1), 4),
        (3, None),
        ({}, None),
    ],
)
def test_the_length_of_a_sample(sample: Any, length: int | None) -> None:
    assert sample_length(sample) == length


class WithColumn(Texts):
    column_names = ("length",)

    def __getitem__(self, row: Any) -> Any:
        return [len(values) for values in self.rows] if row == "length" else pytest.fail("the samples were read")


def test_a_column_of_lengths_is_used_without_reading_samples(tmp_path: Path) -> None:
    data = WithColumn()
    assert read_lengths(data, Report("x", {}, Reports())) == [len(row) for row in data.rows]
