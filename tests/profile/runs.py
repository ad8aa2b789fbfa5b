"""Runs commands with and without `flatout profile`, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import flatout
from flatout.profile import read_recording
from flatout.records.recording import Recording

JOB = Path(__file__).with_name("job.py")
TIMEOUT_S = 150


def environment(**more: str) -> dict[str, str]:
    """Flatout importable, and one thread a process."""
    source = str(Path(flatout.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "", **more}


def run(command: Sequence[str | Path], **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )


def profiling(out: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "flatout", "profile", "--out", str(out), *options, "--"]


def job(*arguments: object) -> list[str]:
    return [sys.executable, str(JOB), *map(str, arguments)]


def torchrun(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(JOB)] + [
        str(argument) for argument in arguments
    ]


def recorded(
    out: Path, command: Sequence[str], *options: str, code: int = 0, **more: str
) -> tuple[Recording, subprocess.CompletedProcess[str]]:
    """The recording of `command`, which must end with `code`."""
    done = run([*profiling(out, *options), *command], **more)
    assert done.returncode == code, done.stderr
    return read_recording(out), done


def words(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What Flatout itself said."""
    return [line.removeprefix("flatout: ") for line in done.stderr.splitlines() if line.startswith("flatout: ")]
