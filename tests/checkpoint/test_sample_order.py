"""The order of samples on a resume: each sample of an epoch exactly once over the kill, in the uninterrupted order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
)

from flatout.checkpoint import Checkpointer, CheckpointError
from flatout.checkpoint.loader_position import LoaderPosition

NUM_SAMPLES, BATCH = 22, 4  # the last batch of an epoch has two samples
NUM_BATCHES = 6


class Rows(Dataset[int]):
    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, row: int) -> int:
        return row


def shuffled(**options: Any) -> DataLoader[int]:
    return DataLoader(Rows(), batch_size=BATCH, shuffle=True, **options)


def with_generator(**options: Any) -> DataLoader[int]:
    return shuffled(generator=torch.Generator().manual_seed(3), **options)


def in_order(**options: Any) -> DataLoader[int]:
    return DataLoader(Rows(), batch_size=BATCH, **options)


def distributed(**options: Any) -> DataLoader[int]:
    sampler = DistributedSampler(Rows(), num_replicas=2, rank=1, seed=5)
    return DataLoader(Rows(), batch_size=BATCH, sampler=sampler, **options)


def weighted(**options: Any) -> DataLoader[int]:
    sampler = WeightedRandomSampler([1.0] * NUM_SAMPLES, NUM_SAMPLES, generator=torch.Generator().manual_seed(3))
    return DataLoader(Rows(), batch_size=BATCH, sampler=sampler, **options)


def drawn_in_chunks(**options: Any) -> DataLoader[int]:
    """A sampler that draws 32 at a time from its generator, and several times an epoch."""
    sampler = RandomSampler(Rows(), replacement=True, num_samples=100, generator=torch.Generator().manual_seed(3))
    return DataLoader(Rows(), batch_size=BATCH, sampler=sampler, **options)


def batched_by_hand(**options: Any) -> DataLoader[int]:
    return DataLoader(Rows(), batch_sampler=BatchSampler(RandomSampler(Rows()), 3, drop_last=True), **options)


def unbatched(**options: Any) -> DataLoader[int]:
    return DataLoader(Rows(), batch_size=None, sampler=RandomSampler(Rows()), **options)


LOADERS = [
    shuffled, with_generator, in_order, distributed, weighted, drawn_in_chunks, batched_by_hand, unbatched
]  # fmt: skip


def epochs(loader: Any, first: int) -> Iterator[tuple[int, list[int]]]:
    """The batches of all epochs from one on, with the number of their epoch, as a script loads them."""
    epoch = first
    while True:
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        for batch in loader:
            yield epoch, torch.as_tensor(batch).reshape(-1).tolist()
        epoch += 1


def uninterrupted(make: Any, num_batches: int, **options: Any) -> list[tuple[int, list[int]]]:
    torch.manual_seed(11)
    return [batch for batch, _ in zip(epochs(make(**options), 0), range(num_batches), strict=False)]


def interrupted(make: Any, folder: Path, stop: int, num_batches: int, **options: Any) -> list[tuple[int, list[int]]]:
    """Load until `stop`, save, and load the rest with objects that were made anew, as a new process does."""
    batches = []
    model = torch.nn.Linear(1, 1)
    torch.manual_seed(11)
    loader = make(**options)
    with Checkpointer(folder, model=model, data=loader) as checkpointer:
        assert checkpointer.resume() == 0
        for batch in epochs(loader, 0):
            batches.append(batch)
            if len(batches) == stop:
                checkpointer.save(stop, wait=True)
                break
    torch.manual_seed(12)
    loader = make(**options)
    with Checkpointer(folder, model=model, data=loader) as checkpointer:
        step = checkpointer.resume()
        for batch in epochs(loader, step // len(loader)):
            batches.append(batch)
            step += 1
            if step == num_batches:
                break
    return batches


@pytest.mark.parametrize("stop", [1, 4, NUM_BATCHES, 8])
@pytest.mark.parametrize("make", LOADERS)
def test_a_resumed_training_loads_what_the_uninterrupted_one_loads(make: Any, stop: int, tmp_path: Path) -> None:
    num_batches = 2 * len(make()) + 3
    whole = uninterrupted(make, num_batches)
    assert [samples for _, samples in interrupted(make, tmp_path, stop, num_batches)] == [rows for _, rows in whole]


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}])
@pytest.mark.parametrize("make", [shuffled, distributed])
def test_batches_that_workers_loaded_ahead_are_not_lost(make: Any, options: dict[str, Any], tmp_path: Path) -> None:
    num_batches = 2 * len(make()) + 1
    whole = uninterrupted(make, num_batches, **options)
    assert interrupted(make, tmp_path, len(make()) + 1, num_batches, **options) == whole


@pytest.mark.parametrize("generator", [None, 7])
def test_after_the_end_of_an_epoch_workers_that_stay_give_the_next_one_its_order(
    generator: int | None, tmp_path: Path
) -> None:
    """Workers that stay draw no seed before the next epoch, and those of the resumed job have to be started."""

    def make() -> DataLoader[int]:
        own = None if generator is None else torch.Generator().manual_seed(generator)
        return shuffled(num_workers=1, persistent_workers=True, generator=own)

    num_batches = 3 * len(make())
    whole = uninterrupted(make, num_batches)
    assert interrupted(make, tmp_path, len(make()), num_batches) == whole


# Loaders that cannot continue.


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(NUM_SAMPLES))


class Backwards(Sampler[int]):
    def __len__(self) -> int:
        return NUM_SAMPLES

    def __iter__(self) -> Iterator[int]:
        return iter(range(NUM_SAMPLES - 1, -1, -1))


class Rotating(Backwards):
    """Begins each epoch one further, which no random state says."""

    def __init__(self) -> None:
        self.first = 0

    def __iter__(self) -> Iterator[int]:
        self.first += 1
        first = self.first
        return ((first + number) % NUM_SAMPLES for number in range(NUM_SAMPLES))

    def state_dict(self) -> dict[str, int]:
        return {"first": self.first}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.first = state["first"]


class Doubled(DataLoader[int]):
    def __iter__(self) -> Any:
        return iter([*super().__iter__(), *super().__iter__()])


class ReversedRandom(RandomSampler):
    """Keeps torch's way to draw."""


