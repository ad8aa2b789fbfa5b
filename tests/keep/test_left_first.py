"""`flatout run` on two gloo ranks of which one leaves the other: the one that left first is named, with what it did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import flatout as package

pytestmark = pytest.mark.usefixtures("warm")

JOB = Path(__file__).parents[1] / "jobs" / "left_job.py"


@pytest.mark.parametrize(
    ("fault", "rule", "restarts", "says"),
    [
        ("exit0", "left-early", False, "rank 1 left first, after 3 steps: its script ended with exit code 0"),
        (
            "osexit0",
            "left-early",
            False,
            "rank 1 left first, after 3 steps: it ended at once with exit code 0 (os._exit)",
        ),
        ("osexit3", "rank-exit", True, "rank 1 left first, after 3 steps: it ended at once with exit code 3"),
        ("nan", "diverged", False, "exit code 1; its last line on standard error: Loss is nan, stopping training"),
        (
            "order",
            "mismatched-collectives",
            False,
            "rank 1 was aborted, after 3 steps in a collective at left_job.py:30",
        ),
    ],
)
def test_the_rank_that_left_first_is_the_root(tmp_path: Path, fault: str, rule: str, restarts: bool, says: str) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FLATOUT_", "TORCHELASTIC"))}
    # It looks once a second, so that the other rank has said what it misses before it is ended.
    patient = ["--standalone", "--nproc-per-node=2", "--monitor-interval=1"]
    launcher = [sys.executable, "-m", "torch.distributed.run", *patient]
    kept = [sys.executable, "-m", "flatout", "run", "--hang-after=60", "--ledger", str(tmp_path / "ledger.jsonl")]
    done = subprocess.run(
        [*kept, "--", *launcher, str(JOB), f"--fault={fault}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
        cwd=tmp_path,
        env={**inherited, "PYTHONPATH": str(Path(package.__file__).parents[1]), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 1, done.stderr
    events = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    (failure,) = [event for event in events if event["event"] == "failure"]
    assert failure["rule"] == rule, done.stderr
    assert says in failure["says"]
    assert (failure["restart"] != "no") is restarts
