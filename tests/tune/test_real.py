"""`flatout tune` on a real job of two gloo ranks, from its start to its files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import flatout

pytestmark = pytest.mark.usefixtures("warm")

pytest.importorskip("torch")
JOB = Path(flatout.__file__).parents[2] / "examples" / "jobs" / "train_slow.py"


def test_a_tuning_of_two_ranks_leaves_its_files_in_its_folder_and_nothing_elsewhere(tmp_path: Path) -> None:
    """More warm-up than the job's four passes a step: before its first update a pass may look like a step."""
    home, out = tmp_path / "home", tmp_path / "out"
    home.mkdir()
    shutil.copy(JOB, home / "train.py")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = ["--trials", "4", "--steps", "5", "--warmup", "5", "--budget", "5m"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "flatout",
            "tune",
            "--out",
            str(out),
            *options,
            "--",
            *launch,
            "train.py",
            "--width",
            "64",
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=home,
        timeout=280,
        env={**os.environ, "PYTHONPATH": str(Path(flatout.__file__).parents[1]), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode in (0, 1), done.stderr
    result = json.loads((out / "tuning.json").read_text())
    assert list(result)[:2] == ["schema", "version"] and (result["schema"], result["version"]) == ("flatout/tuning", 1)
    # It accumulates gradients, so its first loss is not known; the gate has the others, and nothing to complain of.
    assert not [note for note in result["notes"] if "loss" in note or "gradient" in note]
    kinds = [json.loads(line)["type"] for line in (out / "journal.jsonl").read_text().splitlines()]
    assert kinds == ["heading", "trial", "trial", "profile", "trial", "trial"]
    lines = [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]
    for trial in (line["result"] for line in lines if line["type"] == "trial"):
        (norms,) = trial["gradients"]
        assert len(norms["norms"]) == 5 and norms["rank_spread"] == 0.0 and not norms["without"]
    assert (out / "report.html").is_file()
    assert (out / "tuned.toml").exists() == (done.returncode == 0)
    assert [file.name for file in home.iterdir()] == ["train.py"]
    assert (home / "train.py").read_bytes() == JOB.read_bytes()
    assert not list(out.glob("runs/*/saved")) and not list(out.glob("runs/*/files"))