CANNOT = [
    (lambda: DataLoader(Stream(), batch_size=BATCH), "Stream is an iterable data set"),
    (lambda: DataLoader(Rows(), sampler=Backwards()), "the sampler Backwards is neither one of torch's nor has it"),
    (lambda: DataLoader(Rows(), batch_sampler=BatchSampler(Backwards(), 2, False)), "the sampler Backwards is neither"),
    (lambda: DataLoader(Rows(), batch_size=2, num_workers=1, in_order=False), "come in any order"),
    (lambda: Doubled(Rows()), "Doubled has its own __iter__"),
]


@pytest.mark.parametrize(("make", "reason"), CANNOT)
def test_a_loader_that_cannot_continue_is_refused_before_the_first_step(make: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=reason) as refused:
        Checkpointer(tmp_path, model=torch.nn.Linear(1, 1), data=make())
    assert "or omit `data`" in str(refused.value.hint)


@pytest.mark.parametrize("sampler", [SequentialSampler(Rows()), ReversedRandom(Rows()), Rotating(), [3, 1, 2]])
def test_a_sampler_whose_order_can_be_repeated_is_accepted(sampler: Any) -> None:
    LoaderPosition(DataLoader(Rows(), sampler=sampler))


def rotating(**options: Any) -> DataLoader[int]:
    return DataLoader(Rows(), batch_size=BATCH, sampler=Rotating(), **options)


@pytest.mark.parametrize("stop", [2, NUM_BATCHES, 9])
def test_a_sampler_with_a_state_continues_from_it(stop: int, tmp_path: Path) -> None:
    whole = uninterrupted(rotating, 15)
    assert interrupted(rotating, tmp_path, stop, 15) == whole


def saved_after(loader: Any, num_batches: int) -> dict[str, Any]:
    position = LoaderPosition(loader)
    iterator = iter(loader)
    for _ in range(num_batches):
        next(iterator)
    return position.state_dict()


