"""What a user can do wrong with `flatout track`: one line each, with a way out, and nothing is written."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import flatout as package

pytestmark = pytest.mark.usefixtures("warm")

COMPARISON = Path(__file__).parents[1] / "data" / "readers" / "results" / "comparison.json"
NAMED = ("--job", "train", "--machine", "m")


def track(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flatout", "track", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])},
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a result, a history of it, and files that are neither."""
    shutil.copy(COMPARISON, tmp_path / "ok.json")
    (tmp_path / "cut.json").write_text(COMPARISON.read_text()[:300])
    (tmp_path / "log.json").write_text("step 1 loss 2.0\n")
    (tmp_path / "unmeasured.json").write_text('{"schema": "flatout/tuning", "version": 1}')
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "damaged.jsonl").write_text('{"schema":"flatout/track","version":1,"job":"x"\n')
    (tmp_path / "other.jsonl").write_text('{"step": 1}\n')
    done = track("add", "history.jsonl", "ok.json", *NAMED, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["add", "new.jsonl", "none.json"], "`none.json` cannot be read: no such file or directory"),
        (["add", "new.jsonl", "cut.json"], "`cut.json` is not the JSON of a result: at line 24, column 10, its end is"),
        (["add", "new.jsonl", "log.json"], "`log.json` is not the JSON of a result: at column 1, it must have a value"),
        (["add", "new.jsonl", "unmeasured.json"], "`unmeasured.json` has no measure: all its times and rates are"),
        (["add", "new.jsonl", "."], "`.` cannot be read: it is a folder, and only files are read"),
        (
            ["add", "other.jsonl", "ok.json", *NAMED],
            "`other.jsonl` exists and is not a history: nothing is added to it",
        ),
        (["add", "new.jsonl", "ok.json", *NAMED, "--env", "x"], "`--env` must be NAME=VALUE, but is `x`"),
        (["check", "none.jsonl"], "`none.jsonl` cannot be read: no such file or directory"),
        (["check", "other.jsonl"], "`other.jsonl` is not a history of results"),
        (["check", "empty.jsonl"], "`empty.jsonl` has no results\n"),
        (["show", "damaged.jsonl"], "`damaged.jsonl` has no results that can be read: lines that are damaged: 1,"),
        (["check", "history.jsonl", "--job", "other"], "no result in `history.jsonl` has what was asked for"),
        (["check", "history.jsonl", "--gate", "-3%"], "`--gate` must be a number from 0 to 1,000, but is `-3%`"),
        (["check", "history.jsonl", "--undecided", "x"], "`--undecided` must be fail or pass, but is `x`"),
        (
            ["check", "history.jsonl", "--false-alarms", "0"],
            "`--false-alarms` must be a number from 0.001 to 50, but is",
        ),
        (["check", "history.jsonl", "--last", "0"], "`--last` must be a whole number of at least 1, but is `0`"),
        (["check", "history.jsonl", "--format", "xml"], "`--format` must be one of junit, github, markdown, bmf,"),
        (["check", "history.jsonl", "--format", "bmf", "--json"], "`--format` and `--json` cannot be combined"),
        (["show", "history.jsonl", "--html", "ok.json"], "`ok.json` already exists"),
        (["export", "cut.json", "--format", "junit"], "`cut.json` is not the JSON of a result: at line 24"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(folder: Path, arguments: list[str], message: str) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    done = track(*arguments, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {message}")
    lines = done.stderr.splitlines()
    assert len(lines) == 1 or (len(lines) == 2 and lines[1].startswith("hint: "))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
