"""The folder of a comparison: what is in it already is the user's unless a comparison made it."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout.compare.command import RESULT, _claim
from flatout.errors import OutputError
from flatout.trial.journal import Heading, Journal


def arm(folder: Path) -> Path:
    """Make the folder of an arm, with a journal and a trial."""
    (folder / "runs" / "trial-000").mkdir(parents=True)
    Journal(folder / "journal.jsonl", Heading(tool_version="0.1.0", command=("true",), options={}))
    return folder


@pytest.fixture(autouse=True)
def _unlocked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.compare.command.lock_folder", lambda folder, kind: None)


def test_force_replaces_a_comparison(tmp_path: Path) -> None:
    for name in ("a", "b"):
        arm(tmp_path / name)
    (tmp_path / RESULT).write_text("{}")
    _claim(tmp_path, force=True)
    assert list(tmp_path.iterdir()) == []


def test_a_comparison_that_is_resumed_stays(tmp_path: Path) -> None:
    arm(tmp_path / "a")
    _claim(tmp_path, force=False)
    assert (tmp_path / "a" / "runs" / "trial-000").is_dir()


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("foreign", ["file", "folder", "link", "tuning", "file in an arm"])
def test_what_is_not_of_a_comparison_is_refused_and_stays(tmp_path: Path, foreign: str, force: bool) -> None:
    folder, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    arm(folder / "a")
    kept = folder / "b" / "weights.pt"
    match foreign:
        case "file":
            kept = folder / "b"
        case "link":
            elsewhere.mkdir()
            (folder / "b").symlink_to(elsewhere)
            kept = elsewhere / "weights.pt"
        case "tuning":
            kept = arm(folder / "b") / "tuned.toml"
        case "file in an arm":
            kept = folder / "a" / "runs" / "weights.pt"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("kept")
    with pytest.raises(OutputError, match=r"is not the folder of an arm|already has other files"):
        _claim(folder, force=force)
    assert kept.read_text() == "kept"
    assert (folder / "a" / "journal.jsonl").exists()


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_without_a_comparison_is_refused(tmp_path: Path, force: bool) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "notes.txt").write_text("kept")
    with pytest.raises(OutputError, match="already has other files"):
        _claim(tmp_path, force=force)
    assert (tmp_path / "a" / "notes.txt").exists()