@pytest.mark.parametrize(
    "other",
    [
        lambda: DataLoader(Rows(), batch_size=2, shuffle=True),
        lambda: DataLoader([*range(NUM_SAMPLES + 1)], batch_size=BATCH, shuffle=True),
        lambda: DataLoader([*range(5)], batch_size=BATCH, shuffle=True),
        lambda: DataLoader(Rows(), batch_size=BATCH),
    ],
    ids=["batch size", "one sample more", "an epoch too short", "not shuffled"],
)
def test_an_order_that_is_no_longer_the_same_is_refused(other: Any) -> None:
    state = saved_after(shuffled(), 3)
    loader = other()
    position = LoaderPosition(loader)
    position.load_state_dict(state)
    with pytest.raises(CheckpointError, match="cannot continue its order"):
        next(iter(loader))


# Other numbers of ranks.


def of_rank(rank: int, num_ranks: int, *, drop_last: bool = False) -> DataLoader[int]:
    sampler = DistributedSampler(Rows(), num_replicas=num_ranks, rank=rank, seed=5, drop_last=drop_last)
    sampler.set_epoch(3)
    return DataLoader(Rows(), batch_size=2, sampler=sampler)


def rows_of(loader: Any) -> list[int]:
    return [row for batch in loader for row in batch.tolist()]


@pytest.mark.parametrize("num_then", [1, 3, 4])
def test_another_number_of_ranks_shares_what_is_left_of_the_epoch(num_then: int) -> None:
    """Twice: two ranks stop after two batches, then others after one batch, then two ranks again."""
    states = [saved_after(of_rank(rank, 2), 2) for rank in range(2)]
    used = [row for rank in range(2) for row in rows_of(of_rank(rank, 2))[:4]]
    loaders = [of_rank(rank, num_then) for rank in range(num_then)]
    positions = [LoaderPosition(loader) for loader in loaders]
    for position in positions:
        position.load_state_dict(states[0])
    for loader in loaders:
        used += next(iter(loader)).tolist()
    again = [position.state_dict() for position in positions]
    last = [of_rank(rank, 2) for rank in range(2)]
    for loader in last:
        position = LoaderPosition(loader)
        position.load_state_dict(again[0])
        used += rows_of(loader)
    assert sorted(set(used)) == list(range(NUM_SAMPLES))
    assert (
        len(used) - NUM_SAMPLES == (NUM_SAMPLES - 8 - 2 * num_then) % 2
    )  # the sampler's own: ranks have equal numbers


def test_a_script_that_counts_epochs_from_zero_again_gets_the_rest_of_the_saved_epoch_first(
    caplog: pytest.LogCaptureFixture,
) -> None:
    state = saved_after(of_rank(0, 2), 2)
    loader = of_rank(0, 2)
    position = LoaderPosition(loader)
    position.load_state_dict(state)
    loader.sampler.set_epoch(0)  # type: ignore[attr-defined]
    assert rows_of(loader) == rows_of(of_rank(0, 2))[4:]
    assert "the script sets epoch 0, but the checkpoint is in epoch 3" in caplog.text
    assert loader.sampler.epoch == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(("epoch", "is_rest"), [(3, True), (4, False)])
def test_an_epoch_that_was_complete_is_not_loaded_again(epoch: int, is_rest: bool) -> None:
    state = saved_after(of_rank(0, 2), NUM_BATCHES)
    loader = of_rank(0, 2)
    position = LoaderPosition(loader)
    position.load_state_dict(state)
    loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
    assert len(rows_of(loader)) == (0 if is_rest else 11)


# Loaders that the Checkpointer does not know.


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (shuffled, "pass `data=` with this loader to Checkpointer"),
        (
            lambda: DataLoader(Stream()),
            "Stream is an iterable data set, whose position only",
        ),
    ],
)
def test_a_loader_that_is_not_saved_is_named_at_the_first_batch(
    make: Any, says: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Checkpointer(tmp_path, model=torch.nn.Linear(1, 1)):
        with torch.no_grad():
            next(iter(in_order()))  # of an evaluation
        assert not caplog.records
        loader = make()
        next(iter(loader))
        next(iter(loader))
    (line,) = [record.getMessage() for record in caplog.records]
    assert "a restart begins its epoch again" in line
    assert says in line


def test_nothing_is_said_of_a_loader_that_is_saved_by_its_sampler(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loader = rotating()
    original = DataLoader._get_iterator
    with Checkpointer(tmp_path, model=torch.nn.Linear(1, 1), state={"sampler": loader.sampler}):
        next(iter(loader))
    assert not caplog.records
    assert DataLoader._get_iterator is original
