"""`flatout schedule slurm` where Slurm's commands are missing, broken or old: one line, and exit code 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("warm")

CONFIG = "echo 'ClusterName             = lab'"
NODES = json.dumps({"nodes": [{"name": "n1", "state": "idle", "gres": "gpu:8", "cpus": 8, "partitions": ["low"]}]})


def commands(folder: Path, **scripts: str) -> Path:
    """A folder for PATH with these programs."""
    folder.mkdir(exist_ok=True)
    for name, script in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return folder


def run(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flatout", "schedule", *arguments],
        env={**os.environ, "PATH": f"{path}:/bin" if path.exists() else str(path)},
        capture_output=True,
        text=True,
        check=False,
        cwd=path.parent,
    )


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2 and done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("hint: ")]
    assert len(lines) == 1
    return lines[0]


def test_without_slurm(tmp_path: Path) -> None:
    assert error_of(run(tmp_path / "none", "slurm", "--once")) == "error: `scontrol` is not installed here"


@pytest.mark.parametrize(
    ("squeue", "said"),
    [
        ("echo hello", "error: squeue --json did not print valid JSON: "),
        ('echo \'{"jobs": [{"job_id": 4}]}\'', "error: squeue --json: the entry '4' cannot be read: no 'job_state'"),
        (
            "echo 'squeue: error: Invalid user' >&2; exit 1",
            "error: `squeue --json` failed: squeue: error: Invalid user",
        ),
        ("exec sleep 20", "error: `squeue` did not answer in 1 s"),
        ("printf '{\"jobs\": [\\377'", "error: squeue --json did not print valid JSON: "),
    ],
)
def test_what_squeue_says_is_refused(tmp_path: Path, squeue: str, said: str) -> None:
    path = commands(tmp_path / "bin", scontrol=CONFIG, squeue=squeue, sinfo=f"echo '{NODES}'")
    assert error_of(run(path, "slurm", "--once", "--timeout", "1")).startswith(said)
    assert not (tmp_path / "flatout-out").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "best"], "error: --policy must be one of priority, fifo, shortest, qssf, least-attained"),
        (["--urgent", "high"], "error: --urgent must be KEY=PATTERN with a key of partition, "),
        (["--protect", "node=n1"], "error: --protect must be KEY=PATTERN with a key of partition, "),
        (["--order-by", "age"], "error: --order-by must be priority or nice, but is `age`"),
        (["--idle-after", "nan"], "error: `--idle-after` must be a duration from 0.6s to 10000d, e.g. 90s, 10m or 36h"),
        (
            ["--idle-after", "30"],
            "error: `--idle-after` must have a unit, but is `30`: write 30m for minutes or 30s for",
        ),
        (["--idle-below", "nan"], "error: `--idle-below` must be a number from 0 to 1, but is `nan`"),
        (["--policy", "shortest", "--history", "none.txt"], "error: none.txt cannot be read: No such file"),
        (["--apply", "--log", "/proc/none/log"], "error: /proc/none/log cannot be opened: "),
    ],
)
def test_arguments_that_cannot_be(tmp_path: Path, arguments: list[str], said: str) -> None:
    path = commands(tmp_path / "bin", scontrol=CONFIG, squeue="echo '{\"jobs\": []}'", sinfo=f"echo '{NODES}'")
    assert error_of(run(path, "slurm", "--once", *arguments)).startswith(said)


def test_nodes_of_later_versions_and_no_accounting(tmp_path: Path) -> None:
    scontrol = f"case $2 in config) {CONFIG};; nodes) echo '{NODES}';; esac"
    path = commands(
        tmp_path / "bin",
        scontrol=scontrol,
        squeue="echo '{\"jobs\": []}'",
        sinfo="echo '{\"sinfo\": []}'",
        sacct="echo 'Slurm accounting storage is disabled' >&2; exit 1",
    )
    done = run(path, "slurm", "--once", "--json")
    assert done.returncode == 0
    cycle = json.loads(done.stdout)
    assert (cycle["schema"], cycle["num_gpus"], cycle["num_free_gpus"]) == ("flatout/schedule-cycle", 8, 8)
    assert "0 jobs run, 0 wait; 8 of 8 GPUs are free" in done.stderr


def test_a_log_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    path = commands(tmp_path / "bin", scontrol=CONFIG)
    for apply in ([], ["--apply"]):
        said = error_of(run(path, "undo", "none.jsonl", *apply))
        assert said == "error: none.jsonl cannot be read: No such file or directory"
    assert not (tmp_path / "none.jsonl").exists()
