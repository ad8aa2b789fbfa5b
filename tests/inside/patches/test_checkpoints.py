"""Checkpoints written in the background, or diverted: the script sees what it would see without us."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.inside.patches.runs import Done, run

pytestmark = pytest.mark.usefixtures("warm")

BACKGROUND = [("background_checkpoint", {})]


def _run(tmp_path: Path, how: str) -> tuple[Done, Path]:
    folder = tmp_path / "out"
    folder.mkdir()
    return run(tmp_path / "recording", "checkpoints", folder, how, patches=BACKGROUND), folder


def _is_whole(path: Path) -> bool:
    return bool(torch.equal(torch.load(path)["weights"], torch.arange(1_000_000.0)))


@pytest.mark.parametrize("how", ["end", "load", "rename", "exists"])
def test_the_file_is_there_when_the_script_looks_and_has_the_values_of_the_call(tmp_path: Path, how: str) -> None:
    done, folder = _run(tmp_path, how)
    assert done.code == 0, done.errors
    assert _is_whole(folder / ("model.pt.new" if how == "rename" else "model.pt"))
    if how == "load":
        assert float(done.said("loaded")) == float(torch.arange(1_000_000.0).sum())
    if how == "rename":
        assert (folder / "model.pt.copy").read_bytes() == (folder / "model.pt.new").read_bytes()
        assert not (folder / "model.pt").exists()
    assert done.reports["background_checkpoint", 0]["details"] == {"saves": 1}


@pytest.mark.parametrize(("how", "code"), [("error", 1), ("exit", 3), ("leave", 4)])
def test_it_is_written_before_the_process_ends_however_it_ends(tmp_path: Path, how: str, code: int) -> None:
    done, folder = _run(tmp_path, how)
    assert done.code == code
    assert _is_whole(folder / "model.pt")


def test_a_second_save_to_the_same_path_wins(tmp_path: Path) -> None:
    done, folder = _run(tmp_path, "twice")
    assert done.code == 0, done.errors
    assert torch.load(folder / "model.pt") == {"step": 4}


def test_errors_at_the_call_are_torchs_own(tmp_path: Path) -> None:
    done, _ = _run(tmp_path, "no-folder")
    assert done.code == 1
    assert "Parent directory" in done.errors


@pytest.mark.parametrize("how", ["full", "full-and-again"])
def test_an_error_of_the_write_is_told_at_the_next_save_or_the_end(tmp_path: Path, how: str) -> None:
    done, folder = _run(tmp_path, how)
    assert done.code == 1
    assert f"the checkpoint `{folder / 'model.pt'}` could not be written in the background" in done.errors
    assert ("Traceback" in done.errors) == (how == "full-and-again")


def test_an_object_that_is_no_path_is_written_as_ever(tmp_path: Path) -> None:
    done, _ = _run(tmp_path, "memory")
    assert int(done.said("bytes")) > 4_000_000
    assert done.reports["background_checkpoint", 0]["details"] == {"saves": 1}


def test_distributed_checkpoints_are_there_after_a_barrier_with_the_values_of_the_call(tmp_path: Path) -> None:
    done = run(tmp_path / "recording", "distributed_checkpoint", tmp_path, patches=BACKGROUND, ranks=2)
    assert done.code == 0, done.errors
    assert done.said("loaded") == "0.0"
    assert done.reports["background_checkpoint", 1]["details"] == {"distributed_saves": 1}


@pytest.mark.parametrize("patches", [[], BACKGROUND])
def test_a_diverted_script_finds_what_it_wrote_and_the_users_files_stay(tmp_path: Path, patches: list) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    torch.save({"old": 1}, folder / "older.pt")
    for name in ("last.pt", "best.pt", "step.pt"):
        (folder / name).write_bytes(b"the user's")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    done = run(
        tmp_path / "recording",
        "outputs",
        folder,
        patches=patches,
        is_recorded=True,
        FLATOUT_DIVERT=str(tmp_path / "diverted"),
    )
    assert done.code == 0, done.errors
    assert done.said("loaded") == "{'new': 1} {'new': 1} {'new': 2}"
    assert (done.said("exists"), done.said("older")) == ("True True False", "{'old': 1}")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    told = {Path(line["path"]).name: line["existed"] for line in done.lines("diverted-*.jsonl")}
    assert told == {"last.pt": True, "best.pt": True, "step.pt.tmp": False, "step.pt": True}
    assert (tmp_path / "diverted" / str(folder).lstrip("/") / "last.pt").is_file()


def test_distributed_checkpoints_are_diverted_on_all_ranks(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    done = run(
        tmp_path / "recording",
        "distributed_checkpoint",
        out,
        ranks=2,
        is_recorded=True,
        by_torchrun=True,
        FLATOUT_DIVERT=str(tmp_path / "diverted"),
    )
    assert done.code == 0, done.errors
    assert done.said("loaded") == "0.0"
    assert list(out.iterdir()) == []
    assert (tmp_path / "diverted" / str(out).lstrip("/") / "dcp" / ".metadata").is_file()
