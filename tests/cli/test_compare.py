"""`flatout compare` as a user runs it: what is refused, and a comparison of two commits of a job."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import flatout as package
from flatout.cli.gate import gate_code

pytestmark = pytest.mark.usefixtures("warm")

# A job that is slower by as much as `SLEEP_S` says, which the two commits set differently.
JOB = """
import time
import torch
SLEEP_S = {sleep_s}
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.DataLoader(list(torch.ones(4000, 8)), batch_size=4)
for batch in data:
    time.sleep(SLEEP_S)
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""


def flatout(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flatout", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1]), "OMP_NUM_THREADS": "1"},
    )


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@x", "-c", "commit.gpgsign=false"]
    words = ["git", *identity, *arguments]
    return subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True).stdout


MARK = "import pathlib; pathlib.Path('started').touch()"
SAME = shlex.join([sys.executable, "-c", MARK])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "two commands or two recordings are needed"),
        (["--a", SAME], "`--b` is missing, and there is no command after `--`"),
        (["--a", SAME, "--b", ""], "`--b` must be a command, but is empty"),
        (["--a", SAME, "--b", SAME, "--gate", "much"], "`--gate` must be a number from 0 to 1,000, but is `much`"),
        (["--a", SAME, "--b", SAME, "--gate", "-1%"], "`--gate` must be a number from 0 to 1,000, but is `-1%`"),
        (["--a", SAME, "--b", SAME, "--undecided", "maybe"], "`--undecided` must be fail or pass, but is `maybe`"),
        (
            ["--a", SAME, "--b", SAME, "--objective", "loss"],
            "`--objective` must be one of samples/s, tokens/s",
        ),
        (["--a-ref", "main", "--b", SAME, "--a", SAME], "{folder} is not in a git repository, so it has no refs"),
        (["nowhere", "before"], "two recordings or two commands are needed, but there is no nowhere"),
    ],
)
def test_arguments_that_are_refused_before_anything_is_started(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = flatout("compare", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {message.replace('{folder}', str(tmp_path))}")
    assert not list(tmp_path.iterdir())


def test_a_command_that_fails_in_one_arm_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(JOB.format(sleep_s=0))
    fails = shlex.join([sys.executable, "-c", "raise ValueError('no data')"])
    options = ["--steps", "5", "--out", "out", "--profiles", "0"]
    done = flatout("compare", "--a", f"{sys.executable} train.py", "--b", fails, *options, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-2:] == [
        "error: B's command fails, and A's command does not: exit code 1: rank 0: ValueError: no data",
        f"hint: its output is in {tmp_path}/out/b/runs/trial-000/output.log",
    ]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out", "train.py"]


def test_two_commits_of_a_job(tmp_path: Path) -> None:
    """B's commit sleeps 40 ms a step: it fails the gate, and leaves the repository and its folder as they were."""
    repository = tmp_path / "repository"
    repository.mkdir()
    git(repository, "init", "-q", "-b", "main")
    for sleep_s, tag in ((0.002, "fast"), (0.04, "slow")):
        (repository / "train.py").write_text(JOB.format(sleep_s=sleep_s))
        git(repository, "add", ".")
        git(repository, "commit", "-qm", tag)
        git(repository, "tag", tag)
    (repository / "train.py").write_text("raise SystemExit('neither commit')")
    options = ["--gate", "3%", "--steps", "8", "--warmup", "3", "--trials", "8", "--profiles", "1", "--json"]
    refs = ["--a-ref", "fast", "--b-ref", "slow", "--out", str(tmp_path / "out")]
    command = ["compare", *refs, *options, "--", sys.executable, "train.py"]
    done = flatout(*command, cwd=repository)
    assert done.returncode == 1, done.stderr
    assert "1 file has changes that are not committed: they are not in A (fast) nor in B (slow)" in done.stderr
    result = json.loads(done.stdout)
    assert (result["schema"], result["version"]) == ("flatout/comparison", 1)
    assert (result["verdict"]["verdict"], result["gate"]["outcome"]) == ("worse", "failed")
    assert result["gate"]["slowdown"][0] > 0.03
    assert [result[arm]["ref"] for arm in ("a", "b")] == ["fast", "slow"]
    assert result["b"]["commit"] == git(repository, "rev-parse", "slow").strip()
    assert result["cause"] == "rest_of_step" or result["cause"] == "host_launch"
    assert result["training"]["is_passed"], result["training"]
    assert json.loads((tmp_path / "out" / "comparison.json").read_text())["gate"] == result["gate"]
    assert git(repository, "worktree", "list").count("\n") == 1
    assert not (tmp_path / "out" / "trees").exists()
    assert [file.name for file in repository.iterdir() if file.name != ".git"] == ["train.py"]

    # The same command takes all trials from the journals, and ends with the same verdict.
    again = flatout(*command, cwd=repository)
    assert again.returncode == 1, again.stderr
    resumed = json.loads(again.stdout)
    assert (resumed["num_resumed"], resumed["verdict"]) == (result["num_trials"], result["verdict"])
    other = flatout(*[word.replace("slow", "fast") for word in command], cwd=repository)
    assert other.returncode == 2
    assert "A and B are the same command of commit" in other.stderr
    assert "is the journal of another tuning run, with other --commit" in other.stderr


@pytest.mark.parametrize(
    ("outcome", "undecided", "code"),
    [
        ("passed", "fail", 0),
        ("failed", "fail", 1),
        ("failed", "pass", 1),
        ("undecided", "fail", 3),
        ("undecided", "pass", 0),
        (None, "fail", 0),
    ],
)
def test_the_exit_code_of_the_gate(outcome: str | None, undecided: str, code: int) -> None:
    assert gate_code(outcome, undecided) == code  # type: ignore[arg-type]
