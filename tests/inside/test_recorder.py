"""What the hooks report to the recorder, where the training does unusual things."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from flatout.inside.protocol import STEP_COLUMNS
from flatout.inside.recording import rank_output, spells
from flatout.inside.recording import recorder as module
from flatout.inside.recording.recorder import StepRecorder
from flatout.inside.settings import RecorderSettings


def recorder(folder: Path) -> StepRecorder:
    (folder / ".state").mkdir(exist_ok=True)
    return StepRecorder(RecorderSettings(recording=folder, is_light=True), lambda: None)


def rows(folder: Path) -> list[list[Any]]:
    lines = map(json.loads, (folder / "rank0.steps.jsonl").read_text().splitlines())
    return [line for line in lines if isinstance(line, list)]


@pytest.fixture(autouse=True)
def no_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_output, "start_sampler", lambda *_: None)


def sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.zeros(1)])


def train(one: StepRecorder, optimizer: torch.optim.Optimizer, batch: Any) -> None:
    assert one.load(lambda given: given, batch) is batch
    one.backward_begins(torch.tensor(1.0))
    one.optimizer_stepped(optimizer, is_skipped=None)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("is_list", [False, True])
def test_nested_tensors_are_batches_without_a_shape(tmp_path: Path, is_list: bool) -> None:
    nested = torch.nested.nested_tensor([torch.ones(1, 2), torch.ones(3, 2)])
    one, optimizer = recorder(tmp_path), sgd()
    for _ in range(3):
        train(one, optimizer, [nested, 1] if is_list else nested)
    one.finish()
    assert [row[4:7] for row in rows(tmp_path)] == [[1, 2, None]] * 3
    assert not list(tmp_path.glob("inside-*.log"))


def test_an_optimizer_of_each_round_makes_steps_of_its_own(tmp_path: Path) -> None:
    one = recorder(tmp_path)
    optimizer = sgd()
    for _ in range(20):
        optimizer = sgd()  # while the one before still lives: addresses alternate
        for _ in range(8):
            train(one, optimizer, torch.ones(4, 2))
    one.finish()
    assert [row[0] for row in rows(tmp_path)] == list(range(160))


def test_a_long_evaluation_holds_no_more_and_more_notes(tmp_path: Path) -> None:
    one, optimizer = recorder(tmp_path), sgd()
    train(one, optimizer, torch.ones(4, 2))
    for _ in range(3 * module._MAX_NOTES):
        one.load(lambda given: given, torch.ones(4, 2))
        one.backward_begins(torch.tensor(1.0))
    assert len(one._notes) <= module._MAX_NOTES + 1
    train(one, optimizer, torch.ones(4, 2))
    one.finish()
    assert [row[4] for row in rows(tmp_path)] == [1, 3 * module._MAX_NOTES + 1]


def test_spells_are_in_the_row_of_their_step_and_in_no_other(tmp_path: Path) -> None:
    one, optimizer = recorder(tmp_path), sgd()
    train(one, optimizer, torch.ones(4, 2))
    one.spell(spells.COLLECTION, 10, 30, is_full=True)
    one.evaluation_begins(100)
    one.evaluation_ends(150)
    train(one, optimizer, torch.ones(4, 2))
    train(one, optimizer, torch.ones(4, 2))
    one.finish()
    columns = [dict(zip(STEP_COLUMNS, row, strict=True)) for row in rows(tmp_path)]
    assert [row["collection_ns"] for row in columns] == [0, 20, 0]
    assert [row["num_full_collections"] for row in columns] == [0, 1, 0]
    assert [row["evaluation_ns"] for row in columns] == [0, 50, 0]
