"""Output that the README and the tutorial show is what the command prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_the_output_shown_is_the_output_printed(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    shown = text.split("$ flatout diagnose examples/traces/straggler.tar.xz\n", 1)[1].split("\n```", 1)[0].splitlines()
    printed = subprocess.run(
        [sys.executable, "-m", "flatout", "diagnose", "examples/traces/straggler.tar.xz"],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=True,
        env={"PYTHONIOENCODING": "utf-8", "PATH": "", "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
    ).stdout.splitlines()
    if shown[-1] == "...":
        shown = shown[:-1]
    missing = [line for line in shown if line not in printed]
    assert len(shown) > 20
    assert not missing
