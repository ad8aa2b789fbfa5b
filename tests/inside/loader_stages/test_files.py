"""Files opened while a batch is timed: the same as Python's own, and their reads are a stage."""

from __future__ import annotations

import builtins
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flatout.inside.loader_stages.files import timed_open
from flatout.inside.loader_stages.stopwatch import STOPWATCH
from flatout.inside.protocol import LoaderStage

CONTENT = bytes(range(256)) * 100 + b"line one\r\nline two\nlast"
TEXT = "first\r\nsecond ä\nlast"
open_timed = timed_open(builtins.open)


@pytest.fixture(autouse=True)
def timing() -> Iterator[None]:
    STOPWATCH.reset()
    STOPWATCH.begin("code")
    yield
    STOPWATCH.finish()
    STOPWATCH.reset()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sample.bin"
    path.write_bytes(CONTENT)
    return path


def test_bytes_are_those_of_the_file(file: Path) -> None:
    with open_timed(file, "rb") as timed, open(file, "rb") as plain:
        assert type(timed) is type(plain) and (timed.mode, timed.name) == (plain.mode, plain.name)
        assert [timed.read(10), timed.seek(5), timed.peek(3)[:3], timed.readline()] == [
            plain.read(10),
            plain.seek(5),
            plain.peek(3)[:3],
            plain.readline(),
        ]
        assert timed.read() == plain.read() and timed.tell() == plain.tell()
    assert timed.closed
    assert STOPWATCH.times[LoaderStage.OPEN].num_calls == 1
    assert STOPWATCH.times[LoaderStage.READ].num_calls >= 2


@pytest.mark.parametrize("options", [{}, {"newline": ""}, {"encoding": "latin-1"}, {"errors": "replace"}])
def test_text_is_that_of_the_file(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "sample.txt"
    path.write_bytes(TEXT.encode())
    with open_timed(path, **options) as timed, open(path, **options) as plain:
        assert type(timed) is type(plain)
        assert (timed.mode, timed.encoding, timed.errors) == (plain.mode, plain.encoding, plain.errors)
        assert list(timed) == list(plain)


@pytest.mark.parametrize(
    ("name", "mode", "options"),
    [
        ("missing", "rb", {}),
        (".", "rb", {}),
        ("sample.bin", "rx", {}),
        ("sample.bin", "rb", {"encoding": "utf-8"}),
        ("sample.bin", "r", {"encoding": "no such encoding"}),
        ("sample.bin", "r", {"buffering": 0}),
    ],
)
def test_an_error_is_that_of_open(file: Path, name: str, mode: str, options: dict[str, Any]) -> None:
    path = file.parent / name
    with pytest.raises(Exception) as plain:  # noqa: PT011 - whatever Python's own `open` raises
        open(path, mode, **options).close()
    with pytest.raises(type(plain.value)) as timed:
        open_timed(path, mode, **options).close()
    assert str(timed.value) == str(plain.value)


def test_writing_descriptors_and_openers_are_left_alone(file: Path, tmp_path: Path) -> None:
    with open_timed(tmp_path / "new", "wb") as written:
        written.write(b"x")
    with open_timed(file, "rb", buffering=0) as raw:
        assert type(raw) is io.FileIO
    with open(file, "rb") as plain, open_timed(plain.fileno(), "rb", closefd=False) as of_descriptor:
        assert of_descriptor.read(4) == CONTENT[:4]
    assert LoaderStage.READ not in STOPWATCH.times


def test_nothing_is_timed_between_batches(file: Path) -> None:
    STOPWATCH.finish()
    with open_timed(file, "rb") as plain:
        assert plain.read() == CONTENT
    assert set(STOPWATCH.times) == {"code"}


def test_a_file_that_outlives_its_batch_is_read_without_being_timed(file: Path) -> None:
    kept = open_timed(file, "rb")
    STOPWATCH.finish()
    assert kept.read() == CONTENT
    kept.close()
    assert LoaderStage.READ not in STOPWATCH.times
