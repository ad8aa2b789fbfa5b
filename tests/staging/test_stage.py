"""Copies of data sets on a node: complete, verified, resumed; and what runs them ahead of jobs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from flatout.emit.staging import init_container, slurm_prolog
from flatout.errors import FlatoutError, InputError, OutputError, UsageError
from flatout.packing.engines import on_processes
from flatout.packing.pack import pack
from flatout.packing.request import PackRequest
from flatout.staging import stage as stage_module
from flatout.staging.stage import MARK, stage


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    for number in range(6):
        path = folder / f"part{number % 2}" / f"{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(1000 + number))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".flatout"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_all_files_are_copied_once_with_their_times(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    result = stage(source, target)
    assert (result.num_files, result.num_copied, result.num_bytes) == (6, 6, 6015)
    assert contents(target) == contents(source)
    assert (target / "part0" / "0.bin").stat().st_mtime_ns == (source / "part0" / "0.bin").stat().st_mtime_ns
    assert stage(source, target).num_copied == 0


def test_files_of_another_origin_are_not_overwritten(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    (target / "part1").mkdir(parents=True)
    (target / "part1" / "3.bin").write_text("mine")
    (target / "note").write_text("mine")
    before = contents(target)
    with pytest.raises(OutputError, match=r"other files of these names, `part1/3.bin` among 1: nothing is overwritten"):
        stage(source, target)
    assert contents(target) == before and not list(target.glob(".flatout*"))
    (target / "part1" / "3.bin").unlink()
    (target / "part1" / "3.bin").symlink_to("missing")
    with pytest.raises(OutputError, match="nothing is overwritten"):
        stage(source, target)
    (target / "part1" / "3.bin").unlink()
    shutil.copy2(source / "part1" / "3.bin", target / "part1" / "3.bin")  # as rsync copies it
    assert stage(source, target).num_copied == 5
    assert contents(target) == contents(source) | {"note": b"mine"}


def test_a_file_that_changed_is_copied_again_and_the_others_are_not(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    stage(source, target)
    (source / "part1" / "3.bin").write_bytes(b"new")
    result = stage(source, target)
    assert (result.num_copied, result.copied_bytes) == (1, 3)
    assert contents(target) == contents(source)


def test_a_copy_that_stopped_continues_and_has_its_mark_only_when_it_is_complete(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "target"
    stage(source, target)
    (source / "part1" / "new.bin").write_bytes(b"new")
    (target / "part0" / "0.bin").unlink()
    with monkeypatch.context() as patches:
        patches.setattr(stage_module, "_checksum_on_disk", lambda path: "other")
        with pytest.raises(OutputError, match="is not what was written to it"):
            stage(source, target)
    assert not (target / MARK).exists()
    assert list(target.rglob(".*.part")) == []
    (target / "part0" / ".0.bin.part").write_bytes(b"left by a kill")
    assert stage(source, target).num_copied == 2
    assert contents(target) == contents(source)
    assert (target / MARK).exists()


def test_a_damaged_shard_is_not_copied(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n' * 4)
    request = PackRequest(source=tmp_path / "rows.jsonl", folder=tmp_path / "packed", num_ranks=1, num_workers=1)
    pack(request, lambda tasks: on_processes(tasks, 1))
    assert stage(tmp_path / "packed", tmp_path / "first").is_checked_by_pack
    with open(tmp_path / "packed" / "000002.tar", "r+b") as file:
        file.seek(600)
        file.write(b"x")
    with pytest.raises(InputError, match=r"000002\.tar is not the shard that was packed"):
        stage(tmp_path / "packed", tmp_path / "second")


def nothing(source: Path, target: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("change", "names", "message"),
    [
        (nothing, ("source", "source/copy"), "must not be within the other"),
        (nothing, ("source", "."), "must not be within the other"),
        (nothing, ("none", "target"), "must be a folder"),
        (lambda source, target: [shutil.rmtree(path) for path in source.iterdir()], ("source", "target"), "no files"),
        (lambda source, target: (source / "a").symlink_to("none"), ("source", "target"), "no such file"),
        (
            lambda source, target: (source / "a").symlink_to("."),
            ("source", "target"),
            "its links lead to the same folder",
        ),
        (lambda source, target: target.write_text(""), ("source", "target"), "cannot be written"),
    ],
)
def test_what_cannot_be_copied_is_said_in_one_line(
    source: Path, tmp_path: Path, change: Callable[[Path, Path], object], names: tuple[str, str], message: str
) -> None:
    change(source, tmp_path / "target")
    with pytest.raises(FlatoutError, match=message) as caught:
        stage(tmp_path / names[0], tmp_path / names[1])
    assert "\n" not in str(caught.value)


def test_a_network_file_system_is_no_disk_of_this_node(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_module, "kind_of", lambda folder, mounts: "nfs4")
    with pytest.raises(UsageError, match="is on nfs4"):
        stage(source, tmp_path / "target")


@pytest.mark.parametrize(("spare", "is_enough"), [(0, True), (-1, False)])
def test_the_disk_must_have_the_space(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spare: int, is_enough: bool
) -> None:
    free = 6015 + (64 << 20) + spare
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    if is_enough:
        stage(source, tmp_path / "target")
        return
    with pytest.raises(OutputError, match="B free"):
        stage(source, tmp_path / "target")


# The Slurm prolog, run by bash with a `flatout` and a `scontrol` that note their arguments.


def run_prolog(
    tmp_path: Path, prolog: str, features: str = "(null)", *, code: int = 0, partition: str = "gpu"
) -> list[str]:
    calls = tmp_path / "calls"
    calls.unlink(missing_ok=True)
    shown = f"NodeName=n1 Arch=x86_64 AvailableFeatures={features} ActiveFeatures={features} Gres=gpu:8"
    programs = {
        "flatout": f'echo "flatout $*" >> {calls}; exit {code}',
        "scontrol": f'[ "$2" = show ] && echo "{shown}" || echo "scontrol $*" >> {calls}',
    }
    for name, text in programs.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    path = tmp_path / "prolog"
    path.write_text(prolog.replace("PATH=/usr/local/sbin", f"PATH={tmp_path / 'bin'}:/usr/local/sbin"))
    variables = {"SLURMD_NODENAME": "n1", "SLURM_JOB_PARTITION": partition}
    done = subprocess.run(["bash", str(path)], env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, "Slurm drains a node whose prolog fails"
    return calls.read_text().splitlines() if calls.exists() else []


COPY = "flatout data stage /lustre/a b /local/x"
UPDATE = "scontrol update NodeName=n1 AvailableFeatures={0} ActiveFeatures={0}"


@pytest.mark.parametrize(
    ("features", "after"),
    [("(null)", "data_a_b"), ("h100,ib", "h100,ib,data_a_b"), ("h100,data_a_b", "h100,data_a_b")],
)
def test_the_prolog_copies_and_adds_the_feature_to_those_of_the_node(tmp_path: Path, features: str, after: str) -> None:
    prolog = slurm_prolog("a-b", Path("/lustre/a b"), Path("/local/x"))
    assert run_prolog(tmp_path, prolog, features) == [COPY, UPDATE.format(after)]


def test_the_prolog_gives_no_feature_to_a_node_without_the_copy(tmp_path: Path) -> None:
    prolog = slurm_prolog("a-b", Path("/lustre/a b"), Path("/local/x"))
    assert run_prolog(tmp_path, prolog, code=2) == [COPY]


@pytest.mark.parametrize(("partition", "is_copied"), [("gpu", True), ("big", True), ("gp", False), ("cpu", False)])
def test_the_prolog_leaves_jobs_of_other_partitions_alone(tmp_path: Path, partition: str, is_copied: bool) -> None:
    prolog = slurm_prolog("a-b", Path("/s"), Path("/d"), partitions=("big", "gpu"))
    assert bool(run_prolog(tmp_path, prolog, partition=partition)) == is_copied


def test_the_init_container_copies_before_the_job_starts() -> None:
    text = init_container("imagenet", Path("/lustre/i"), Path("/local/i"), image="r/flatout:1", claim="lustre")
    parts = yaml.safe_load(text)
    (container,) = parts["initContainers"]
    assert container["command"][:2] == ["sh", "-c"]
    assert container["command"][2].startswith("flatout data stage /lustre/i /local/i ||")
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"source": "/lustre/i", "staged": "/local/i"}
    volumes = {volume["name"]: volume for volume in parts["volumes"]}
    assert volumes["source"]["persistentVolumeClaim"] == {"claimName": "lustre", "readOnly": True}
    assert volumes["staged"]["hostPath"]["path"] == "/local/i"
    assert "data.flatout.dev/imagenet=held" in text
