"""What a tuning leaves for other tools."""

from __future__ import annotations

from pathlib import Path

import msgspec
from tests.report import tuning_builder as builder

from flatout.tune.files import write_results


def test_a_job_that_is_started_for_good_has_no_folder_of_a_trial(tmp_path: Path) -> None:
    made = builder.better()
    command = ("torchrun", "--standalone", "train.py", "--out={trial_dir}/run")
    made = msgspec.structs.replace(made, tuning=msgspec.structs.replace(made.tuning, command=command))
    lines = write_results(made, tmp_path, apply=False, command=["flatout", "tune"])
    launch = next(line for line in lines if "exec torchrun" in line or "torchrun --standalone" in line)
    assert "--out=./run" in launch and "{trial_dir}" not in launch
    assert "--out={trial_dir}/run" in (tmp_path / "tuned.toml").read_text()  # as it was tuned
