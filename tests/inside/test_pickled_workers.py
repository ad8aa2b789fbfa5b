"""What is pickled for each worker of a loader that is spawned."""

from __future__ import annotations

import io
import multiprocessing.reduction
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data._utils.worker import _worker_loop

from flatout.inside.recording import pickled_workers
from flatout.inside.recording.pickled_workers import PickledWorkers, hook_pickled_workers


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The notes of this test, with the hook in place."""
    notes = PickledWorkers()
    monkeypatch.setattr(pickled_workers, "PICKLED_WORKERS", notes)
    undo = hook_pickled_workers()
    yield notes
    undo()


def dump(obj: Any) -> int:
    """Pickle as `popen_spawn_posix` does, behind what it has written before; return the bytes of this object."""
    file = io.BytesIO()
    multiprocessing.reduction.dump({"of": "the interpreter"}, file)
    before = file.tell()
    multiprocessing.reduction.dump(obj, file)
    file.seek(before)
    assert pickle.load(file)._args == obj._args
    return file.getbuffer().nbytes - before


def test_the_largest_worker_of_a_loader_is_noted(noted: PickledWorkers) -> None:
    small = dump(SimpleNamespace(_target=_worker_loop, _args=(b"x" * 10,)))
    assert noted.facts()["loader_pickled_bytes"] == small
    large = dump(SimpleNamespace(_target=_worker_loop, _args=(b"x" * 1_000_000,)))
    dump(SimpleNamespace(_target=_worker_loop, _args=(b"x" * 10,)))
    assert noted.facts()["loader_pickled_bytes"] == large > 1_000_000
    assert noted.facts()["loader_pickled_s"] >= 0


def test_other_processes_are_not_noted_and_get_the_same_pickle(noted: PickledWorkers) -> None:
    dump(SimpleNamespace(_target=print, _args=(b"x" * 10,)))
    assert noted.facts() == {}


def test_a_file_without_a_position_and_an_object_that_refuses_are_left_to_pickle(noted: PickledWorkers) -> None:
    class Refuses:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    with pytest.raises(AttributeError, match="pickle"):  # of pickle itself: the hook raises nothing of its own
        multiprocessing.reduction.dump(Refuses(), io.BytesIO())
    multiprocessing.reduction.dump(SimpleNamespace(_target=_worker_loop), SimpleNamespace(write=lambda data: None))
    assert noted.facts() == {}


def test_the_hook_is_removed() -> None:
    before = multiprocessing.reduction.dump
    hook_pickled_workers()()
    assert multiprocessing.reduction.dump is before
