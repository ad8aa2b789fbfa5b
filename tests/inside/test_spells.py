"""Spells: the columns of a step in which something rare happened, and the hooks that note it."""

from __future__ import annotations

import gc
import time
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from flatout.inside.recording.spell_hooks import (
    MIN_COLLECTION_NS,
    LateHooks,
    hook_collections,
    hook_evaluations,
    hook_loader_starts,
)
from flatout.inside.recording.spells import (
    CHECKPOINT,
    COLLECTION,
    EVALUATION,
    LOADER_START,
    NO_SPELLS,
    Spells,
    SpellTimes,
)
from flatout.inside.recording.start_times import START_TIMES


def loads(spells: Spells, *times: tuple[int, int]) -> None:
    for began, ended in times:
        spells.load(began, ended)


def test_an_ordinary_step_has_none() -> None:
    spells = Spells()
    loads(spells, (10, 12))
    spells.backward()
    assert spells.close(1) == NO_SPELLS


def test_what_is_within_another_spell_belongs_to_the_outer_one() -> None:
    spells = Spells()
    spells.add(COLLECTION, 20, 30)  # noted when it ends, so before the outer spell
    spells.add(CHECKPOINT, 10, 50)
    spells.add(COLLECTION, 45, 70)  # 20 of it after the checkpoint
    times = spells.close(1)
    assert times == NO_SPELLS._replace(checkpoint_ns=40, collection_ns=20)
    assert spells.close(1) == NO_SPELLS


def test_an_evaluation_ends_with_train() -> None:
    spells = Spells()
    spells.evaluation_begins(100)
    spells.evaluation_begins(105)  # of a part
    loads(spells, (110, 120), (130, 140))
    spells.add(LOADER_START, 106, 120)
    spells.loader_ended(190)
    spells.evaluation_ends(200)
    loads(spells, (210, 220))
    spells.backward()
    assert spells.close(1) == NO_SPELLS._replace(evaluation_ns=100, evaluation_loader_ns=120 - 106)


def test_only_the_starts_of_loaders_within_an_evaluation_belong_to_it_and_each_moment_once() -> None:
    spells = Spells()
    spells.add(LOADER_START, 80, 130)  # 30 of it in the evaluation
    spells.add(LOADER_START, 120, 140)  # of a loader inside the first one's start: 10 more
    spells.add(LOADER_START, 195, 260)  # 5 of it, and the rest is the training's
    spells.evaluation_begins(100)
    spells.evaluation_ends(200)
    times = spells.close(1)
    assert times.evaluation_loader_ns == 30 + 10 + 5
    assert spells.close(1) == NO_SPELLS


def test_an_evaluation_whose_mode_is_restored_silently_ends_with_the_batch_that_is_trained_on() -> None:
    spells = Spells()
    spells.evaluation_begins(100)
    loads(spells, (110, 120), (130, 140), (210, 220))
    spells.backward()
    spells.evaluation_ends(400)  # the next epoch begins with `train()`
    assert spells.close(1).evaluation_ns == 210 - 100


def test_a_frozen_part_in_evaluation_mode_is_no_evaluation() -> None:
    spells = Spells()
    spells.evaluation_begins(100)
    loads(spells, (110, 120))
    spells.backward()
    assert spells.close(1).evaluation_ns == 0
    spells.evaluation_ends(300)
    assert spells.close(1).evaluation_ns == 0


@pytest.mark.parametrize(("work_ns", "evaluation_ns"), [(4, 0), (6, 212)])
def test_batches_without_a_backward_pass_are_an_evaluation_if_the_script_works_between_them(
    work_ns: int, evaluation_ns: int
) -> None:
    spells = Spells()
    loads(spells, (0, 100), (100 + work_ns, 200 + work_ns), (200 + 2 * work_ns, 230))
    spells.backward()
    assert spells.close(1).evaluation_ns == evaluation_ns


@pytest.mark.parametrize(("num_before", "is_evaluation"), [(1, False), (2, True)])
def test_one_batch_more_than_backward_passes_is_no_evaluation(num_before: int, is_evaluation: bool) -> None:
    spells = Spells()
    loads(spells, *((100 * number, 100 * number + 10) for number in range(num_before + 1)))
    spells.backward()
    assert bool(spells.close(1).evaluation_ns) == is_evaluation


def test_the_ends_of_loaders_count_outside_evaluations() -> None:
    spells = Spells()
    spells.add(EVALUATION, 100, 200)
    spells.loader_ended(150)
    spells.loader_ended(250)
    assert spells.close(1).num_loader_ends == 1


