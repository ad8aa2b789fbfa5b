"""Checkpoints that a script writes are annotated, timed, and told as what the training waits for."""

from __future__ import annotations

import inspect
import io
import json
import pickle
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from tests.profile.runs import recorded, run, torchrun

from flatout.inside.checkpoints.checkpoint_hooks import CheckpointHooks
from flatout.profile import read_recording

pytestmark = pytest.mark.usefixtures("warm")


def test_checkpoints_are_found_on_both_ranks(tmp_path: Path) -> None:
    command = torchrun("--steps", 60, "--mode", "checkpointing")
    plain = run(command)
    recording, done = recorded(tmp_path / "r", command, "--warmup", "12", "--steps", "4", "--json")
    assert sorted(done.stdout.splitlines()[:-1]) == sorted(plain.stdout.splitlines())
    assert "Parent directory" in plain.stdout
    diagnosis = json.loads(done.stdout.splitlines()[-1])
    for rank, parts in zip(recording.ranks, diagnosis["ranks"], strict=True):
        assert len(rank.traced_steps) == 4
        share = rank.steps.checkpoint_s[2:] / rank.steps.duration_s[2:]
        assert np.median(share) > 0.1
        assert (share > 0).all()
        assert (share < 1).all()
        assert parts["parts_s"]["checkpoint"] > 0.2 * parts["window_s"]
    (finding,) = [one for one in diagnosis["findings"] if one["name"] == "checkpoint-stall"]
    assert finding["share_of_step"] > 0.1


def test_a_recording_without_the_column_is_read(tmp_path: Path) -> None:
    """Recordings of before it was added."""
    (tmp_path / "recording.json").write_text("{}")
    header = {"rank": 0, "world_size": 1, "hostname": "one", "device": None, "backend": None, "torch": "2.13.0"}
    header |= {"steps_from": "optimizer", "base_unix_ns": 0}
    columns = ["step", "start_ns", "duration_ns", "loader_ns", "num_batches", "num_samples", "num_tokens"]
    columns += ["num_backward", "is_skipped", "kind", "loss", "peak_memory_bytes", "num_alloc_retries"]
    lines = [{**header, "columns": columns}, [0, 1, 10, 2, 1, 4, None, 1, None, "", 1.5, None, None]]
    (tmp_path / "rank0.steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (rank,) = read_recording(tmp_path).ranks
    assert list(rank.steps.checkpoint_s) == [0]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    said: list[str] = []
    hooks = CheckpointHooks(lambda: said.append("begins") or "token", said.append)
    before = torch.save
    hooks.install()
    hooks.look()
    yield said
    hooks.remove()
    assert torch.save is before


def test_save_is_as_before_to_who_calls_it(calls: list[str]) -> None:
    assert torch.save is torch.serialization.save
    assert pickle.loads(pickle.dumps(torch.save)) is torch.save
    assert list(inspect.signature(torch.save).parameters)[:2] == ["obj", "f"]
    file = io.BytesIO()
    torch.save({"a": 1}, file)
    assert torch.load(io.BytesIO(file.getvalue())) == {"a": 1}
    with pytest.raises(AttributeError):
        torch.save({"a": 1}, 3)
    assert calls == ["begins", "token"] * 2


def test_distributed_checkpoints_are_hooked_once_they_are_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("torch.distributed.checkpoint.state_dict_saver", "torch.distributed.checkpoint")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    said: list[str] = []
    hooks = CheckpointHooks(lambda: said.append("begins") or "token", said.append)
    hooks.look()
    saver, package = (ModuleType(name) for name in names)
    saver._save_state_dict = lambda: "saved"  # type: ignore[attr-defined]
    saver.save = package.save = held = lambda: saver._save_state_dict()  # type: ignore[attr-defined]
    for module in (saver, package):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    hooks.look()
    assert package.save is saver.save is not held
    assert held() == "saved"
    assert said == ["begins", "token"]
    hooks.remove()
    assert package.save is saver.save is held


def test_flatouts_own_checkpoints_are_hooked_and_what_they_write_in_the_background_is_not(tmp_path: Path) -> None:
    from flatout.checkpoint import Checkpointer

    said: list[str] = []
    hooks = CheckpointHooks(lambda: said.append("begins") or "token", said.append)
    before = Checkpointer.save
    hooks.look()
    with Checkpointer(tmp_path / "ckpt", model=torch.nn.Linear(2, 2)) as checkpointer:
        assert checkpointer.save(1)
        checkpointer.wait()
    hooks.remove()
    assert said == ["begins", "token"] and Checkpointer.save is before
