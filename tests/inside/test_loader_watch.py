"""What the first batches of a DataLoader show: waiting or computing, random draws, state."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset

from flatout.inside.phases.facts import _loader_facts
from flatout.inside.protocol import NUM_WATCHED_BATCHES
from flatout.inside.recording.loader_watch import WATCHES, LoaderWatch, hook_fetchers


class Samples(Dataset[torch.Tensor]):
    """40 samples, each made by the function that is given."""

    def __init__(self, make: Callable[[Samples, int], Any] = lambda self, i: None) -> None:
        self.make = make
        self.cache: dict[int, int] = {}
        self.count = 0
        self.scale = 1.0
        self.generator = torch.Generator().manual_seed(0)
        self.rng = random.Random(0)
        self.numpy_rng = np.random.default_rng(0)

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        self.make(self, index)
        return torch.full((2,), float(index))


class WithEpoch(Samples):
    epoch = 0


class WithSetEpoch(Samples):
    def set_epoch(self, epoch: int) -> None:
        pass


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        for index in range(40):
            yield torch.full((2,), float(index))


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[LoaderWatch]:
    undo = hook_fetchers(tmp_path / "state")
    yield WATCHES[0]
    undo()


def facts(dataset: Any, num_workers: int = 0, num_batches: int = 8) -> dict[str, Any]:
    """The facts of a loader after some of its batches."""
    iterator = iter(DataLoader(dataset, batch_size=2, num_workers=num_workers))
    for _ in range(num_batches):
        next(iterator)
    found = _loader_facts([iterator])
    del iterator
    return found


def compute(dataset: Samples, index: int) -> None:
    until = time.thread_time() + 0.002
    while time.thread_time() < until:
        pass


def wait(dataset: Samples, index: int) -> None:
    time.sleep(0.002)


def cache(dataset: Samples, index: int) -> None:
    dataset.cache[index] = index


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_loader_that_waits_has_a_small_share_of_cpu_time(watch: LoaderWatch, num_workers: int) -> None:
    assert facts(Samples(wait), num_workers)["loader_cpu_share"] < 0.5


def test_a_loader_that_computes_has_a_large_share_of_cpu_time(watch: LoaderWatch) -> None:
    """Time in the queue for a core does not count as waiting, but a hypervisor's other guests cannot be seen."""
    assert max(facts(Samples(compute))["loader_cpu_share"] for _ in range(5)) > 0.7


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    ("make", "draws"),
    [
        (lambda self, i: None, False),
        (lambda self, i: torch.randn(2), True),
        (lambda self, i: random.random(), True),
        (lambda self, i: np.random.rand(), True),  # noqa: NPY002
        (lambda self, i: torch.randn(2, generator=torch.Generator().manual_seed(i)), False),
    ],
    ids=["none", "torch", "random", "numpy", "own seed"],
)
def test_draws_of_the_process_are_noticed(
    watch: LoaderWatch, make: Callable[[Samples, int], Any], draws: bool, num_workers: int
) -> None:
    assert facts(Samples(make), num_workers)["loader_draws"] is draws


def rescale(dataset: Samples, index: int) -> None:
    dataset.scale += 1


STATE: dict[str, tuple[Any, bool]] = {
    "none": (Samples(), False),
    "a cache": (Samples(cache), True),
    "an attribute": (Samples(rescale), True),
    "a generator of torch": (Samples(lambda self, i: torch.randn(2, generator=self.generator)), True),
    "a generator of random": (Samples(lambda self, i: self.rng.random()), True),
    "a generator of numpy": (Samples(lambda self, i: self.numpy_rng.random()), True),
    "an epoch": (WithEpoch(), True),
    "set_epoch": (WithSetEpoch(), True),
    "a wrapped epoch": (Subset(WithEpoch(), range(40)), True),
    "a wrapped cache": (Subset(Samples(cache), range(40)), True),
    "a stream": (Stream(), False),
}


@pytest.mark.parametrize("name", list(STATE))
def test_state_of_the_data_set_is_noticed(watch: LoaderWatch, name: str) -> None:
    dataset, keeps_state = STATE[name]
    assert facts(dataset)["loader_keeps_state"] is keeps_state


def test_state_in_a_worker_is_noticed_too(watch: LoaderWatch) -> None:
    assert facts(Samples(cache), num_workers=1)["loader_keeps_state"] is True


def test_what_only_the_first_batch_changes_is_no_state(watch: LoaderWatch) -> None:
    """Such as a file that is opened when the first sample is read."""

    def open_once(dataset: Samples, index: int) -> None:
        dataset.count = 1

    assert facts(Samples(open_once))["loader_keeps_state"] is False


def test_an_iterable_data_set_is_known(watch: LoaderWatch) -> None:
    assert facts(Stream())["loader_is_iterable"] is True
    assert facts(Samples())["loader_is_iterable"] is False


def test_after_some_batches_nothing_is_watched(watch: LoaderWatch) -> None:
    dataset = Samples(wait)
    facts(dataset, num_batches=NUM_WATCHED_BATCHES + 2)
    report = watch.report_of(dataset)
    assert report is not None
    assert report.num_batches == NUM_WATCHED_BATCHES


def test_a_data_set_with_the_id_of_one_that_is_gone_is_watched_anew(watch: LoaderWatch) -> None:
    """As of one that is made for each epoch: CPython gives the memory of an object to the next one of its kind."""
    first, second = Samples(cache), Samples()
    facts(first)
    watch._reports[id(second)] = watch._reports.pop(id(first))
    del first
    assert watch.report_of(second) is None
    assert facts(second)["loader_keeps_state"] is False
    report = watch.report_of(second)
    assert report is not None and report.num_batches == 8


def test_an_error_of_the_data_set_is_raised_as_it_is(watch: LoaderWatch) -> None:
    def fail(dataset: Samples, index: int) -> None:
        raise KeyError("a sample")

    with pytest.raises(KeyError, match="a sample"):
        facts(Samples(fail))


class Unreadable(Samples):
    """Raises when anything but PyTorch looks at it."""

    @property
    def bit_generator(self) -> Any:
        raise RuntimeError("not for you")


def test_what_cannot_be_looked_at_is_no_error_of_the_job(watch: LoaderWatch) -> None:
    with torch.inference_mode():
        samples = Samples(wait)
        samples.made_in_inference_mode = torch.zeros(3)  # type: ignore[attr-defined]
        assert facts(samples)["loader_draws"] is False
    loader = DataLoader([Unreadable(wait)] * 4, batch_size=2, collate_fn=len)
    assert list(loader) == [2, 2]


def test_the_batches_and_the_random_state_are_those_without_the_watch(tmp_path: Path) -> None:
    def batches() -> list[list[float]]:
        torch.manual_seed(3)
        loader = DataLoader(Samples(lambda self, i: torch.randn(2)), batch_size=2, shuffle=True)
        return [batch.flatten().tolist() for batch in loader] + [torch.randn(3).tolist()]

    before = batches()
    undo = hook_fetchers(tmp_path)
    assert batches() == before
    undo()
    assert not WATCHES


def test_nothing_is_known_of_a_loader_that_was_not_watched() -> None:
    found = facts(Samples())
    assert "loader_cpu_share" not in found
