"""`flatout run` in a batch job of a real Slurm that is preempted, or whose node fails: one job over all its starts."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.slurm import NEEDED, SlurmLab

from flatout.cli import main

pytestmark = pytest.mark.usefixtures("warm")

ROOT = Path(__file__).parents[2]
JOB = ROOT / "tests" / "jobs" / "checkpointed_job.py"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmLab]:
    """With Slurm's own half minute between SIGTERM and SIGKILL."""
    missing = [name for name in NEEDED if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if missing:
        pytest.skip(f"Slurm is not installed: {', '.join(missing)}")
    with SlurmLab(tmp_path_factory.mktemp("slurm"), num_nodes=1, settings="KillWait=30\n", interval_s=1) as found:
        yield found
        found.cancel_all()


class Queued:
    """A batch job that keeps a training of two ranks alive."""

    def __init__(
        self, lab: SlurmLab, folder: Path, *job: str, before: Sequence[str] = (), options: Sequence[str] = ()
    ) -> None:
        self._lab, self.folder = lab, folder
        self.ledger = folder / "ledger.jsonl"
        kept = [lab.python, "-m", "flatout", "run", "--max-restarts=2", f"--ledger={self.ledger}"]
        python = lab.python if before else sys.executable  # what Slurm starts, and what `flatout run` itself does
        launcher = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        words = shlex.join([*kept, "--", *before, *launcher, str(JOB), str(folder), *job])
        script = folder / "job.sbatch"
        script.write_text(f"#!/bin/sh\n{words}\ncode=$?\necho $code > {folder}/code\nexit $code\n")
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
        self.number = lab.run(
            "sbatch", "--parsable", "--requeue", "--exclusive", "--open-mode=append", f"--output={folder}/output",
            *options, str(script), env=environment,
        ).strip()  # fmt: skip

    def wait(self, is_there: Callable[[], Any], timeout_s: float = 150.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_there():
            assert time.monotonic() < deadline, self.output() + self._lab.run("squeue")
            time.sleep(0.1)

    def output(self) -> str:
        path = self.folder / "output"
        return path.read_text(errors="replace") if path.exists() else ""

    def steps(self) -> list[int]:
        path = self.folder / "steps.txt"
        return [int(line.split()[0]) for line in path.read_text().splitlines()] if path.exists() else []

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.ledger.read_text().splitlines()]

    def runs(self) -> list[list[dict[str, Any]]]:
        found: list[list[dict[str, Any]]] = []
        for line in self.lines():
            if line["event"] == "run":
                found.append([])
            found[-1].append(line)
        return found


def seconds(run: list[dict[str, Any]]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for line in run:
        if line["event"] == "seconds":
            for name, value in line["ns"].items():
                totals[name] = totals.get(name, 0) + value
    return totals


def test_a_preempted_job_loses_no_step_and_its_restarts_are_counted_over_both_starts(
    lab: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # A checkpoint is due every 40 steps: without the one that is made on the signal, those since would be made again.
    job = Queued(lab, tmp_path, "--steps=80", "--every=40", "--kill=8:1", "--kill=69:0", "--step_s=0.1")
    job.wait(lambda: 10 in job.steps())
    lab.run("sbatch", "--partition=high", "--exclusive", "--output=/dev/null", "--wrap=true")
    job.wait(lambda: (tmp_path / "code").exists())
    first, second = job.runs()
    assert [run[0]["job"] for run in (first, second)] == [f"slurm-{job.number}"] * 2
    assert [run[0]["start"] for run in (first, second)] == [0, 1]
    assert (tmp_path / "code").read_text() == "0\n"

    # The first start: a failure, a restart, and its end by the scheduler.
    assert [line["event"] for line in first if line["event"] in ("attempt", "failure", "end")] == [
        "attempt", "failure", "attempt", "end",
    ]  # fmt: skip
    assert first[-1]["why"] == "a signal asked it to end"
    steps = job.steps()
    assert steps[:8] == list(range(8)) and steps[8] == 0, "killed at step 8, before any checkpoint"
    assert steps[8:77] == list(range(69)), "the preemption cost no step"

    # The second one goes on, and has one restart left.
    said = job.output()
    stopped = first[-2]["reached"]
    assert f"flatout: resuming slurm-{job.number}: start 2, step {stopped} reached, 1 of 2 restarts used" in said
    assert "flatout: restart 1 of 2" in said and "flatout: restart 2 of 2" in said
    newest = max(40, stopped)  # the preemption may have come late
    assert steps[-1] == 79 and steps[77] == newest, "killed at step 69: back to the newest checkpoint"
    assert second[0]["away_s"] > 0
    spent = seconds(second)
    assert "start_up" not in spent and spent["restart"] > 0, "start-up is that of the first start alone"
    for run in (first, second):
        wall_s = run[-1]["unix_s"] - run[0]["unix_s"]
        assert sum(seconds(run).values()) / 2e9 == pytest.approx(wall_s, abs=0.2)

    # One ledger of both.
    monkeypatch.setattr(sys, "argv", ["flatout", "ledger", "--json", str(job.ledger)])
    assert main() == 0
    report = json.loads(capfd.readouterr().out)
    assert (report["runs"], report["attempts"], report["failures"], report["nodes"]) == (2, 4, 2, 1)
    assert report["away_s"] == pytest.approx(second[0]["unix_s"] - first[-1]["unix_s"], abs=0.1)
    assert report["allocated_device_s"] == pytest.approx(
        sum(sum(seconds(run).values()) for run in (first, second)) / 1e9
    )


def test_a_job_whose_node_failed_goes_on_from_its_last_checkpoint(lab: SlurmLab, tmp_path: Path) -> None:
    job = Queued(lab, tmp_path, "--steps=40", "--step_s=0.1")
    job.wait(lambda: 10 in job.steps())
    lab.run("scontrol", "update", f"nodename={lab.nodes[0]}", "state=down", "reason=test")
    time.sleep(1.0)
    lab.run("scontrol", "update", f"nodename={lab.nodes[0]}", "state=resume")
    job.wait(lambda: (tmp_path / "code").exists() and len(job.runs()) == 2 and job.runs()[1][-1]["event"] == "end")
    second = job.runs()[1]
    assert second[0]["start"] == 1 and second[-1]["code"] == 0
    assert f"flatout: resuming slurm-{job.number}: start 2" in job.output()
    assert set(job.steps()) == set(range(40))
    assert "start_up" not in seconds(second)


def test_a_node_that_fails_twice_is_exchanged_for_a_spare_one_of_the_allocation(
    slurm: SlurmLab, tmp_path: Path
) -> None:
    if not slurm.has_hostnames:
        pytest.skip("the nodes have one host name")
    taken = ("srun", "--nodes=1", "--ntasks=1", "--kill-on-bad-exit=1")
    options = ("--nodes=2", "--ntasks-per-node=1")
    job = Queued(slurm, tmp_path, "--steps=40", "--kill=8:1", "--kill=18:0", before=taken, options=options)
    job.wait(lambda: (tmp_path / "code").exists())
    assert (tmp_path / "code").read_text() == "0\n", job.output()
    hosts = [line.split()[2] for line in (tmp_path / "steps.txt").read_text().splitlines()]
    first, second = slurm.nodes
    assert list(dict.fromkeys(hosts)) == [first, second] and hosts.index(second) >= 18
    assert f"flatout: {first} is excluded: it failed twice in a row" in job.output()
