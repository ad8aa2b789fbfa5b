"""Output that the README, the tutorial and how-to pages show is what the command prints."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DIAGNOSE = "flatout diagnose examples/traces/straggler.tar.xz"
PLAN = (
    "flatout plan serve --model llama3.1-70b --gpu h100 --rate 5 --input 1024 --output 256 --ttft 500ms --itl 50ms "
    "--weights fp8"
)


def shown_after(page: str, command: str) -> list[str]:
    """Return the output that the page shows after the command, without the marks of what it leaves out."""
    text = (ROOT / page).read_text(encoding="utf-8")
    shown = text.split(f"$ {command}\n", 1)[1].split("\n```", 1)[0].splitlines()
    return [line for line in shown if line != "..."]


def printed_by(command: str, folder: Path) -> list[str]:
    return subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        check=True,
        env={"PYTHONIOENCODING": "utf-8", "PATH": "", "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
    ).stdout.splitlines()


@pytest.mark.parametrize(
    ("page", "command", "min_lines"),
    [
        ("README.md", DIAGNOSE, 20),
        ("docs/tutorial.md", DIAGNOSE, 20),
        ("docs/how-to/plan-serving.md", PLAN, 12),
    ],
)
def test_the_output_shown_is_the_output_printed(page: str, command: str, min_lines: int) -> None:
    shown, printed = shown_after(page, command), printed_by(command, ROOT)
    assert len(shown) > min_lines
    assert [line for line in shown if line not in printed] == []


def test_the_loader_shown_is_that_of_the_recording(tmp_path: Path) -> None:
    with tarfile.open(ROOT / "tests/loading/golden/imagenet_two_ranks.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    command = "flatout data show imagenet_two_ranks"
    shown, printed = shown_after("docs/how-to/data.md", command), printed_by(command, tmp_path)
    assert len(shown) > 15
    assert [line for line in shown if line not in printed] == []
