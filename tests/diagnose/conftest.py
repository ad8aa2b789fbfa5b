"""Where the traces with a known cause and the public ones lie; each job is diagnosed once a run of the tests."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from flatout.diagnosis_pipeline import Diagnosed, diagnose_paths

SHARED = Path(__file__).parents[3] / "shared"

# How a job of one or several files is diagnosed: paths below the folder of the fixture.
Diagnose = Callable[..., Diagnosed]


@cache
def _diagnosed(*paths: Path) -> Diagnosed:
    return diagnose_paths(paths, with_tracks=True)  # predict replays them too


def _folder(*names: str) -> Path:
    if not SHARED.is_dir():
        pytest.skip("../shared is absent")
    return SHARED.joinpath(*names)


@pytest.fixture(scope="session")
def known() -> Diagnose:
    """`known("straggler")`: the job of that name, whose cause is known."""
    folder = _folder("data", "traces")
    return lambda name: _diagnosed(folder / f"{name}.tar.xz")


@pytest.fixture(scope="session")
def untraced_step_s() -> Callable[[str], float]:
    """`untraced_step_s("straggler")`: what a step of the job takes when it is not recorded."""
    folder = _folder("data", "traces")

    def step_s(name: str) -> float:
        with tarfile.open(folder / f"{name}.tar.xz") as archive:
            # It is the first file; asking for it by name would unpack the whole archive.
            member = next(member for member in archive if member.name.endswith("/info.json"))
            file = archive.extractfile(member)
            assert file is not None
            return float(json.load(file)["step_s"])

    return step_s


@pytest.fixture(scope="session")
def public_folder() -> Path:
    return _folder("data", "public_traces")


@pytest.fixture(scope="session")
def public(public_folder: Path) -> Diagnose:
    """`public("hta/nccl_data.json.gz")`: the job of these files."""
    return lambda *names: _diagnosed(*(public_folder / name for name in names))


@pytest.fixture(scope="session")
def exact_values(public_folder: Path) -> dict[str, dict[str, Any]]:
    """By file: unions of its GPU events in us, from an independent integer computation."""
    files: dict[str, dict[str, Any]] = json.loads((public_folder / "exact_values.json").read_text())["files"]
    return files
