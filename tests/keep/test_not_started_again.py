"""Failures that would come again: named in one line as the cause, and not started again, whatever the budget."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import flatout as package

pytestmark = pytest.mark.usefixtures("warm")

SOURCE = str(Path(package.__file__).parents[1])
LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
TOO_EARLY = (
    "flatout: attempt 1 failed: before `import torch`, or without importing it, rank {} raised {} "
    "(a fault in the job itself)"
)
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
        ("./train.py", 126, "a program in it is not executable"),
    ],
)
def test_a_command_that_a_shell_refuses(tmp_path: Path, command: str, code: int, why: str) -> None:
    script(tmp_path, "")
    assert run(tmp_path, "sh", "-c", command) == (
        code,
        [
            f"flatout: attempt 1 failed: the command ended with code {code} before the first step: {why} "
            "(a fault in the job itself)",
            "flatout: a restart would not help (usage)",
        ],
    )


@pytest.mark.parametrize("text", [PARSED, PARSED.replace(", torch", "") + "import torch\n"], ids=["torch", "before"])
def test_arguments_that_the_script_refuses_below_a_launcher_that_tells_of_code_1_alone(
    tmp_path: Path, text: str
) -> None:
    code, said = run(tmp_path, *LAUNCHER, script(tmp_path, text), "--stepz=3")
    assert code == 1
    assert said == [
        "flatout: attempt 1 failed: the script rejects its arguments: train.py: unrecognized arguments: --stepz=3 "
        "(a fault in the job itself)",
        "flatout: a restart would not help (arguments)",
    ]


@pytest.mark.parametrize(
    ("text", "raised", "rule"),
    [
        ("import os\nx = = 1\nimport torch\n", "SyntaxError at train.py:2: invalid syntax", "import"),
        ("import no_such\nimport torch\n", "ModuleNotFoundError at train.py:1: No module named 'no_such'", "import"),
        ("steps = int('x')\n", "ValueError at train.py:1: invalid literal for int() with base 10: 'x'", "mistake"),
        (None, "FileNotFoundError: [Errno 2] No such file or directory: 'train.py'", "mistake"),
    ],
)
def test_a_script_that_fails_before_torch_is_told_by_its_own_line(
    tmp_path: Path, text: str | None, raised: str, rule: str
) -> None:
    train = script(tmp_path, text) if text is not None else "train.py"
    code, said = run(tmp_path, sys.executable, train)
    assert code == (1 if text is not None else 2)
    assert said == [TOO_EARLY.format(0, raised), f"flatout: a restart would not help ({rule})"]


def test_the_same_below_a_launcher_that_tells_of_code_1_alone(tmp_path: Path) -> None:
    code, said = run(tmp_path, *LAUNCHER, script(tmp_path, "import no_such\nimport torch\n"))
    assert code == 1
    raised = "ModuleNotFoundError at train.py:1: No module named 'no_such'"
    assert said[0] in [TOO_EARLY.format(rank, raised) for rank in range(2)]
    assert said[1:] == ["flatout: a restart would not help (import)"]


LATE = """\
import os, time
if os.environ["RANK"] == "1":
    while not os.path.exists("up"):
        time.sleep(0.1)
    time.sleep(2)
    import no_such
import torch.distributed
open("up", "w").close()
torch.distributed.init_process_group("gloo")
"""


def test_a_rank_that_fails_before_torch_is_the_cause_where_another_one_waits_for_it(tmp_path: Path) -> None:
    code, said = run(tmp_path, *LAUNCHER, script(tmp_path, LATE))
    assert code == 1
    raised = "ModuleNotFoundError at train.py:6: No module named 'no_such'"
    assert said == [TOO_EARLY.format(1, raised), "flatout: a restart would not help (import)"]


def test_what_may_pass_is_started_again_once_before_torch(tmp_path: Path) -> None:
    code, said = run(tmp_path, sys.executable, script(tmp_path, "raise OSError('stale file handle')\n"))
    assert code == 1
    assert [line.removeprefix("flatout: ") for line in said] == [
        "attempt 1 failed: rank 0 raised OSError at train.py:1: stale file handle (a fault in the job itself)",
        "restart 1 of 3",
        "attempt 2 failed: rank 0 raised OSError at train.py:1: stale file handle (a fault in the job itself)",
        "the same failure occurred twice before any rank started, so it is a bug in the job: not restarted",
    ]


PYTHON = f"{sys.executable} train.py"


@pytest.mark.parametrize(
    ("imports", "command"),
    [("", ["sh", "-c", f"{PYTHON}; exit $?"]), ("import torch\n", PYTHON.split()), ("", [*LAUNCHER, "train.py"])],
    ids=["shell", "torch", "launcher"],
)
def test_the_text_that_a_script_ends_with_is_the_reason(tmp_path: Path, imports: str, command: list[str]) -> None:
    """Without `RANK` in its environment, too: what no launcher has numbered is rank 0."""
    script(tmp_path, f"{imports}raise SystemExit('no data at /data')\n")
    code, said = run(tmp_path, *command)
    assert code == 1
    ranks = range(2 if "--standalone" in command else 1)
    assert said[0] in [
        f"flatout: attempt 1 failed: rank {rank} ended itself: no data at /data (a fault in the job itself)"
        for rank in ranks
    ]
    assert said[-1].startswith("flatout: the same failure occurred twice")


def test_a_program_before_the_script_that_fails_and_is_done_without_is_not_what_failed(tmp_path: Path) -> None:
    code, said = run(tmp_path, "sh", "-c", f"{sys.executable} -c 'import no_such'; exit 9")
    assert code == 9
    assert said[0] == "flatout: attempt 1 failed: the command ended with code 9 without an error message"


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
        "flatout: attempt 1 failed: its checkpoints belong to another job: rank 0 raised LockedError at train.py:5: "
        f"ckpt is written to by another job: process {other.pid} on "
    )
    assert decision == "flatout: a restart would not help (locked)"


def test_checkpoints_of_another_training_are_the_cause_and_are_not_tried_again(tmp_path: Path) -> None:
    train = script(tmp_path, CHECKPOINTED)
    assert run(tmp_path, sys.executable, train) == (0, [f"flatout: newest checkpoint in {tmp_path / 'ckpt'}: step 3"])
    code, said = run(tmp_path, sys.executable, train, "new")
    assert code == 1
    assert "ckpt has checkpoints up to step 3, and resume() was not called" in said[0]
    assert said[1].startswith("flatout: a restart would not help")


def test_what_may_not_be_written_is_not_tried_again(tmp_path: Path) -> None:
    """Not by root either; which of the two errors it is, depends on how /proc is mounted."""
    text = "import torch\nopen('/proc/sys/kernel/osrelease', 'wb')\n"
    code, said = run(tmp_path, sys.executable, script(tmp_path, text))
    assert code == 1
    assert said[0].startswith("flatout: attempt 1 failed: a file cannot be read or written: rank 0 raised ")
    assert "at train.py:2: [Errno " in said[0]
    assert said[1:] == ["flatout: a restart would not help (unwritable)"]


def test_a_command_that_twice_fails_at_its_start_and_tells_a_code_alone(tmp_path: Path) -> None:
    assert run(tmp_path, "sh", "-c", "exit 9") == (
        9,
        [
            "flatout: attempt 1 failed: the command ended with code 9 without an error message",
            "flatout: restart 1 of 3",
            "flatout: attempt 2 failed: the command ended with code 9 without an error message",
            "flatout: the same failure occurred twice before any rank started, so it is a bug in the job: "
            "not restarted",
        ],
    )
