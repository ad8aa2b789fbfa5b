"""What a hostile user, an unlucky moment or an odd model does to a checkpoint."""

from __future__ import annotations

import os
import random
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.checkpoint.ranks import run as run_ranks
from tests.checkpoint.test_checkpointer import flip, resumed, running, same, steps
from tests.checkpoint.test_snapshot import unusual

from flatout.checkpoint import Checkpointer, CheckpointError
from flatout.checkpoint import store as store_module
from flatout.checkpoint.reader import Saved
from flatout.checkpoint.store import Store


class Odd(torch.nn.Module):
    """Buffers of every dtype, and in every memory layout that one can have."""

    def __init__(self, *, is_zero: bool) -> None:
        super().__init__()
        kinds = {name: tensor for name, tensor in unusual().items() if name != "expanded"}  # torch cannot write into it
        kinds |= {"complex scalar": torch.tensor(1.5 - 2.5j, dtype=torch.complex128), "no": torch.tensor(True)}
        flat = torch.randn(10)
        kinds |= {"first": flat[:6], "last": flat[4:], "same": kinds["scalar"]}
        for name, tensor in kinds.items():
            if is_zero:
                tensor.untyped_storage().fill_(0)
            self.register_buffer(name.replace(".", " "), tensor)


def values(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    found = {name: value.resolve_conj().resolve_neg() for name, value in model.state_dict().items()}
    return {name: value.float() if "float8" in name else value.clone() for name, value in found.items()}


def test_every_dtype_and_layout_comes_back(tmp_path: Path) -> None:
    model, other = Odd(is_zero=False), Odd(is_zero=True)
    assert not same(values(model), values(other))
    with Checkpointer(tmp_path / "ckpt", model=model) as checkpointer:
        checkpointer.save(1)
    with Checkpointer(tmp_path / "ckpt", model=other) as checkpointer:
        assert checkpointer.resume() == 1
    assert same(values(model), values(other))
    assert {name: value.dtype for name, value in model.state_dict().items()} == {
        name: value.dtype for name, value in other.state_dict().items()
    }


def read(store: Store) -> None:
    store.check(1, 0, 1)
    Saved(store.path(1), store.records(1), 0)


@pytest.mark.parametrize("name", ["rank00000.safetensors", "rank00000.json", "manifest.json"])
def test_any_flipped_bit_is_damage_and_no_other_error(tmp_path: Path, name: str) -> None:
    with running(tmp_path / "ckpt") as run:
        run.train(0, 1)
    store = Store(tmp_path / "ckpt", rank=0, members=[0])
    path = store.path(1) / name
    data = path.read_bytes()
    chosen = random.Random(0)
    for _ in range(300):
        damaged = bytearray(data)
        damaged[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError):
            read(store)
    path.write_bytes(data)
    assert resumed(tmp_path / "ckpt")[0] == 1


def test_steps_in_another_order_are_refused_and_going_back_is_not(tmp_path: Path) -> None:
    """Else the oldest would be removed as soon as it is written."""
    with running(tmp_path / "ckpt") as run:
        run.train(0, 5)
        with pytest.raises(CheckpointError, match="step 2 cannot be saved after step 5"):
            run.checkpointer.save(2)
        assert run.checkpointer.resume() == 5
    with running(tmp_path / "ckpt") as run:
        assert run.checkpointer.resume() == 5
        with pytest.raises(CheckpointError, match="begin the loop at the step that resume"):
            run.checkpointer.save(1)
        shutil.rmtree(tmp_path / "ckpt" / "step-000000005")
        assert run.checkpointer.resume() == 4
        run.train(4, 6)
    assert steps(tmp_path / "ckpt") == [4, 5, 6]


@pytest.mark.parametrize("step", [-1, 2.0, "3", None])
def test_a_step_is_a_whole_number(tmp_path: Path, step: Any) -> None:
    with running(tmp_path / "ckpt") as run, pytest.raises(CheckpointError, match="a step must be a non-negative int"):
        run.checkpointer.save(step)


def test_one_that_is_still_being_written_is_waited_for_before_going_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_write = threading.Event()
    write = store_module.write_file
    monkeypatch.setattr(store_module, "write_file", lambda *given: may_write.wait(30) and write(*given))
    with running(tmp_path / "ckpt") as run:
        run.checkpointer.save(7)
        threading.Timer(0.3, may_write.set).start()
        assert run.checkpointer.resume() == 7


def test_a_folder_that_is_removed_meanwhile_is_made_again(tmp_path: Path) -> None:
    with running(tmp_path / "ckpt") as run:
        run.train(0, 1)
        shutil.rmtree(tmp_path / "ckpt")
        run.train(1, 3)
        assert run.checkpointer.last_saved == 3
    assert steps(tmp_path / "ckpt") == [2, 3]


def test_a_rename_whose_answer_was_lost_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system asks again, and the server then finds nothing of the old name."""
    rename = os.rename

    def twice(*given: Any) -> None:
        rename(*given)
        rename(*given)

    with running(tmp_path / "ckpt") as run:
        with monkeypatch.context() as patch:
            patch.setattr(store_module.os, "rename", twice)
            run.train(0, 2)
        assert run.checkpointer.last_saved == 2
        with monkeypatch.context() as patch:  # and one that failed has failed
            patch.setattr(store_module.os, "rename", lambda source, _: rename(source, tmp_path / "no" / "folder"))
            run.train(2, 3)
        assert run.checkpointer.last_saved == 2
    assert steps(tmp_path / "ckpt") == [1, 2]
    assert resumed(tmp_path / "ckpt")[0] == 2


def test_a_linked_folder_is_as_good_as_the_one_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "ckpt").symlink_to(tmp_path / "disk")
    with running(tmp_path / "ckpt", keep=2) as run:
        run.train(0, 3)
        last = run.weights()
    assert steps(tmp_path / "disk") == [2, 3]
    step, weights = resumed(tmp_path / "ckpt")
    assert step == 3 and same(weights, last)


def test_old_ones_that_were_moved_to_another_disk_are_not_removed_there(tmp_path: Path) -> None:
    with running(tmp_path / "ckpt") as run:
        run.train(0, 1)
    shutil.move(tmp_path / "ckpt" / "step-000000001", tmp_path / "moved")
    (tmp_path / "ckpt" / "step-000000001").symlink_to(tmp_path / "moved")
    with running(tmp_path / "ckpt", keep=1) as run:
        assert run.checkpointer.resume() == 1
        run.train(1, 2)
    assert steps(tmp_path / "ckpt") == [2] and (tmp_path / "moved" / "manifest.json").exists()


def test_a_job_that_is_refused_one_folder_leaves_the_other_free(tmp_path: Path) -> None:
    with running(tmp_path / "ckpt"):
        with (
            pytest.raises(CheckpointError, match="is written to by another job"),
            running(tmp_path / "ckpt", local=tmp_path / "fast"),
        ):
            pass
        with running(tmp_path / "other", local=tmp_path / "fast"):
            pass


def test_an_error_that_nobody_foresaw_does_not_stop_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tmp_path / "ckpt") as run:
        with monkeypatch.context() as patch:
            patch.setattr(store_module.Store, "commit", lambda *_, **__: 1 / 0)
            patch.setattr(store_module.Store, "discard", lambda *_, **__: 1 / 0)
            for step in (1, 2, 3):  # there are two buffers
                run.checkpointer.save(step, wait=True)
        run.checkpointer.save(4, wait=True)
    assert steps(tmp_path / "ckpt") == [4]
    assert "step 3 was not saved" in caplog.text


def test_another_dtype_is_refused_in_one_line(tmp_path: Path) -> None:
    """torch would round silently."""
    with Checkpointer(tmp_path / "ckpt", model=torch.nn.Linear(2, 2)) as checkpointer:
        checkpointer.save(1)
    what = "`model.weight` is float32 in the checkpoint and bfloat16 in the model"
    other = torch.nn.Linear(2, 2).bfloat16()
    with Checkpointer(tmp_path / "ckpt", model=other) as checkpointer, pytest.raises(CheckpointError) as caught:
        checkpointer.resume()
    assert what in str(caught.value) and "\n" not in str(caught.value)


def test_what_a_fast_disk_has_put_aside_does_not_pile_up(tmp_path: Path) -> None:
    """The newest steps of a host are of no use where another host has lost its own, time and again."""
    for begin in (0, 2, 2, 2):
        with running(tmp_path / "ckpt", local=tmp_path / "fast", shared_every=2) as run:
            assert run.checkpointer.resume() == begin
            run.train(begin, 2)
            run.checkpointer._num_saved = 0
            run.train(2, 3)
        flip(tmp_path / "fast" / "step-000000003" / "rank00000.safetensors")
    assert steps(tmp_path / "ckpt") == [2]
    assert len(list((tmp_path / "fast").glob("refused-*"))) == 1


def test_a_file_that_the_manifest_does_not_name_is_not_read(tmp_path: Path) -> None:
    with running(tmp_path / "ckpt") as run:
        run.train(0, 2)
    folder = tmp_path / "ckpt" / "step-000000002"
    record, manifest = (store_module.read_json(folder / name) for name in ("rank00000.json", "manifest.json"))
    os.rename(folder / "rank00000.safetensors", tmp_path / "elsewhere")
    record["tensors"] = {"../../elsewhere": record["tensors"]["rank00000.safetensors"]}
    del manifest["files"]["rank00000.safetensors"]
    manifest["files"]["rank00000.json"] = store_module.write_json(folder / "rank00000.json", record)
    store_module.write_json(folder / "manifest.json", manifest)
    assert resumed(tmp_path / "ckpt")[0] == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_without_memory_does_not_keep_the_others_waiting(tmp_path: Path, rank: int) -> None:
    """It says so at once, rather than at the next checkpoint, of which there may be none."""
    short = run_ranks(tmp_path / "ckpt", 2, "--no-memory", str(rank), kind="ddp", num_ranks=2)
    assert short.codes == [0, 0]
    assert "step 2 was not saved" in short.errors[rank]
    assert rank == 0 or "rank 1 could not write its part" in short.errors[0]
    assert steps(tmp_path / "ckpt") == [] and not list((tmp_path / "ckpt").glob(".partial*"))
