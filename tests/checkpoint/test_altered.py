"""A checkpoint that was altered, with checksums that fit, gives way to the one before it, and it is said why."""

from __future__ import annotations

import json
import logging
import os
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint.test_checkpointer import resumed, running, same

from flatout.checkpoint.files import write_json

Change = Callable[[dict[str, Any]], object]


def altered(folder: Path, name: str, change: Change) -> None:
    """Change the content of a JSON file of a checkpoint, and make all checksums fit."""
    for file in (name, "manifest.json"):
        content = json.loads((folder / file).read_bytes())
        content.pop("checksum")
        if file == "manifest.json" and name != file:
            data = (folder / name).read_bytes()
            content["files"][name] = {"bytes": len(data), "crc32": zlib.crc32(data)}
        if file == name:
            change(content)
        write_json(folder / file, content)


def without(*path: str) -> Change:
    def change(content: dict[str, Any]) -> None:
        for key in path[:-1]:
            content = content[key]
        del content[path[-1]]

    return change


def with_value(value: object, *path: str) -> Change:
    def change(content: dict[str, Any]) -> None:
        for key in path[:-1]:
            content = content[key]
        content[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("manifest.json", with_value("1", "version")),
        ("manifest.json", with_value([], "ranks")),
        ("manifest.json", with_value([[]], "ranks")),
        ("manifest.json", with_value(3, "files")),
        ("rank00000.json", without("tensors")),
        ("rank00000.json", with_value([], "tensors")),
        ("rank00000.json", without("world_size")),
        ("rank00000.json", with_value("x", "aliases")),
        ("rank00000.json", with_value(None, "values", "random")),
        ("rank00000.json", without("values", "random")),
        ("rank00000.json", with_value(7, "values", "optimizers", "optimizer", "groups")),
    ],
)
def test_what_was_altered_gives_way_to_the_one_before_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, change: Change
) -> None:
    with running(tmp_path / "ckpt") as run:
        run.train(0, 2)
        good = run.weights()
        run.train(2, 3)
    altered(tmp_path / "ckpt" / "step-000000003", name, change)
    step, weights = resumed(tmp_path / "ckpt")
    assert step == 2 and same(weights, good)
    (told,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "step 3" in told and "resuming from step 2 instead" in told


@pytest.mark.parametrize("name", ["manifest.json", "rank00000.json", "rank00000.safetensors"])
def test_a_pipe_in_a_checkpoint_is_damage(tmp_path: Path, name: str) -> None:
    with running(tmp_path / "ckpt") as run:
        run.train(0, 2)
        run.train(2, 3)
    (tmp_path / "ckpt" / "step-000000003" / name).unlink()
    os.mkfifo(tmp_path / "ckpt" / "step-000000003" / name)
    step, _ = resumed(tmp_path / "ckpt")
    assert step == 2
    shutil.rmtree(tmp_path / "ckpt")
