"""`tune --out DIR` in a folder that holds something else: nothing in it is changed, with `--force` or without."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.inside.test_divert import contents
from tests.tune.test_files import start

from flatout.errors import FlatoutError, InputError, OutputError
from flatout.trial.journal import Heading, Journal, is_journal

HEADING = '{"type":"heading","tool_version":"1","command":["python"],"options":{}}\n'


def foreign(folder: Path, kind: str) -> None:
    """Make a folder that is not, or not only, that of a tuning run."""
    folder.mkdir()
    if kind.startswith("ours"):
        start(folder)
    if kind == "a journal of another tool":
        (folder / "journal.jsonl").write_text('{"event": "start", "run": 7}\n{"event": "end"}\n')
    elif kind == "its only line":
        (folder / "journal.jsonl").write_text('{"event": "start", "run": 7}\n')
    elif kind == "its line cut short":
        (folder / "journal.jsonl").write_text('{"event": "st')
    elif kind == "not JSON":
        (folder / "journal.jsonl").write_bytes(b"\x00\x01\x02")
    elif kind == "a link":
        (folder.parent / "theirs.jsonl").write_text(HEADING)
        (folder / "journal.jsonl").symlink_to("../theirs.jsonl")
    elif kind == "a pipe":
        os.mkfifo(folder / "journal.jsonl")
    elif kind == "a folder":
        (folder / "journal.jsonl").mkdir()
    elif kind == "runs of a tracker":
        (folder / "runs" / "Nov29").mkdir(parents=True)
        (folder / "runs" / "Nov29" / "events.out.tfevents.1").write_text("x")
    elif kind == "ours with a file":
        (folder / "model.pt").write_text("x")
    elif kind == "ours with runs of a tracker":
        (folder / "runs" / "Nov29").mkdir(parents=True)
        (folder / "runs" / "Nov29" / "events.out.tfevents.1").write_text("x")
    elif kind == "ours with a link":
        (folder / "report.html").symlink_to("../elsewhere.html")


KINDS = (
    "a journal of another tool",
    "its only line",
    "its line cut short",
    "not JSON",
    "a link",
    "a pipe",
    "a folder",
    "runs of a tracker",
)
OURS_WITH_MORE = ("ours with a file", "ours with runs of a tracker", "ours with a link")


def named(folder: Path) -> dict[str, Any]:
    pipes = [path for path in folder.iterdir() if path.is_fifo()]
    if pipes:
        return {str(path): "pipe" for path in pipes}
    return contents(folder)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_foreign_folder_is_refused_and_unchanged(tmp_path: Path, kind: str, force: bool) -> None:
    foreign(tmp_path / "out", kind)
    before = named(tmp_path / "out")
    with pytest.raises(OutputError, match="already has other files"):
        start(tmp_path / "out", force=force)
    assert named(tmp_path / "out") == before


@pytest.mark.parametrize("kind", OURS_WITH_MORE)
def test_force_does_not_replace_a_tuning_with_more_in_its_folder(tmp_path: Path, kind: str) -> None:
    foreign(tmp_path / "out", kind)
    before = contents(tmp_path / "out")
    with pytest.raises(OutputError, match=r"holds more than a tuning run, such as `.*`, and is not replaced"):
        start(tmp_path / "out", force=True)
    assert contents(tmp_path / "out") == before


def test_force_replaces_a_tuning_with_all_that_is_its_own(tmp_path: Path) -> None:
    out = tmp_path / "out"
    start(out)
    for name in ("runs/trial-000/recording/rank0.steps.jsonl", "runs/profile-003/output.log", "files/env.sh"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text("x")
    for name in ("runs/written.json", "tuning.json", "report.html", "tuned.toml"):
        (out / name).write_text("{}")
    start(out, force=True)
    assert sorted(path.name for path in out.iterdir()) == ["files", "journal.jsonl"]


@pytest.mark.parametrize("kind", KINDS[:5])
def test_nothing_is_appended_to_a_foreign_journal(tmp_path: Path, kind: str) -> None:
    foreign(tmp_path / "out", kind)
    path = tmp_path / "out" / "journal.jsonl"
    before = path.read_bytes()
    with pytest.raises(InputError, match="is not the journal of a tuning run"):
        Journal(path, Heading(tool_version="1", command=("python",), options={}))
    assert path.read_bytes() == before


@pytest.mark.parametrize("first", [b"\xff\xfe{\n", b'{"kind": "\xff"}\n', b"[" * 5000 + b"\n", b"9" * 5000 + b"\n"])
def test_a_line_of_any_bytes_is_no_heading(tmp_path: Path, first: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_bytes(first)
    assert not is_journal(path)


@pytest.mark.parametrize("cut", [0, 1, 16, 17, 40, len(HEADING) - 1])
def test_a_heading_that_was_cut_short_is_ours(tmp_path: Path, cut: int) -> None:
    """As by a full disk, or a crash of the machine before the first trial."""
    path = tmp_path / "journal.jsonl"
    path.write_text(HEADING[:cut])
    assert is_journal(path)
    try:
        Journal(path, Heading(tool_version="1", command=("python",), options={}))
    except FlatoutError as error:  # the complete heading of another tuning run, but for its end
        pytest.fail(str(error))
