from __future__ import annotations

from pathlib import Path

import pytest
from tests.nccl_tuner.plugin import Plugin, compile_plugin


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Plugin:
    """With the sanitizers: for what it answers."""
    return compile_plugin(tmp_path_factory.mktemp("sanitized"), sanitized=True)


@pytest.fixture(scope="session")
def quick_plugin(tmp_path_factory: pytest.TempPathFactory) -> Plugin:
    """As a user has it: for how long it takes."""
    return compile_plugin(tmp_path_factory.mktemp("quick"), sanitized=False)


@pytest.fixture
def table(tmp_path: Path):
    """Write a table with these rows and return its path."""

    def write(*rows: str, heading: str = "flatout-collective-table 1", end: str = "\n") -> Path:
        path = tmp_path / "table.txt"
        path.write_bytes((end.join([heading, *rows]) + end).encode())
        return path

    return write
