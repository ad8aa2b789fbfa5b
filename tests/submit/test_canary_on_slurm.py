"""`flatout submit --canary` on a real Slurm: the first job tries a tuning, and its answer decides for the next one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tests.keep.test_tuning_check import JOB, tuned_file
from tests.slurm import SlurmLab
from tests.submit.test_slurm import submit, waited_for

pytestmark = pytest.mark.usefixtures("warm")


def warm_flatout(slurm: SlurmLab, tmp_path: Path) -> Path:
    """Write a `flatout` for the batch script, which is forked, too."""
    program = tmp_path / "bin" / "flatout"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {slurm.python} -m flatout "$@"\n')
    program.chmod(0o755)
    return program.parent


def test_the_jobs_after_a_canary_that_was_slower_have_no_changes(
    slurm: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The tuning promises steps of 1 ms, and the job's steps sleep for 20 ms: slower than without the changes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PATH", f"{warm_flatout(slurm, tmp_path)}:{os.environ['PATH']}")
    config = tuned_file(tmp_path / "tuned.toml", step_s=0.001, num_ranks=1)
    ledger = tmp_path / "ledger.jsonl"
    words = ["--config", str(config), "--canary", "--ledger", str(ledger)]
    launcher = [slurm.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    job = [str(JOB), f"--out={tmp_path / 'out'}", "--steps=640", "--save_every=1000"]
    canary = submit(monkeypatch, capfd, *words, "--out", "canary", "--", *launcher, *job)
    assert "this job is the canary" in str(canary["notes"])
    waiting = submit(monkeypatch, capfd, *words, "--out", "waiting", "--dry-run", "--", *launcher, *job)
    assert "the canary has not compared its steps with the tuning yet" in str(waiting["notes"])
    code = waited_for(Path(str(canary["exit_code_file"])), timeout_s=180)
    assert code == "0\n", Path(str(canary["output"])).read_text()
    events = [json.loads(line) for line in ledger.read_text().splitlines()]
    (check,) = [event for event in events if event["event"] == "tuning_check"]
    assert check["outcome"] == "regression"
    after = submit(monkeypatch, capfd, *words, "--out", "after", "--dry-run", "--", *launcher, *job)
    assert "without the changes: the canary was slower with them than without" in str(after["notes"])
