"""Plans: equal shards, splits by class, and whether a source is sorted by class."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from flatout.errors import UsageError
from flatout.packing.plan import PackingPlan, is_class_sorted, make_plan
from flatout.packing.request import PackRequest
from flatout.packing.sources import Listing
from flatout.records.packing import FileContent, SourceSample


def listing(labels: list[int]) -> Listing:
    samples = tuple(
        SourceSample(
            name=f"{index}.jpg",
            extension="jpg",
            content=FileContent(path=f"/data/{index}.jpg"),
            label=label,
            group=str(label),
        )
        for index, label in enumerate(labels)
    )
    return Listing(kind="csv", root=Path("/data"), samples=samples)


def planned(labels: list[int], mean_bytes: float = 1000.0, **options: object) -> PackingPlan:
    request = PackRequest(source=Path("/data"), folder=Path("/packed"), **options)  # type: ignore[arg-type]
    return make_plan(listing(labels), request, mean_bytes)


@pytest.mark.parametrize(("num_samples", "ranks", "workers"), [(64, 2, 8), (1000, 4, 2), (999, 3, 1), (65, 1, 1)])
def test_each_worker_has_four_shards_whose_sizes_differ_by_one_at_most(
    num_samples: int, ranks: int, workers: int
) -> None:
    shards = planned([0] * num_samples, num_ranks=ranks, num_workers=workers).shards
    assert len(shards) == 4 * ranks * workers
    sizes = [len(shard.indices) for shard in shards]
    assert max(sizes) - min(sizes) <= 1
    assert sorted(index for shard in shards for index in shard.indices) == list(range(num_samples))


@pytest.mark.parametrize(("mean_bytes", "num_shards"), [(40_000, 8), (80_000, 8), (81_000, 10)])
def test_shards_of_large_samples_are_more_in_whole_rounds_of_the_workers(mean_bytes: float, num_shards: int) -> None:
    """1,000 samples for 2 workers; 8 shards of 10 MB hold 80 kB of each."""
    plan = planned([0] * 1000, mean_bytes, num_ranks=2, num_workers=1, shard_bytes=10_000_000)
    assert len(plan.shards) == num_shards


def test_as_many_samples_as_shards_suffice_and_one_less_does_not() -> None:
    assert len(planned([0] * 8, num_ranks=2, num_workers=1).shards) == 8
    with pytest.raises(UsageError, match=r"2 \* 1 \* 4 = 8, and the data set has 7"):
        planned([0] * 7, num_ranks=2, num_workers=1)


def test_the_same_arguments_give_the_same_plan_and_any_other_gives_another() -> None:
    plan = planned([0, 1] * 20, num_ranks=1, num_workers=1)
    assert planned([0, 1] * 20, num_ranks=1, num_workers=1) == plan
    assert planned([0, 1] * 20, num_ranks=1, num_workers=1, seed=1).digest != plan.digest
    assert planned([0, 1] * 20, num_ranks=1, num_workers=1, crop=224).digest != plan.digest
    assert planned([1, 0] * 20, num_ranks=1, num_workers=1).digest != plan.digest


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_stratified_splits_have_each_class_by_its_share(seed: int) -> None:
    labels = [0] * 100 + [1] * 50 + [2] * 10 + [3] * 5
    splits = (("train", 0.8), ("val", 0.1), ("test", 0.1))
    plan = planned(labels, num_ranks=1, num_workers=1, splits=splits, stratify="label", seed=seed)
    counts: dict[str, Counter[int]] = {}
    for shard in plan.shards:
        counts.setdefault(shard.split, Counter()).update(labels[index] for index in shard.indices)
    assert [counts["train"][label] for label in range(4)] == [80, 40, 8, 4]
    assert [counts["val"][label] + counts["test"][label] for label in range(4)] == [20, 10, 2, 1]
    assert [counts["val"][label] for label in range(3)] == [10, 5, 1]


def test_classes_of_one_sample_are_divided_between_the_splits() -> None:
    """By its own share alone, each of them would be in the larger split."""
    splits = (("train", 0.75), ("val", 0.25))
    plan = planned(list(range(40)), num_ranks=1, num_workers=1, splits=splits, stratify="label")
    sizes = Counter(shard.split for shard in plan.shards for _ in shard.indices)
    assert sizes == {"train": 30, "val": 10}


def test_without_strata_the_splits_are_drawn_from_all_samples() -> None:
    splits = (("train", 0.75), ("val", 0.25))
    plan = planned([0] * 30 + [1] * 10, num_ranks=1, num_workers=1, splits=splits)
    sizes = Counter(shard.split for shard in plan.shards for _ in shard.indices)
    assert sizes == {"train": 30, "val": 10}
    assert {shard.shard.split("-")[0] for shard in plan.shards} == {"train", "val"}


@pytest.mark.parametrize(
    ("labels", "is_sorted"),
    [
        ([0] * 50 + [1] * 50, True),
        ([0, 1] * 50, False),
        ([0] * 10, False),
        ([0, 0, 1, 1] * 25, False),
    ],
)
def test_a_source_is_sorted_by_class_if_labels_change_less_than_half_as_often_as_by_chance(
    labels: list[int], is_sorted: bool
) -> None:
    assert is_class_sorted(labels) == is_sorted


@pytest.mark.parametrize(("num_changes", "is_sorted"), [(25, True), (27, False)])
def test_the_share_of_changes_at_which_a_source_counts_as_sorted(num_changes: int, is_sorted: bool) -> None:
    """52 labels of each of two classes change 103 * 52 / 103 = 52 times by chance, and 26 is half of that."""
    labels = []
    for run in range(num_changes + 1):
        labels += [run % 2] * 2
    missing = [52 - labels.count(0), 52 - labels.count(1)]
    first_zero, first_one = labels.index(0), labels.index(1)
    labels[first_one:first_one] = [1] * missing[1]
    labels[first_zero:first_zero] = [0] * missing[0]
    assert sum(a != b for a, b in pairwise(labels)) == num_changes
    assert is_class_sorted(labels) == is_sorted
