"""Two real ranks on the CPU, with a fault that was put there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flatout.diagnosis_pipeline import diagnose_paths
from flatout.records.diagnosis import Diagnosis

pytestmark = pytest.mark.usefixtures("warm")

JOB = Path(__file__).parents[1] / "jobs" / "gloo_job.py"


def recorded(fault: str, folder: Path) -> Diagnosis:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(JOB)]
    run = subprocess.run(
        [*command, fault, str(folder)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return diagnose_paths([folder]).diagnosis


@pytest.mark.parametrize(
    ("fault", "ranks"), [("straggler", (1,)), ("host-bound", (0,)), ("data-loading", (0, 1))], ids=lambda v: str(v)
)
def test_the_fault_of_a_gloo_job_is_the_first_finding(fault: str, ranks: tuple[int, ...], tmp_path: Path) -> None:
    diagnosis = recorded(fault, tmp_path)
    assert (diagnosis.job.num_ranks, diagnosis.job.num_steps) == (2, 4)
    assert diagnosis.findings[0].name == fault
    assert diagnosis.findings[0].ranks == ranks
    for rank in diagnosis.ranks:
        assert sum(rank.parts_s.values()) == pytest.approx(rank.window_s, abs=1e-6)
        assert rank.parts_s["communication_unsplit"] == 0
    if fault == "straggler":
        waiting = sum(b.wait_s for b in diagnosis.blame if (b.waiting_rank, b.blamed_rank) == (0, 1))
        assert waiting > 0.9 * sum(b.wait_s for b in diagnosis.blame)
