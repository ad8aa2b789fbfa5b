"""Secrets planted in what `compare` and `track` are given are in no file and no message, in any format."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from flatout.cli import main

SECRETS = ("cmd-5ecret-1a2b", "env-5ecret-3c4d", "job-5ecret-5e6f", "url-5ecret-7a8b")
IN_COMMAND, IN_VARIABLE, IN_JOB, IN_URL = SECRETS
RESULTS = Path(__file__).parents[1] / "data" / "readers" / "results"


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def flatout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """Run a command in this process, in an empty folder."""

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["flatout", *arguments])
        code = main()
        return Done(code, *capfd.readouterr())

    monkeypatch.chdir(tmp_path)
    return run


def leaks(*texts: str | bytes) -> list[str]:
    joined = b"\n".join(text.encode() if isinstance(text, str) else text for text in texts)
    return [secret for secret in SECRETS if secret.encode() in joined]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def public(folder: Path) -> list[str]:
    """Return the files that hold a command or a masked text and that others can read."""
    holding = [name for name, data in contents(folder).items() if b"--api-key" in data or b"***" in data]
    return [name for name in holding if stat.S_IMODE((folder / name).stat().st_mode) & 0o077]


@pytest.mark.usefixtures("warm")
def test_a_comparison_whose_command_fails_leaves_none(tmp_path: Path) -> None:
    script = f"import sys; raise ValueError('GET https://me:{IN_URL}@hub/x with ' + sys.argv[2])"
    words = [f"DB_PASSWORD={IN_VARIABLE}", sys.executable, "-c", script, "--api-key", IN_COMMAND]
    arm = shlex.join(words)
    done = subprocess.run(
        [sys.executable, "-m", "flatout", "compare", "--a", arm, "--b", arm, "--out", "out", "--steps", "5"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 2
    assert "A's command fails" in done.stderr
    assert leaks(done.stdout, done.stderr) == []
    heading = json.loads((tmp_path / "out" / "a" / "journal.jsonl").read_text().splitlines()[0])
    assert heading["command"][-2:] == ["--api-key", "***"]
    assert heading["options"]["variables"] == "[('DB_PASSWORD', '***')]"
    assert leaks(*contents(tmp_path).values()) == []
    assert public(tmp_path) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["--a", f"PGPASSWORD={IN_VARIABLE} python 'x", "--b", "true"],
        ["--a", f"PGPASSWORD={IN_VARIABLE} python x && true", "--b", "true"],
        ["--a-ref", f"https://me:{IN_URL}@hub/x", "--", "true"],
        [f"https://me:{IN_URL}@hub/x", "b"],
    ],
)
def test_an_error_of_compare_shows_none(arguments: list[str], flatout: Callable[..., Done]) -> None:
    done = flatout("compare", *arguments)
    assert done.code == 2
    assert leaks(done.out, done.err) == []


FORMATS = ("junit", "github", "markdown", "bmf", "benchmark-action")


def test_a_history_and_all_that_is_written_from_it_has_none(tmp_path: Path, flatout: Callable[..., Done]) -> None:
    given = ["--job", f"train.py --api-key {IN_JOB}", "--machine", f"https://me:{IN_URL}@host/x", "--elsewhere"]
    facts = ["--env", f"HF_TOKEN={IN_VARIABLE}", "--env", f"image=https://me:{IN_URL}@hub/train:7"]
    commit = ["--commit", f"https://me:{IN_URL}@hub/x"]
    history = tmp_path / "history.jsonl"
    added = flatout("track", "add", str(history), str(RESULTS / "tuning.json"), *given, *facts, *commit)
    assert added.code == 0, added.err
    line = json.loads(history.read_text())
    assert line["environment"]["HF_TOKEN"] == "***"
    assert (line["job"], line["machine"]) == ("train.py --api-key ***", "https://me:***@host/x")
    assert line["commit"]["id"] == "https://me:***@hub/x"
    shown = [flatout("track", "check", str(history), "--format", name) for name in FORMATS]
    shown.append(flatout("track", "check", str(history), "--json"))
    shown.append(flatout("track", "show", str(history), "--html", str(tmp_path / "page.html")))
    shown += [
        flatout("track", "export", str(RESULTS / "tuning.json"), *given[:4], "--format", name) for name in FORMATS
    ]
    assert [one.code for one in shown] == [0] * len(shown)
    assert leaks(*(one.out + one.err for one in shown)) == []
    assert leaks(*contents(tmp_path).values()) == []
    assert public(tmp_path) == []


def test_the_summary_of_a_github_run_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flatout: Callable[..., Done]
) -> None:
    monkeypatch.setitem(os.environ, "GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    given = ["--job", f"train.py --api-key {IN_JOB}", "--machine", "m", "--format", "github"]
    done = flatout("track", "export", str(RESULTS / "tuning.json"), *given)
    assert done.code == 0, done.err
    text = (tmp_path / "summary.md").read_text()
    assert "api" in text and leaks(text, done.out) == []
    assert public(tmp_path) == []
