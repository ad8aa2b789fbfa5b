"""How long a loader's sampler takes at the start of each epoch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data import DataLoader, Sampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from flatout.inside.recording import sampler_times
from flatout.inside.recording.sampler_times import SamplerTimes, hook_samplers

SLOW_S = 0.02


class Slow(Sampler[int]):
    """Computes the order of an epoch before its first index, and sleeps for nothing else."""

    def __iter__(self) -> Iterator[int]:
        time.sleep(SLOW_S)
        yield from range(4)

    def __len__(self) -> int:
        return 4


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The times of this test, with the hook in place."""
    made = SamplerTimes()
    monkeypatch.setattr(sampler_times, "SAMPLER_TIMES", made)
    undo = hook_samplers()
    yield made
    undo()


def test_the_first_indices_of_each_epoch_are_timed_and_no_others(times: SamplerTimes) -> None:
    loader = DataLoader(list(range(4)), sampler=Slow(), batch_size=1)
    iterators = []
    for _ in range(3):
        iterator = iter(loader)
        iterators.append(iterator)
        assert [int(batch) for batch in iterator] == [0, 1, 2, 3]
    (firsts,) = times._firsts.values()
    assert len(firsts) == 3 and min(firsts) >= SLOW_S
    assert times.facts_of(iterators[-1])["loader_sampler_s"] == pytest.approx(SLOW_S, rel=0.5)


def test_a_fast_sampler_of_another_loader_is_told_apart(times: SamplerTimes) -> None:
    slow, fast = (iter(DataLoader([0, 1, 2, 3], sampler=of)) for of in (Slow(), None))
    next(slow), next(fast)
    assert times.facts_of(fast)["loader_sampler_s"] < SLOW_S / 4 < times.facts_of(slow)["loader_sampler_s"]


def test_an_iterator_without_a_sampler_and_a_removed_hook_tell_nothing(times: SamplerTimes) -> None:
    assert times.facts_of(object()) == {}
    before = _BaseDataLoaderIter._next_index
    hook_samplers()()
    assert _BaseDataLoaderIter._next_index is before