class Noted:
    """Takes what the hooks note."""

    def __init__(self) -> None:
        self.spells: list[tuple[int, int, bool]] = []
        self.modes: list[str] = []

    def spell(self, kind: int, began: int, ended: int, *, is_full: bool = False) -> None:
        self.spells.append((kind, ended - began, is_full))

    def evaluation_begins(self, now: int) -> None:
        self.modes.append("eval")

    def evaluation_ends(self, now: int) -> None:
        self.modes.append("train")


def test_collections_are_noted_if_they_take_long() -> None:
    noted = Noted()
    heap = [[number] for number in range(200_000)]
    gc.disable()
    undo = hook_collections(lambda: noted)
    try:
        gc.collect()
        gc.collect(0)  # the young generation is empty now
    finally:
        undo()
        gc.enable()
    gc.collect()
    del heap
    (kind, took_ns, is_full) = noted.spells[0]
    assert (kind, is_full) == (COLLECTION, True)
    assert took_ns > 1_000_000
    assert all(took >= MIN_COLLECTION_NS for _, took, _ in noted.spells)
    assert len([1 for _, _, full in noted.spells if full]) == 1


def test_the_hooks_survive_a_script_that_clears_the_callbacks() -> None:
    undo = hook_collections(Noted)
    gc.callbacks.clear()
    undo()


def test_evaluations_are_noted_and_train_is_hooked_only_during_one() -> None:
    noted = Noted()
    original_train, original_eval = torch.nn.Module.train, torch.nn.Module.eval
    undo = hook_evaluations(lambda: noted)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    try:
        model.train()
        assert torch.nn.Module.train is original_train
        model.eval()
        model.eval()
        assert not model[0].training
        assert torch.nn.Module.train is not original_train
        model.train()
        assert model[0].training
        assert torch.nn.Module.train is original_train
        model.eval()
    finally:
        undo()
    assert noted.modes == ["eval", "eval", "train", "eval"]
    assert torch.nn.Module.train is original_train and torch.nn.Module.eval is original_eval


@pytest.mark.parametrize("is_evaluation", [True, False])
def test_an_evaluation_before_the_first_event_is_noted_if_it_computes_no_gradients(is_evaluation: bool) -> None:
    """A library that loads its model in evaluation mode, as `from_pretrained` does, has evaluated nothing."""
    START_TIMES.clear()
    undo = hook_evaluations(lambda: None)
    model = torch.nn.Linear(2, 2)
    try:
        model.eval()
        with torch.no_grad() if is_evaluation else nullcontext():
            model.train()
    finally:
        undo()
    assert len(START_TIMES.evaluations) == is_evaluation
    assert START_TIMES.fields()["process_ns"] <= START_TIMES.fields()["torch_ns"]
    START_TIMES.clear()


def test_the_start_of_a_loader_before_the_first_event_is_noted() -> None:
    START_TIMES.clear()
    undo = hook_loader_starts(lambda: None)
    try:
        iter(DataLoader(TensorDataset(torch.zeros(4, 1)), batch_size=2))
    finally:
        undo()
    ((began, ended),) = START_TIMES.fields()["loaders"]
    assert 0 <= time.time_ns() - ended < 60e9 and began <= ended
    START_TIMES.clear()


def test_the_start_of_a_loader_is_noted() -> None:
    noted = Noted()
    undo = hook_loader_starts(lambda: noted)
    try:
        assert len(list(DataLoader(TensorDataset(torch.zeros(4, 1)), batch_size=2))) == 2
    finally:
        undo()
    assert [kind for kind, _, _ in noted.spells] == [LOADER_START]


def test_hooks_of_later_imports_note_compilations_and_loggers(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import ModuleType

    import torch._dynamo.callback as callback

    class Run:
        def log(self, value: Any) -> Any:
            return value

    wandb: Any = ModuleType("wandb.sdk.wandb_run")
    wandb.Run = Run
    monkeypatch.setitem(sys.modules, "wandb.sdk.wandb_run", wandb)
    noted = Noted()
    late = LateHooks(lambda: noted)
    starts, ends = list(callback.callback_handler.start_callbacks), list(callback.callback_handler.end_callbacks)
    try:
        late.look()
        late.look()
        assert Run().log(3) == 3
        for begins in callback.callback_handler.start_callbacks[len(starts) :]:
            begins(None)
        for ended in callback.callback_handler.end_callbacks[len(ends) :]:
            ended(None)
    finally:
        callback.callback_handler.start_callbacks[:] = starts
        callback.callback_handler.end_callbacks[:] = ends
    assert len(noted.spells) == 2


def test_columns_are_integers() -> None:
    assert all(isinstance(value, int) for value in SpellTimes(*NO_SPELLS))
