"""The end of `flatout run`: the newest checkpoint, the saves that failed, and the code where the last is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flatout.checkpoint.notes import Event, SaveNotes
from flatout.run.saves import Saves, read_saves, report_file, report_saves

pytestmark = pytest.mark.usefixtures("warm")

SHARED, LOCAL = Path("/shared/ckpt"), Path("/fast/ckpt")


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SaveNotes:
    monkeypatch.setenv("FLATOUT_SAVES", str(tmp_path))
    return SaveNotes()


def note(notes: SaveNotes, *events: tuple[Event, int], folder: Path = SHARED) -> None:
    for event, step in events:
        reason = "No space left on device" if event == "failed" else ""
        notes.add(event, folder=folder, is_local=folder == LOCAL, step=step, reason=reason)


def only(state: Path) -> Saves:
    [saves] = read_saves(state)
    return saves


@pytest.mark.parametrize(
    ("events", "newest", "missing", "failed"),
    [
        ([("begun", 10), ("committed", 10)], 10, None, []),
        ([("begun", 10), ("committed", 10), ("begun", 20), ("committed", 20)], 20, None, []),
        ([("begun", 10), ("committed", 10), ("begun", 20), ("failed", 20)], 10, 20, [20]),
        ([("begun", 10), ("failed", 10), ("begun", 20), ("committed", 20)], 20, None, [10]),
        ([("begun", 10)], None, 10, [10]),  # killed while it was written
        ([("failed", 10)], None, 10, [10]),  # no memory for a copy
        ([("begun", 10), ("begun", 20), ("committed", 10)], 10, 20, [20]),  # two on their way
        ([("begun", 10), ("begun", 20), ("committed", 10), ("committed", 20)], 20, None, []),
        ([("begun", 40), ("resumed", 30), ("begun", 40), ("committed", 40)], 40, None, []),  # after a restart
        ([("resumed", 30)], 30, None, []),
        ([("begun", 45), ("resumed", 40), ("begun", 44), ("committed", 44)], 44, None, [45]),
        ([("begun", 10), ("committed", 10), ("begun", 10), ("failed", 10)], 10, 10, [10]),  # the same step again
    ],
)
def test_the_newest_checkpoint_and_the_missing_one(
    notes: SaveNotes,
    tmp_path: Path,
    events: list[tuple[Event, int]],
    newest: int | None,
    missing: int | None,
    failed: list[int],
) -> None:
    note(notes, *events)
    saves = only(tmp_path)
    assert (saves.newest, saves.missing, list(saves.failures)) == (newest, missing, failed)


def test_the_shared_folder_decides_whether_the_last_one_is_missing(notes: SaveNotes, tmp_path: Path) -> None:
    note(notes, ("begun", 10), ("failed", 10), folder=LOCAL)
    assert report_saves(read_saves(tmp_path))
    note(notes, ("begun", 10), ("committed", 10))
    assert not report_saves(read_saves(tmp_path))  # the faster copy only
    note(notes, ("begun", 20), ("committed", 20), folder=LOCAL)
    note(notes, ("begun", 20), ("failed", 20))
    assert report_saves(read_saves(tmp_path))


def test_the_words(notes: SaveNotes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    note(notes, ("begun", 1), ("committed", 1), *(("failed", step) for step in range(2, 7)))
    report_saves(read_saves(tmp_path))
    why = "No space left on device"
    assert capsys.readouterr().err.splitlines() == [
        "flatout: newest checkpoint in /shared/ckpt: step 1",
        f"flatout: not saved: step 4 ({why}), step 5 ({why}), step 6 ({why}) and 2 before",
    ]


def test_half_a_line_and_a_missing_folder_are_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLATOUT_SAVES", str(tmp_path / "gone"))
    note(SaveNotes(), ("begun", 1))
    assert read_saves(tmp_path) == []
    (tmp_path / "saves-host-1.jsonl").write_text('{"event": "comm')
    assert read_saves(tmp_path) == []


JOB = """
import sys, torch
from flatout.checkpoint import Checkpointer, store
model, write = torch.nn.Linear(2, 2), store.write_file
with Checkpointer("ckpt", model=model) as checkpointer:
    start = checkpointer.resume()
    checkpointer.save(start + 1, wait=True)
    if sys.argv[1] == "full":
        def write_file(*given):
            raise OSError(28, "No space left on device")
        store.write_file = write_file
        checkpointer.save(start + 2)
"""


@pytest.mark.parametrize("options", [[], ["--max-restarts", "1"]], ids=["plain", "kept alive"])
def test_a_job_that_ends_well_without_its_last_checkpoint_ends_with_code_1(tmp_path: Path, options: list[str]) -> None:
    def run(word: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "flatout", "run", *options, "--", sys.executable, "-c", JOB, word]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)

    good = run("good")
    assert (good.returncode, good.stderr.splitlines()[-1]) == (
        0,
        f"flatout: newest checkpoint in {tmp_path}/ckpt: step 1",
    )
    bad = run("full")
    assert bad.returncode == 1, bad.stderr
    assert bad.stderr.splitlines()[-2:] == [
        f"flatout: newest checkpoint in {tmp_path}/ckpt: step 2",
        "flatout: not saved: step 3 (No space left on device)",
    ]


def test_the_file_that_a_script_saves_is_reported_with_its_age(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ckpt.pt"
    report_file(path, 0.0)
    path.write_bytes(b"x")
    report_file(path, path.stat().st_mtime - 1)
    report_file(path, path.stat().st_mtime + 1)
    new, old = capsys.readouterr().err.splitlines()
    assert new.startswith(f"flatout: newest checkpoint: {path}, written ")
    assert old == f"flatout: newest checkpoint: {path}, from before the last attempt"
