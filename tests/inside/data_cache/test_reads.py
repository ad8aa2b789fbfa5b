"""Python's `open` with a cache: the file objects are those of the script's own files."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flatout.inside.data_cache.reads import hook_reads
from flatout.inside.protocol import CACHE_COUNTS, Variable

pytest.importorskip("torch")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "text.txt").write_bytes("first\r\nsecond ä".encode())
    np.save(folder / "array.npy", np.arange(100))
    then = time.time() - 60
    for path in folder.iterdir():
        os.utime(path, (then, then))
    return folder


@pytest.fixture
def cache(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "cache"
    folder.mkdir()
    setting = {"folder": str(folder), "max_bytes": 1 << 20, "sources": [str(source)]}
    monkeypatch.setenv(Variable.DATA_CACHE, json.dumps(setting))
    UNDO[:] = [undo for undo in [hook_reads()] if undo is not None]
    yield folder
    while UNDO:
        UNDO.pop()()


UNDO: list[Callable[[], None]] = []


def counts(cache: Path) -> dict[str, int]:
    UNDO.pop()()  # the process writes its counts
    (file,) = (cache / CACHE_COUNTS).iterdir()
    return dict(json.loads(file.read_text()))


@pytest.mark.parametrize("options", [{}, {"newline": ""}, {"encoding": "latin-1"}, {"buffering": 16}])
def test_a_file_has_the_name_and_the_content_that_the_script_expects(
    cache: Path, source: Path, options: dict[str, Any]
) -> None:
    path = source / "text.txt"
    for _ in range(2):
        with open(path, **options) as file:
            text, name = file.read(), file.name
    assert name == str(path)
    assert counts(cache)["num_hits"] == 1
    with open(path, **options) as plain:  # without the cache now
        assert text == plain.read()


def test_libraries_that_use_open_use_the_cache(cache: Path, source: Path) -> None:
    for _ in range(3):
        assert np.load(source / "array.npy").tolist() == list(range(100))
    assert (source / "text.txt").read_bytes().startswith(b"first")
    found = counts(cache)
    assert (found["num_hits"], found["num_misses"], found["num_admitted"]) == (2, 2, 2)
    assert found["hit_bytes"] == 2 * (source / "array.npy").stat().st_size


def test_other_files_and_writing_are_left_alone(cache: Path, source: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("x")
    (source / "new.txt").write_text("written")
    with open(source / "new.txt", "a") as file:
        file.write(" more")
    assert (outside.read_text(), (source / "new.txt").read_text()) == ("x", "written more")
    assert counts(cache)["num_admitted"] == 0  # it has just been written


def test_a_missing_file_is_the_scripts_own_error(cache: Path, source: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"missing\.txt"):
        open(source / "missing.txt")  # noqa: SIM115


def test_a_copy_that_vanishes_is_no_error(cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = source / "text.txt"
    path.read_bytes()
    plain_open = os.open

    def without_copies(name: Any, *arguments: Any, **options: Any) -> int:
        if str(name).startswith(str(cache)):
            raise FileNotFoundError(name)
        return plain_open(name, *arguments, **options)

    monkeypatch.setattr(os, "open", without_copies)
    assert path.read_bytes().startswith(b"first")


def test_the_working_folder_may_be_the_source(cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(source)
    for _ in range(2):
        with open("text.txt", "rb") as file:
            assert file.name == "text.txt"
            file.read()
    assert counts(cache)["num_hits"] == 1


def test_without_the_variable_nothing_is_hooked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(Variable.DATA_CACHE, raising=False)
    assert hook_reads() is None
