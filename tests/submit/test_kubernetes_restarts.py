"""Who starts a kept job again on Kubernetes: the container's command as a kubelet runs it, and the Job's policy."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from flatout.cli import main

pytestmark = pytest.mark.usefixtures("warm")

SOURCE = str(Path(__file__).parents[2] / "src")
# Ends as the test says, the first time; a later one is told by its flag to resume.
SCRIPT = """\
import os, sys, torch
print(sys.argv[1:], flush=True)
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.Adam([weight])
for step in range(3):
    weight.sum().backward()
    optimizer.step()
torch.save({"step": 3}, "ckpt.pt")
fate = sys.argv[1]
if "--resume" not in sys.argv and fate != "done":
    if fate == "machine":
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
    if fate == "crash":
        os.kill(os.getpid(), 9)
if fate == "bug":
    raise ValueError("a bad batch")
"""


def job_of(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *options: str, command: tuple[str, ...]
) -> dict[str, Any]:
    monkeypatch.setattr(
        sys, "argv", ["flatout", "submit", "--json", "--to", "kubernetes", "--image", "i", *options, "--", *command]
    )
    assert main() == 0
    (file,) = json.loads(capfd.readouterr().out)["files"]
    manifest = yaml.safe_load(Path(file).read_text())
    found: dict[str, Any] = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
    return found


class Pod:
    """Runs the container's command with its variables, as Kubernetes fills them in."""

    def __init__(self, job: dict[str, Any], folder: Path, *, job_uid: str = "uid-1") -> None:
        (self._container,) = job["template"]["spec"]["containers"]
        self._folder = folder
        labels = {"batch.kubernetes.io/controller-uid": job_uid, "batch.kubernetes.io/job-completion-index": "0"}
        self.variables = {}
        for each in self._container.get("env", []):
            path = each["valueFrom"]["fieldRef"]["fieldPath"]
            label = re.fullmatch(r"metadata\.labels\['([^']+)'\]", path)
            assert label is not None, path
            self.variables[each["name"]] = labels[label[1]]

    def run(self) -> subprocess.CompletedProcess[str]:
        programs = self._folder / "bin"
        programs.mkdir(exist_ok=True)
        (programs / "flatout").write_text(f'#!/bin/sh\nexec {sys.executable} -m flatout "$@"\n')
        (programs / "flatout").chmod(0o755)
        inherited = {n: v for n, v in os.environ.items() if not n.startswith(("FLATOUT_", "SLURM_"))}
        return subprocess.run(
            self._container["command"],
            env={**inherited, **self.variables, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": SOURCE},
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


def action(job: dict[str, Any], code: int, *, is_disrupted: bool = False) -> str:
    """What the Job controller does with a failed pod, as documented: the first rule that fits, else Count."""
    for rule in job["podFailurePolicy"]["rules"]:
        if "onPodConditions" in rule:
            fits = is_disrupted and {"type": "DisruptionTarget", "status": "True"} in rule["onPodConditions"]
        else:
            asked = rule["onExitCodes"]
            fits = (code in asked["values"]) == (asked["operator"] == "In")
        if fits:
            return str(rule["action"])
    return "Count"


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "books").mkdir()
    (tmp_path / "train.py").write_text(SCRIPT)
    return (
        "--max-restarts", "2", "--ledger", "books", "--checkpoint", "ckpt.pt", "--resume-arg=--resume", "--gpus", "1",
    )  # fmt: skip


def events(folder: Path) -> list[dict[str, Any]]:
    (path,) = (folder / "books").glob("*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_policy_is_one_that_kubernetes_takes(
    kept: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    job = job_of(monkeypatch, capfd, *kept, "--nodes", "2", command=("torchrun", "--nproc-per-node", "1", "train.py"))
    assert job["template"]["spec"]["restartPolicy"] == "Never", "else it has no podFailurePolicy"
    (container,) = job["template"]["spec"]["containers"]
    assert job["backoffLimit"] == 2
    for rule in job["podFailurePolicy"]["rules"]:
        assert rule["action"] in ("FailJob", "Ignore", "Count", "FailIndex")
        assert ("onExitCodes" in rule) != ("onPodConditions" in rule)
        if "onExitCodes" in rule:
            asked = rule["onExitCodes"]
            assert asked["containerName"] == container["name"] and asked["operator"] in ("In", "NotIn")
            assert asked["values"] == sorted(set(asked["values"])) and asked["values"]
            assert asked["operator"] == "NotIn" or 0 not in asked["values"]
    words = container["command"]
    assert words[:2] == ["flatout", "run"] and words.count("--max-restarts") == 1
    assert words[words.index("--gpus") + 1] == "1", "a pod's own, as each has its ledger"
    assert words.index("--") < words.index("torchrun") < words.index("--node-rank=$(JOB_COMPLETION_INDEX)")


def test_a_job_that_is_not_kept_is_never_started_again(
    kept: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    job = job_of(monkeypatch, capfd, command=("python", "train.py"))
    assert job["backoffLimit"] == 0 and "podFailurePolicy" not in job


def test_a_bug_ends_the_job_after_two_attempts_and_not_after_all_restarts_of_all_pods(
    kept: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    job = job_of(monkeypatch, capfd, *kept, command=(sys.executable, "train.py", "bug"))
    done = Pod(job, tmp_path).run()
    assert done.returncode == 1, done.stderr
    assert action(job, done.returncode) == "FailJob"
    assert sum(line["event"] == "attempt" for line in events(tmp_path)) == 2


def test_a_fault_of_the_machine_is_told_by_the_code_and_another_pod_goes_on(
    kept: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    job = job_of(monkeypatch, capfd, *kept, command=(sys.executable, "train.py", "machine"))
    first = Pod(job, tmp_path).run()
    assert first.returncode == 75, first.stderr
    assert "the machine is at fault: exit code 75 asks the scheduler for another machine" in first.stderr
    assert action(job, first.returncode) == "Count", "a new pod, as often as backoffLimit says"
    second = Pod(job, tmp_path).run()
    assert second.returncode == 0, second.stderr
    assert "flatout: resuming uid-1: start 2, step 3 reached, 0 of 2 restarts used" in second.stderr
    assert second.stdout == "['machine', '--resume']\n"
    another_job = Pod(job, tmp_path, job_uid="uid-2").run()
    assert another_job.stdout.startswith("['machine']\n"), "it has nothing to do with the one before"


def test_a_crash_is_started_again_in_its_pod_and_a_pod_that_was_taken_away_is_not_counted(
    kept: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    job = job_of(monkeypatch, capfd, *kept, command=(sys.executable, "train.py", "crash"))
    done = Pod(job, tmp_path).run()
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['crash']\n['crash', '--resume']\n"
    assert action(job, 143, is_disrupted=True) == "Ignore"
    assert action(job, 143) == action(job, 137) == "FailJob"


def test_a_kept_entrypoint_of_ray_is_one_flatout_run(
    kept: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ray starts an entrypoint once: the budget is that of `flatout run` alone."""
    monkeypatch.setattr(
        sys, "argv",
        ["flatout", "submit", "--json", "--dry-run", "--to", "ray", *kept, "--", sys.executable, "train.py", "crash"],
    )  # fmt: skip
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:9")
    assert main() == 0
    found = json.loads(capfd.readouterr().out)
    assert found["queued"].startswith("flatout run --max-restarts 2 ") and found["queued"].count("flatout run") == 1
