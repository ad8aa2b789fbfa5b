"""A `flatout profile` or `flatout run` that gets SIGKILL leaves its job running: the next command there says so."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import flatout as package

pytestmark = pytest.mark.usefixtures("warm")

SOURCE = str(Path(package.__file__).parents[1])
SLEEPS = ["sh", "-c", "echo up; exec sleep 300"]
TOLD = re.compile(
    r"flatout: a job whose `flatout (profile|run)` was killed is still running, unmonitored: process (\d+), "
    r"sh -c 'echo up; exec sleep 300' \(`kill \d+` ends it\)"
)


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FLATOUT_", "TORCHEL"))}
    return subprocess.Popen(
        [sys.executable, "-m", "flatout", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**inherited, "PYTHONPATH": SOURCE, "TMPDIR": str(folder / "temporary")},
        start_new_session=True,
    )


def told(folder: Path, *arguments: str) -> list[tuple[str, str]]:
    """Return which command was killed and the process that is named, for each job that `flatout` tells of."""
    process = start(folder, *arguments)
    _, errors = process.communicate(timeout=120)
    return TOLD.findall(errors)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "temporary").mkdir()
    yield tmp_path
    for process in psutil.process_iter(["environ"]):
        environment = process.info["environ"] or {}
        if environment.get("TMPDIR") == str(tmp_path / "temporary"):
            process.kill()


def sleeping_child(pid: int) -> psutil.Process:
    """Return the job of a `flatout`: its shell has said "up", and becomes `sleep` a moment later."""
    until_s = time.monotonic() + 30
    while True:
        sleeping = [child for child in psutil.Process(pid).children() if child.name() == "sleep"]
        if sleeping:
            return sleeping[0]
        assert time.monotonic() < until_s, "the job does not begin to sleep"
        time.sleep(0.02)


@pytest.mark.parametrize("killed", [("profile", "--out", "first"), ("run",), ("run", "--max-restarts", "2")])
def test_the_next_command_in_the_folder_tells_of_the_job_that_runs_on(folder: Path, killed: tuple[str, ...]) -> None:
    process = start(folder, *killed, "--", *SLEEPS)
    assert process.stdout is not None and process.stderr is not None
    with process.stdout, process.stderr:
        assert process.stdout.readline() == "up\n"
        job = sleeping_child(process.pid)
        assert told(folder, "run", "--", "true") == [], "it is monitored"
        process.kill()
        process.wait(10)
    expected = [(killed[0], str(job.pid))]
    assert told(folder, "run", "--", "true") == expected
    assert told(folder, "run", "--ledger", "l.jsonl", "--", "true") == expected
    assert told(folder, "profile", "--out", "second", "--", "true") == expected
    assert told(folder, "tune", "--no-history", "--out", "tuning", "--", "true") == expected
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    assert told(elsewhere, "run", "--", "true") == []
    assert job.is_running()
    job.kill()
    psutil.wait_procs([job], 10)
    assert told(folder, "run", "--", "true") == []
