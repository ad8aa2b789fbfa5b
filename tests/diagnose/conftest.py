"""Fixtures of the traces with a known cause and of the public ones; each job is diagnosed once per run of the tests."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tests.shared_data import SHARED

from flatout.diagnosis_pipeline import Diagnosed, diagnose_paths

ROOT = Path(__file__).parents[2]
# The complete set first: what is in the repository is a part of it, the same files.
TRACES = (SHARED / "traces", ROOT / "examples" / "traces", ROOT / "tests" / "data" / "traces")

# How a job of one or several files is diagnosed: paths below the folder of the fixture.
Diagnose = Callable[..., Diagnosed]


@cache
def _diagnosed(*paths: Path) -> Diagnosed:
    return diagnose_paths(paths, with_tracks=True)  # predict replays them too


def known_trace(name: str) -> Path | None:
    """The archive of the job of that name; None where it is not in the repository and `../shared` is absent."""
    archives = [folder / f"{name}.tar.xz" for folder in TRACES]
    return next((archive for archive in archives if archive.exists()), None)


def _archive(name: str) -> Path:
    archive = known_trace(name)
    assert archive is not None, f"{name} is in ../shared alone: the test must request `shared_data`"
    return archive


@cache
def _untraced_step_s(name: str) -> float:
    with tarfile.open(_archive(name)) as archive:
        # It is the first file; asking for it by name would unpack the whole archive.
        member = next(member for member in archive if member.name.endswith("/info.json"))
        file = archive.extractfile(member)
        assert file is not None
        return float(json.load(file)["step_s"])


@pytest.fixture(scope="session")
def known() -> Diagnose:
    """`known("straggler")`: the job of that name, whose cause is known."""
    return lambda name: _diagnosed(_archive(name))


@pytest.fixture(scope="session")
def untraced_step_s() -> Callable[[str], float]:
    """`untraced_step_s("straggler")`: what a step of the job takes when it is not recorded."""
    return _untraced_step_s


@pytest.fixture(scope="session")
def public_folder(shared_data: Path) -> Path:
    return shared_data / "public_traces"


@pytest.fixture(scope="session")
def public(public_folder: Path) -> Diagnose:
    """`public("hta/nccl_data.json.gz")`: the job of these files."""
    return lambda *names: _diagnosed(*(public_folder / name for name in names))


@pytest.fixture(scope="session")
def exact_values(public_folder: Path) -> dict[str, dict[str, Any]]:
    """By file: unions of its GPU events in us, from an independent integer computation."""
    files: dict[str, dict[str, Any]] = json.loads((public_folder / "exact_values.json").read_text())["files"]
    return files
