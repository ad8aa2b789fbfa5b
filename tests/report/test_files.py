from __future__ import annotations

import os
from pathlib import Path

import pytest

from flatout.errors import OutputError
from flatout.report.files import check_new, open_new, write_new


def test_a_new_file_is_written_whole_and_folders_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "report.html"
    write_new(path, "grüße")
    assert path.read_bytes() == "grüße".encode()
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]


def test_an_existing_file_is_kept_without_force(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    with pytest.raises(OutputError, match="already exists") as caught:
        write_new(path, b"new")
    assert "--force" in caught.value.hint
    assert path.read_text() == "old"
    with pytest.raises(OutputError, match="already exists"):
        check_new(path)
    write_new(path, b"new", force=True)
    assert path.read_text() == "new"


def test_a_name_taken_meanwhile_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    with pytest.raises(OutputError, match="already exists"), open_new(path):
        path.write_text("of another process")
    assert path.read_text() == "of another process"
    assert list(tmp_path.iterdir()) == [path]


def write_half_and_stop(path: Path) -> None:
    with open_new(path) as file:
        file.write(b"half")
        raise ValueError("stop")


def test_nothing_is_left_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stop"):
        write_half_and_stop(tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_an_output_error() -> None:
    with pytest.raises(OutputError, match="`/dev/full` cannot be written: no space left") as caught:
        write_new("/dev/full", b"x" * 100_000)
    assert "space" in caught.value.hint


def test_a_device_is_written_to_and_stays_a_device() -> None:
    write_new("/dev/null", b"x")
    write_new("/dev/null", b"x", force=True)
    assert Path("/dev/null").is_char_device()


def test_a_folder_and_a_file_as_folder_are_output_errors(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="is a folder"):
        write_new(tmp_path, b"", force=True)
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot be written"):
        write_new(tmp_path / "file" / "report.html", b"")
    with pytest.raises(OutputError, match="cannot be written: file name too long"):
        write_new(tmp_path / ("x" * 300), b"")


def test_a_folder_that_takes_no_files_is_an_output_error() -> None:
    with pytest.raises(OutputError, match=r"`/proc/report\.html` cannot be written"):
        write_new("/proc/report.html", b"")


@pytest.mark.parametrize("name", ["report.html", "new/folder/report.html"])
def test_a_folder_without_rights_is_told_before_the_work(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_new(tmp_path / name)
    if os.geteuid() == 0:  # who may write everywhere; as a read-only disk answers it, too
        monkeypatch.setattr("os.access", lambda path, _: Path(path) != tmp_path)
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="cannot be written: permission denied"):
        check_new(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_link_keeps_pointing_to_what_it_points_to(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("old")
    link = tmp_path / "link"
    link.symlink_to(target)
    with pytest.raises(OutputError, match="already exists"):
        write_new(link, b"new")
    write_new(link, b"new", force=True)
    assert link.is_symlink()
    assert target.read_text() == "new"
