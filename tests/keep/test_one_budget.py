"""Restarts have one budget: torchrun's own would be multiplied by ours."""

from __future__ import annotations

import sys

import pytest

from flatout.cli import main

SAID = "flatout: torchrun's own --max-restarts is 0 instead of 3: Flatout restarts the job, at most 2 times"


@pytest.mark.parametrize(
    ("options", "command", "started"),
    [
        (
            ["--max-restarts=2"],
            ["torchrun", "--max-restarts", "3", "--nnodes=2", "train.py", "--max-restarts=9"],
            "torchrun --max-restarts=0 --nnodes=2 train.py --max-restarts=9",
        ),
        (
            ["--max-restarts=2"],
            ["srun", "-N2", "python", "-m", "torch.distributed.run", "--max_restarts=3", "train.py"],
            "srun -N2 python -m torch.distributed.run --max-restarts=0 train.py",
        ),
        (["--max-restarts=2"], ["torchrun", "train.py"], "torchrun train.py"),
        (["--max-restarts=2"], ["python", "train.py", "--max-restarts=3"], "python train.py --max-restarts=3"),
        ([], ["torchrun", "--max-restarts=3", "train.py"], "torchrun --max-restarts=3 train.py"),
    ],
)
def test_torchruns_own_restarts_are_taken_over_where_flatout_has_some(
    options: list[str],
    command: list[str],
    started: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("PET_MAX_RESTARTS", raising=False)
    monkeypatch.setattr(sys, "argv", ["flatout", "run", "--dry-run", *options, "--", *command])
    assert main() == 0
    out, err = capfd.readouterr()
    assert out.split() == started.split()
    assert err.splitlines() == ([SAID] if "--max-restarts=0" in started else [])


def test_torchruns_variable_counts_as_its_option(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PET_MAX_RESTARTS", "3")
    monkeypatch.setattr(
        sys, "argv", ["flatout", "run", "--dry-run", "--max-restarts=2", "--", "torchrun", "--nnodes=2", "train.py"]
    )
    assert main() == 0
    out, err = capfd.readouterr()
    assert out.split() == ["torchrun", "--max-restarts=0", "--nnodes=2", "train.py"]
    assert err.splitlines() == [SAID]
    monkeypatch.setattr(sys, "argv", ["flatout", "run", "--dry-run", "--max-restarts=2", "--", "python", "train.py"])
    assert main() == 0
    assert capfd.readouterr().err == "", "which no torchrun reads here"
