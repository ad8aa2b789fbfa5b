"""Damaged files of a recording cost what they hold, and the file, the line and the field are named."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from flatout.errors import InputError
from flatout.profile import read_recording

GOLDEN = Path(__file__).with_name("golden") / "of_0_1"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "recording"))


def changed(file: Path, number: int, **values: object) -> None:
    """Change keys of the JSON object in a line."""
    lines = file.read_text().splitlines()
    lines[number - 1] = json.dumps(json.loads(lines[number - 1]) | values)
    file.write_text("\n".join(lines) + "\n")


def problems(folder: Path) -> list[str]:
    return [quality.problem for quality in read_recording(folder).problems]


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"rank": True}, "Expected `int`, got `bool` - at `$.rank`"),
        ({"rank": 1}, "`rank` must be below `world_size`, but is 1 of 1"),
        ({"world_size": 1_000_001}, "Expected `int` <= 1000000 - at `$.world_size`"),
        ({"columns": ["step"]}, "`columns` must include `start_ns`"),
        ({"device": {"index": 0, "name": "a", "memory_bytes": "8"}}, "at `$.device.memory_bytes`"),
        ({"base_unix_ns": 1 << 62}, "`base_unix_ns` must be a time"),
    ],
)
def test_a_header_is_named_with_its_field(folder: Path, values: dict[str, object], why: str) -> None:
    changed(folder / "rank0.steps.jsonl", 1, **values)
    (problem,) = [problem for problem in problems(folder) if problem.startswith("rank0.steps.jsonl, line 1: ")]
    assert why in problem
    assert read_recording(folder).ranks == ()


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("[1,2]", "a step must have 14 values, but has 2"),
        ('["a",1,1,1,1,8,null,1,null,"",1.0,null,null,0]', "`step` must be a number, but is a text"),
        ('[1,null,1,1,1,8,null,1,null,"",1.0,null,null,0]', "`start_ns` must be a number, but is unknown"),
        ('[1,1,1e300,1,1,8,null,1,null,"",1.0,null,null,0]', "`duration_ns` must be below 2^62"),
        ("[1,1,1,1,1,8,null,1,null,7,1.0,null,null,0]", "`kind` must be a text"),
        ('{"event":"recorder","cost_ns":-1}', "at `$.cost_ns`"),
        ("[" * 5000, ""),
    ],
)
def test_a_step_that_cannot_be_read_costs_that_step(folder: Path, row: str, why: str) -> None:
    before = len(read_recording(folder).ranks[0].steps.number)
    file = folder / "rank0.steps.jsonl"
    lines = file.read_text().splitlines()
    lines[4] = row
    file.write_text("\n".join(lines) + "\n")
    recording = read_recording(folder)
    (rank,) = recording.ranks
    assert len(rank.steps.number) == before - 1
    (problem,) = [quality.problem for quality in rank.problems]
    assert problem.startswith("1 lines of its steps cannot be read") and why in problem
    assert "rank0.steps.jsonl, line 5: " in problem


def test_an_event_of_a_later_version_is_no_damage(folder: Path) -> None:
    with (folder / "rank0.steps.jsonl").open("a") as file:
        file.write('{"event":"later","values":[1]}\n')
    assert read_recording(folder).ranks[0].problems == ()


@pytest.mark.parametrize(
    ("number", "values", "why"),
    [
        (1, {"gpus": 3}, "host-vm.samples.jsonl, line 1: Expected `array`, got `int` - at `$.gpus`"),
        (3, {"unix_s": "now"}, "host-vm.samples.jsonl, line 3: Expected `float`, got `str` - at `$.unix_s`"),
        (3, {"unix_s": 1e12}, "host-vm.samples.jsonl, line 3: Expected `float` <= 100000000000.0"),
        (3, {"cores_busy_percent": [1e31]}, "at `$.cores_busy_percent[0]`"),
    ],
)
def test_a_sample_is_named_with_its_field(folder: Path, number: int, values: dict[str, object], why: str) -> None:
    changed(folder / "host-vm.samples.jsonl", number, **values)
    assert any(why in problem for problem in problems(folder))
    assert len(read_recording(folder).hosts) == (number != 1)


def test_a_last_sample_that_is_truncated_is_no_damage(folder: Path) -> None:
    with (folder / "host-vm.samples.jsonl").open("a") as file:
        file.write('{"unix_s":17')
    assert problems(folder) == []


def test_a_damaged_file_of_a_host_is_named(folder: Path) -> None:
    (folder / "host-vm.json").write_text('{"hostname": "vm", "command": 3}')
    assert any(problem.startswith("host-vm.json: ") for problem in problems(folder))


@pytest.mark.parametrize("name", ["host-x.json", "host-x.samples.jsonl", "rank1.steps.jsonl", "inside-x.log"])
def test_a_pipe_in_a_recording_is_refused(folder: Path, name: str) -> None:
    os.mkfifo(folder / name)
    with pytest.raises(InputError, match=f"{name} cannot be read: it is a pipe, and only files are read"):
        read_recording(folder)
