"""No control or bidirectional character of a name, a message, a capture or a host reaches the terminal."""

from __future__ import annotations

import io
import json
import sys
import tarfile
import unicodedata
from pathlib import Path

import pytest

from flatout.cli import main

HOSTILE = "ra\x1b[31mnk0\x1b]0;pwned\a\r\n\u202e\x9b2J."
_CATEGORIES = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def _archive(folder: Path) -> Path:
    path = folder / "esc.tar"
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo(f"{HOSTILE}.json"), io.BytesIO())
    return path


def _named(folder: Path, text: str = "") -> Path:
    path = folder / f"{HOSTILE}.json"
    path.write_text(text)
    return path


def _bundle(folder: Path) -> Path:
    path = folder / "host.json"
    content = {"files": {"/proc/version": f"Linux {HOSTILE}"}, "outputs": {}, "host": HOSTILE, "environment": {}}
    path.write_text(json.dumps({"schema": "flatout/doctor-bundle", "version": 1, **content}))
    return path


def _failure(folder: Path) -> Path:
    path = folder / "log.txt"
    path.write_text(f"Traceback (most recent call last):\nRuntimeError: CUDA error {HOSTILE}\n", newline="")
    return path


def _model(folder: Path) -> Path:
    path = folder / "model.py"
    path.write_text(f"raise ValueError({HOSTILE!r})\n")
    return path


def _history(folder: Path) -> Path:
    """Return a history of three results, in which all texts are hostile."""
    path = folder / f"{HOSTILE}.jsonl"
    measure = {"name": HOSTILE, "value": 1.0, "unit": HOSTILE, "direction": "lower"}
    common = {"schema": "flatout/track", "version": 1, "job": HOSTILE, "machine": HOSTILE, "source": HOSTILE}
    lines = []
    for number in range(3):
        commit = {"id": f"{HOSTILE}{number}", "branch": HOSTILE}
        own = {"commit": commit, "environment": {HOSTILE: f"{number}"}, "measured_unix_s": 1.0 + number}
        lines.append({**common, **own, "measures": [measure], "digest": str(number)})
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    return path


COMMANDS = {
    "a member of an archive": lambda folder: ["diagnose", str(_archive(folder))],
    "an empty trace": lambda folder: ["diagnose", str(_named(folder))],
    "a trace that is none": lambda folder: ["diagnose", str(_named(folder, f'{{"traceEvents": "{HOSTILE}"'))],
    "a file that is missing": lambda folder: ["diagnose", str(folder / f"{HOSTILE}.gz")],
    "two things to compare": lambda folder: ["diff", str(_named(folder)), str(folder / HOSTILE)],
    "a finding's name": lambda _: ["explain", HOSTILE],
    "a failure's message": lambda folder: ["explain", "--failure", str(_failure(folder))],
    "a capture": lambda folder: ["doctor", "--from", str(_bundle(folder))],
    "a capture as JSON": lambda folder: ["doctor", "--json", "--from", str(_bundle(folder))],
    "a kernel log": lambda folder: ["doctor", "--from", str(_failure(folder))],
    "a host": lambda _: ["doctor", "--hosts", HOSTILE, "--via", "ssh"],
    "a model's name": lambda _: ["plan", "--model", HOSTILE, "--cluster", "h100x8"],
    "a model's exception": lambda folder: ["plan", "--model", f"{_model(folder)}:m", "--cluster", "h100x8"],
    "a cluster's name": lambda _: ["plan", "--model", "llama3-8b", "--cluster", HOSTILE],
    "a ledger": lambda folder: ["ledger", str(_named(folder, f'{{"event": "{HOSTILE}"}}\n'))],
    "a table of jobs": lambda folder: ["cost", "jobs", str(_named(folder, f"{HOSTILE},b\n1,2\n"))],
    "a history of jobs": lambda folder: ["schedule", "replay", str(_named(folder, f"{HOSTILE},b\n1,2\n"))],
    "a command that is missing": lambda _: ["profile", "--out", "rec", "--", HOSTILE],
    "a command to show": lambda _: ["run", "--dry-run", "--", "python", HOSTILE],
    "a tuned.toml": lambda folder: ["run", "--config", str(_named(folder, f'x = "{HOSTILE}')), "--", "true"],
    "a recording's folder": lambda folder: ["profile", "--out", str(_named(folder)), "--", "true"],
    "an arm's command": lambda _: ["compare", "--a", f"'{HOSTILE}", "--b", "true"],
    "an arm's commit": lambda _: ["compare", "--a-ref", HOSTILE, "--", "true"],
    "a recording to compare": lambda _: ["compare", HOSTILE, "b"],
    "a history of results": lambda folder: ["track", "show", str(_history(folder))],
    "a history for GitHub": lambda folder: ["track", "check", str(_history(folder)), "--format", "github"],
    "a history as Markdown": lambda folder: ["track", "check", str(_history(folder)), "--format", "markdown"],
    "a history as JUnit": lambda folder: ["track", "check", str(_history(folder)), "--format", "junit"],
    "a history as JSON": lambda folder: ["track", "check", str(_history(folder)), "--json"],
    "a fact": lambda folder: ["track", "add", str(folder / "h"), str(_history(folder)), "--env", HOSTILE],
    "an option": lambda _: [f"--{HOSTILE}"],
    "a command's name": lambda _: [HOSTILE],
    "an option's value": lambda _: ["tune", "--budget", HOSTILE, "--", "true"],
    "an option of a command": lambda _: ["bench", f"--{HOSTILE}"],
}


@pytest.mark.parametrize("road", COMMANDS)
def test_nothing_that_a_terminal_acts_on_reaches_it(
    road: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["flatout", *COMMANDS[road](tmp_path)])
    code = main()
    out, err = capfd.readouterr()
    reached = {character for character in out + err if unicodedata.category(character) in _CATEGORIES}
    assert reached <= {"\n", "\t"}
    assert out + err, "it said something"
    if code == 2:
        lines = err.splitlines()
        assert sum(line.startswith("error:") for line in lines) == 1, "an error is one line"
