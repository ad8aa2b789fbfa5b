from __future__ import annotations

from pathlib import Path

import pytest

from flatout.emit.write import diff, write
from flatout.errors import OutputError
from flatout.records.tuning import Emitted

NEW = Emitted(path="sub/tuned.env", text="export A=2\n")


def test_a_diff_writes_nothing(tmp_path: Path) -> None:
    assert diff(NEW, tmp_path).startswith("--- /dev/null\n+++ ")
    assert "+export A=2\n" in diff(NEW, tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_compared(tmp_path: Path) -> None:
    path = write(NEW, tmp_path)
    assert diff(NEW, tmp_path) == ""
    path.write_text("export A=1")
    assert diff(NEW, tmp_path).splitlines()[3:] == ["-export A=1", "\\ No newline at end of file", "+export A=2"]


def test_a_file_that_differs_is_overwritten_only_where_asked(tmp_path: Path) -> None:
    path = write(NEW, tmp_path)
    write(NEW, tmp_path)  # the same again
    path.write_text("mine\n")
    with pytest.raises(OutputError, match="exists and differs"):
        write(NEW, tmp_path)
    assert path.read_text() == "mine\n"
    write(NEW, tmp_path, force=True)
    assert path.read_text() == NEW.text
    assert [each.name for each in path.parent.iterdir()] == ["tuned.env"]


def test_what_is_no_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "tuned.env").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(OutputError, match="cannot be read as text"):
        diff(NEW, tmp_path)


def test_a_file_where_the_folder_should_be_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine\n")
    with pytest.raises(OutputError, match=r"out is a file; tuned\.env is written into a folder") as raised:
        write(Emitted(path="tuned.env", text="export A=2\n"), tmp_path / "out")
    assert raised.value.hint == "pass another folder with --out"
    assert (tmp_path / "out").read_text() == "mine\n"
