"""Fixtures of the reader's tests: the folder of the public traces, and a file of given events."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flatout.read import TraceSource, open_sources, read_trace
from flatout.records.events import EventTable


@pytest.fixture(scope="session")
def public_traces(shared_data: Path) -> Path:
    return shared_data / "public_traces"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """`write(trace)` or `write(text)`: a file of it, compressed if the name says so."""

    def write_file(content: Any, name: str = "trace.json") -> Path:
        if not isinstance(content, str | bytes):
            content = json.dumps(content)
        data = content.encode() if isinstance(content, str) else content
        path = tmp_path / name
        path.write_bytes(gzip.compress(data, 1, mtime=0) if name.endswith(".gz") else data)
        return path

    return write_file


@pytest.fixture
def read(write: Callable[..., Path]) -> Callable[..., EventTable]:
    """`read(trace)`: the table of a file of it."""

    def read_content(content: Any, name: str = "trace.json") -> EventTable:
        return read_path(write(content, name))

    return read_content


def read_path(path: Path, num_workers: int = 1) -> EventTable:
    with open_sources([path]) as sources:
        assert len(sources) == 1
        return read_trace(sources[0], num_workers=num_workers)


def source_of(path: Path) -> TraceSource:
    return TraceSource(path=str(path), name=path.name, size_bytes=path.stat().st_size)
