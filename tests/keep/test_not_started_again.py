"""Failures that would come again: named in one line as the cause, and not started again, whatever the budget."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import flatout as package

SOURCE = str(Path(package.__file__).parents[1])
CHECKPOINTED = """\
import sys, torch
from flatout.checkpoint import Checkpointer
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Checkpointer("ckpt", model=model, optimizer=optimizer, every=1) as checkpointer:
    if "new" not in sys.argv:
        checkpointer.resume()
    if "hold" in sys.argv:
        print("up", flush=True)
        sys.stdin.read()
    for step in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        checkpointer.step(step + 1)
"""
PARSED = """\
import argparse, torch
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
print(parser.parse_args())
"""


def run(tmp_path: Path, *command: str) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-m", "flatout", "run", "--max-restarts=3", "--", *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"},
    )
    return done.returncode, [line for line in done.stderr.splitlines() if line.startswith("flatout: ")]


def script(tmp_path: Path, text: str) -> str:
    (tmp_path / "train.py").write_text(text)
    return "train.py"


@pytest.mark.parametrize(
    ("command", "code", "why"),
    [
        ("exit 2", 2, "its arguments or its environment"),
        ("no-such-program", 127, "a program in it was not found"),
        ("./train.py", 126, "a program in it may not be executed"),
    ],
)
def test_a_command_that_a_shell_refuses(tmp_path: Path, command: str, code: int, why: str) -> None:
    script(tmp_path, "")
    assert run(tmp_path, "sh", "-c", command) == (
        code,
        [
            f"flatout: attempt 1 failed: the command ended with code {code} before the first step: {why} "
            "(the job's own)",
            "flatout: starting it again would not help (usage)",
        ],
    )


def test_arguments_that_the_script_refuses_below_a_launcher_that_tells_of_code_1_alone(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    code, said = run(tmp_path, *launcher, script(tmp_path, PARSED), "--stepz=3")
    assert code == 1
    assert said == [
        "flatout: attempt 1 failed: the script refuses its arguments: train.py: unrecognized arguments: --stepz=3 "
        "(the job's own)",
        "flatout: starting it again would not help (arguments)",
    ]


def test_a_refusal_that_the_script_gets_over_is_not_what_failed(tmp_path: Path) -> None:
    text = PARSED.replace(
        "print(parser.parse_args())", "try:\n    parser.parse_args()\nexcept SystemExit:\n    pass\n1 / 0"
    )
    code, said = run(tmp_path, sys.executable, script(tmp_path, text), "--stepz=3")
    assert code == 1
    assert "rank 0 raised ZeroDivisionError at train.py:8: division by zero" in said[0]


def test_a_checkpoint_folder_of_another_job_is_the_cause_and_is_not_tried_again(tmp_path: Path) -> None:
    train = script(tmp_path, CHECKPOINTED)
    other = subprocess.Popen(
        [sys.executable, train, "hold"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert other.stdin is not None and other.stdout is not None
    try:
        assert other.stdout.readline() == "up\n"
        code, said = run(tmp_path, sys.executable, train)
    finally:
        other.stdin.close()
        other.wait(60)
        other.stdout.close()
    assert code == 1
    cause, decision = said
    assert cause.startswith(
        "flatout: attempt 1 failed: its checkpoints are another job's: rank 0 raised LockedError at train.py:5: "
        f"ckpt is written to by another job: process {other.pid} on "
    )
    assert decision == "flatout: starting it again would not help (locked)"


def test_checkpoints_of_another_training_are_the_cause_and_are_not_tried_again(tmp_path: Path) -> None:
    train = script(tmp_path, CHECKPOINTED)
    assert run(tmp_path, sys.executable, train) == (0, [])
    code, said = run(tmp_path, sys.executable, train, "new")
    assert code == 1
    assert "ckpt has checkpoints up to step 3, and resume() was not called" in said[0]
    assert said[1].startswith("flatout: starting it again would not help")


def test_what_may_not_be_written_is_not_tried_again(tmp_path: Path) -> None:
    """Not by root either; which of the two errors it is, depends on how /proc is mounted."""
    text = "import torch\nopen('/proc/sys/kernel/osrelease', 'wb')\n"
    code, said = run(tmp_path, sys.executable, script(tmp_path, text))
    assert code == 1
    assert said[0].startswith("flatout: attempt 1 failed: something may not be read or written: rank 0 raised ")
    assert "at train.py:2: [Errno " in said[0]
    assert said[1:] == ["flatout: starting it again would not help (unwritable)"]


def test_a_command_that_twice_fails_at_its_start_and_tells_a_code_alone(tmp_path: Path) -> None:
    assert run(tmp_path, "sh", "-c", "exit 9") == (
        9,
        [
            "flatout: attempt 1 failed: the command ended with code 9 and said no more",
            "flatout: restart 1 of 3",
            "flatout: attempt 2 failed: the command ended with code 9 and said no more",
            "flatout: the same failure for the second time, before a rank was seen, is the job's own: "
            "not started again",
        ],
    )
