"""Several ranks: each byte is written once, and what two ranks saved, one or three go on from."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.checkpoint.ranks import Done, run

from flatout.checkpoint.files import read_json, write_json


def parts(folder: Path, step: int) -> list[dict[str, object]]:
    return [load_file(path) for path in sorted((folder / f"step-{step:09d}").glob("rank?????.safetensors"))]


Saved = Callable[[str], tuple[Done, Path]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """By kind, a training of four steps on two ranks that has ended, and its checkpoints, which nobody may change."""
    folder = tmp_path_factory.mktemp("saved")

    def saved(kind: str) -> tuple[Done, Path]:
        done = run(folder / kind, 4, kind=kind, num_ranks=2)
        assert done.codes == [0, 0], done.errors
        return done, folder / kind

    return functools.cache(saved)


def test_replicated_tensors_are_written_once_and_spread_over_the_ranks(saved: Saved) -> None:
    _, folder = saved("ddp")
    first, second = ({name for name in part if not name.startswith("rank.")} for part in parts(folder, 4))
    assert not first & second
    assert {name for name in first | second if name.startswith("model.")} >= {"model.0.weight", "model.5.bias"}
    sizes = [sum(one.numel() for one in part.values()) for part in parts(folder, 4)]
    assert max(sizes) < 1.3 * min(sizes)


def test_what_differs_from_rank_to_rank_is_each_ranks_own(saved: Saved) -> None:
    names = [set(part) for part in parts(saved("ddp")[1], 4)]
    assert all("rank.model.1.running_mean" in part for part in names)  # of their own batches
    assert not any("rank.model.0.weight" in part for part in names)


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_sharded_tensors_are_put_together_for_another_number_of_ranks(
    tmp_path: Path, saved: Saved, num_ranks: int
) -> None:
    done, folder = saved("fsdp")
    shutil.copytree(folder, tmp_path / "ckpt")
    other = run(tmp_path / "ckpt", 4, kind="fsdp", num_ranks=num_ranks)
    assert other.codes == [0] * num_ranks and other.start == 4
    assert other.digest == done.digest
    told = [error for error in other.errors if "its random state is new" in error]
    assert len(told) == max(num_ranks - 2, 0)


def test_a_sharded_checkpoint_fits_the_same_model_unsharded(saved: Saved) -> None:
    _, folder = saved("fsdp")
    one, two = parts(folder, 4)
    assert [list(part["model.4.weight"].shape) for part in (one, two)] == [[17, 32], [16, 32]]
    record = json.loads((folder / "step-000000004" / "rank00001.json").read_text())
    described = record["tensors"]["rank00001.safetensors"]["model.4.weight"]
    assert (described["shape"], described["offsets"]) == ([33, 32], [17, 0])


def test_a_local_folder_is_resumed_from_by_the_same_ranks_only(tmp_path: Path) -> None:
    options = ("--local", str(tmp_path / "fast"), "--shared-every", "2")
    first = run(tmp_path / "ckpt", 7, *options, kind="ddp", num_ranks=2)
    assert first.codes == [0, 0]
    assert run(tmp_path / "ckpt", 7, *options, kind="ddp", num_ranks=1).start == 4  # of the shared folder


def test_of_the_replicas_of_sharded_tensors_one_is_written(tmp_path: Path) -> None:
    saved = run(tmp_path / "ckpt", 4, kind="hsdp", num_ranks=4)  # two replicas of two shards
    assert saved.codes == [0] * 4, saved.errors
    rows = [part["model.4.weight"].shape[0] for part in parts(tmp_path / "ckpt", 4) if "model.4.weight" in part]
    assert sorted(rows) == [16, 17]
    assert all(any(name.startswith("optimizer.") for name in part) for part in parts(tmp_path / "ckpt", 4))
    other = run(tmp_path / "ckpt", 4, kind="fsdp", num_ranks=2)
    assert other.start == 4 and other.digest == saved.digest


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_each_host_has_a_local_folder_of_its_own(tmp_path: Path, kind: str) -> None:
    options = ("--local", str(tmp_path / "fast"), "--hosts", "--every", "1", "--shared-every", "3")
    whole = run(tmp_path / "whole", 9, kind=kind, num_ranks=2)
    assert run(tmp_path / "ckpt", 7, *options, kind=kind, num_ranks=2).codes == [0, 0]
    assert not list(tmp_path.glob("fast0/step-*/rank00001*")) and list(tmp_path.glob("fast1/step-*/rank00001*"))
    second = run(tmp_path / "ckpt", 8, *options, kind=kind, num_ranks=2)
    assert second.codes == [0, 0] and second.start == 7, second.errors
    shutil.rmtree(tmp_path / "fast1")  # with its host
    third = run(tmp_path / "ckpt", 9, *options, kind=kind, num_ranks=2)
    assert third.codes == [0, 0] and third.start == 6, third.errors
    assert third.digest == whole.digest


def test_a_local_folder_that_lacks_parts_is_not_used(tmp_path: Path) -> None:
    """As of another sharding: what no part is found for would stay as the model was initialised."""
    options = ("--local", str(tmp_path / "fast"), "--hosts", "--every", "1", "--shared-every", "2")
    assert run(tmp_path / "ckpt", 3, *options, kind="fsdp", num_ranks=2).codes == [0, 0]
    one = tmp_path / "fast1" / "step-000000003"
    record, manifest = read_json(one / "rank00001.json"), read_json(one / "manifest.json")
    described = record["tensors"]["rank00001.safetensors"]["model.4.weight"]
    described["offsets"] = [0, 0]  # another part than the one that is needed
    manifest["files"]["rank00001.json"] = write_json(one / "rank00001.json", record)
    write_json(one / "manifest.json", manifest)
    again = run(tmp_path / "ckpt", 3, *options, kind="fsdp", num_ranks=2)
    assert again.codes == [0, 0] and again.start == 2
    assert "elements of `model.4.weight` needed here" in again.errors[0]


def test_a_damaged_part_of_one_rank_is_refused_by_all(tmp_path: Path, saved: Saved) -> None:
    shutil.copytree(saved("fsdp")[1], tmp_path / "ckpt")
    path = tmp_path / "ckpt" / "step-000000004" / "rank00001.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 4
    path.write_bytes(data)
    again = run(tmp_path / "ckpt", 4, kind="fsdp", num_ranks=2)
    assert again.codes == [0, 0] and again.start == 2
    assert again.errors[0].count("\n") == 1
    assert "rank 1: rank00001.safetensors" in again.errors[0] or "rank00001.safetensors" in again.errors[0]


def test_a_full_disk_of_one_rank_loses_nothing_good(tmp_path: Path, saved: Saved) -> None:
    """A limit on the size of files stands for it; it needs no root."""
    shutil.copytree(saved("ddp")[1], tmp_path / "ckpt")
    full = run(tmp_path / "ckpt", 8, kind="ddp", num_ranks=2, file_limit=4000)
    assert full.codes == [0, 0] and full.start == 4
    assert "File too large" in full.errors[0] and "step 8 was not saved" in full.errors[0]
    assert not list((tmp_path / "ckpt").glob(".partial*"))
    whole = run(tmp_path / "ckpt", 8, kind="ddp", num_ranks=2)
    assert whole.codes == [0, 0] and whole.start == 4


def test_a_full_disk_stops_all_ranks_if_that_is_wanted(tmp_path: Path) -> None:
    full = run(tmp_path / "ckpt", 8, "--on-error", "raise", kind="ddp", num_ranks=2, file_limit=4000)
    assert full.codes == [2, 2]
    assert all("File too large" in error for error in full.errors)
