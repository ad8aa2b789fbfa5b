"""How many batches a loader's workers have made ahead, in real loaders."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from flatout.inside.recording.loader_queue import num_ready


class Samples(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((4,), float(index))


def waits_for(count: Callable[[], int | None], expected: int) -> bool:
    deadline = time.monotonic() + 30
    while count() != expected and time.monotonic() < deadline:
        time.sleep(0.01)
    return count() == expected


def test_the_batches_that_workers_made_ahead_are_counted_and_stay() -> None:
    iterator = iter(DataLoader(Samples(), num_workers=2, prefetch_factor=3, multiprocessing_context="fork"))
    assert waits_for(lambda: num_ready(iterator), 6)
    taken = [float(next(iterator)[0, 0]) for _ in range(4)]
    assert taken == [0.0, 1.0, 2.0, 3.0]  # counting takes nothing out of order
    assert waits_for(lambda: num_ready(iterator), 6)
    iterator._shutdown_workers()


@pytest.mark.parametrize("iterator", [None, iter(DataLoader(Samples())), object()])
def test_without_workers_there_is_nothing_to_count(iterator: object) -> None:
    assert num_ready(iterator) is None


def test_queues_that_cannot_be_counted_are_unknown() -> None:
    class Other:
        _num_workers = 2

    assert num_ready(Other()) is None
