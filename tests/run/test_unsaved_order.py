"""A loader whose position nothing saves is named when its job begins, once, and no other loader is."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tests.keep.beating import Clock, Rank
from torch.utils.data import DataLoader, IterableDataset, Sampler, SequentialSampler, TensorDataset

from flatout.inside.liveness.unsaved_order import UnsavedOrder
from flatout.inside.protocol import File
from flatout.keep.heartbeats import HeartbeatReader, HeartbeatSample, ranks_of
from flatout.run.unsaved_order import OrderNotice

ROWS = TensorDataset(torch.arange(8))


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


class StatefulStream(Stream):
    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


class OwnOrder(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([1, 0])


class StatefulOrder(SequentialSampler):
    state_dict = StatefulStream.state_dict
    load_state_dict = StatefulStream.load_state_dict


@pytest.fixture(autouse=True)
def no_savers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand for a process that has imported neither the Checkpointer nor a trainer that skips batches."""
    for name in ("flatout.checkpoint.checkpointer", "transformers.trainer"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def said(folder: Path, ranks: list[HeartbeatSample] | None = None) -> list[str]:
    lines: list[str] = []
    notice = OrderNotice(lambda: folder, lines.append)
    notice.look(ranks or [])
    notice.look(ranks or [])
    return lines


@pytest.mark.parametrize(
    ("loader", "name", "way_out"),
    [
        (DataLoader(ROWS, shuffle=True), "DataLoader over TensorDataset", "pass `data=` with this loader to flatout."),
        (DataLoader(Stream()), "DataLoader over Stream", "use torchdata's StatefulDataLoader"),
        (DataLoader(ROWS, sampler=OwnOrder()), "DataLoader over TensorDataset", "or use a sampler of torch"),
    ],
)
def test_a_loader_that_nothing_saves_is_named_once_with_the_way_out(
    loader: DataLoader[int], name: str, way_out: str, tmp_path: Path
) -> None:
    order = UnsavedOrder(tmp_path)
    with torch.no_grad():
        order.epoch_begins(DataLoader(StatefulStream()))  # of an evaluation
    order.epoch_begins(loader)
    order.epoch_begins(DataLoader(Stream(), batch_size=3))
    (line,) = said(tmp_path)
    assert line.startswith(f"the position of the {name} is not saved") and way_out in line


@pytest.mark.parametrize("loader", [DataLoader(StatefulStream()), DataLoader(ROWS, sampler=StatefulOrder(range(8)))])
def test_nothing_is_said_of_a_loader_that_has_a_state(loader: DataLoader[int], tmp_path: Path) -> None:
    UnsavedOrder(tmp_path).epoch_begins(loader)
    assert said(tmp_path) == []


@pytest.mark.parametrize("saver", ["flatout.checkpoint.checkpointer", "transformers.trainer"])
def test_nothing_is_said_where_a_library_saves_or_skips(
    saver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, saver, ModuleType(saver))
    UnsavedOrder(tmp_path).epoch_begins(DataLoader(ROWS))
    assert said(tmp_path) == []


def test_only_the_first_rank_notes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    UnsavedOrder(tmp_path).epoch_begins(DataLoader(ROWS))
    assert list(tmp_path.iterdir()) == []


def test_no_note_is_awaited_once_a_rank_has_made_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(tmp_path, 0, 1, Clock(), monkeypatch)
    rank.steps()
    lines: list[str] = []
    notice = OrderNotice(lambda: tmp_path, lines.append)
    notice.look(ranks_of(HeartbeatReader(tmp_path).read()))
    UnsavedOrder(tmp_path).epoch_begins(DataLoader(ROWS))
    notice.look([])
    assert lines == []


def test_a_damaged_note_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / File.UNSAVED_ORDER.of(0)).write_text("{")
    assert said(tmp_path) == []
