"""The same `flatout run -- torchrun --nnodes 2` on two machines: who tells what, who starts what, and the books.

All jobs begin with the module, a few at a time: most of them wait, for a peer that is gone or for a hang to be one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.keep.conftest import ahead
from tests.keep.test_tuning_check import tuned_file
from tests.nodes import Node, two_nodes_in
from tests.slurm import free_port

from flatout.cli import main

pytestmark = pytest.mark.usefixtures("warm")

ROOT = Path(__file__).parents[2]
JOB = ROOT / "tests" / "jobs" / "keep_job.py"


class Together:
    """The job on both machines, with one folder that both see."""

    def __init__(
        self,
        nodes: tuple[Node, Node],
        folder: Path,
        *job: str,
        launcher: tuple[str, ...] = ("--nnodes=2",),
        options: tuple[str, ...] = ("--max-restarts=3",),
    ) -> None:
        self.nodes, self.folder = nodes, folder
        self.books = folder / "books"
        self.books.mkdir()
        self._launcher, self._options = launcher, options
        self._meeting = f"n1:{free_port()}"
        self._job = job
        for node in nodes:
            self.start(node)

    def start(self, node: Node) -> None:
        checkpoint = ["--resume-arg=--init_from=resume", f"--checkpoint={self.folder / 'out' / 'ckpt.pt'}"]
        kept = [sys.executable, "-m", "flatout", "run", *self._options, f"--ledger={self.books}", *checkpoint]
        launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", "--rdzv-backend=c10d"]
        meeting = [f"--rdzv-endpoint={self._meeting}", "--rdzv-id=job"]
        inherited = {n: v for n, v in os.environ.items() if not n.startswith(("FLATOUT_", "TORCHELASTIC"))}
        node.start(
            [*kept, "--", *launcher, *self._launcher, *meeting, str(JOB), f"--out={self.folder / 'out'}", *self._job],
            {**inherited, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        )

    def wait(self, is_there: Callable[[], Any], timeout_s: float = 150.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_there():
            assert time.monotonic() < deadline, {node.name: node.log.read_text() for node in self.nodes}
            time.sleep(0.1)

    def codes(self) -> list[int | None]:
        return [node.processes[-1].poll() for node in self.nodes]

    def wait_for_the_end(self, timeout_s: float = 150.0) -> None:
        self.wait(lambda: None not in self.codes(), timeout_s)

    def events(self, node: str, name: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in (self.books / f"ledger-{node}.jsonl").read_text().splitlines()]
        return [line for line in lines if line["event"] == name]

    def losses(self) -> list[tuple[int, float]]:
        path = self.folder / "out" / "losses-0.txt"
        rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(int(step), float(loss)) for step, loss in rows]


def to_its_end(*job: str, launcher: tuple[str, ...] = ("--nnodes=2",)) -> Callable[[Path], Together]:
    """Return what runs this job in a folder, on two machines, until `flatout run` has ended on both."""

    def run_in(folder: Path) -> Together:
        with two_nodes_in(folder) as nodes:
            both = Together(nodes, folder, *job, launcher=launcher)
            both.wait_for_the_end()
        return both

    return run_in


def report(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *paths: Path) -> dict[str, Any]:
    monkeypatch.setattr(sys, "argv", ["flatout", "ledger", "--json", *map(str, paths)])
    assert main() == 0
    found = json.loads(capfd.readouterr().out)
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses of the same training on one machine."""
    folder = tmp_path_factory.mktemp("whole")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*launcher, str(JOB), f"--out={folder}"], check=False, capture_output=True, timeout=150)
    rows = [line.split() for line in (folder / "losses-0.txt").read_text().splitlines()]
    assert len(rows) == 40
    return {int(step): float(loss) for step, loss in rows}


@ahead(to_its_end("--fault=kill", "--at=22", "--rank=1", launcher=("--nnodes=2", "--max-restarts=3")))
def test_a_killed_rank_is_told_on_both_nodes_and_both_start_again_once(
    ran: Together,
    uninterrupted: dict[int, float],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torchrun's own restarts would make a third and a fourth attempt of it."""
    job = ran
    n1, n2 = job.nodes
    assert job.codes() == [0, 0]
    for node in job.nodes:
        assert node.said()[0] == (
            "flatout: torchrun's own --max-restarts is 0 instead of 3: Flatout restarts the job, at most 3 times"
        )
        begun = job.events(node.name, "attempt")
        waited = [line for line in job.events(node.name, "failure") if line["awaits_peers"]]
        assert len(begun) - len(waited) == 2
        assert "flatout: restart 1 of 3" in node.said() and "flatout: restart 2 of 3" not in node.said()
    killed = "rank 1 ended without an error message (SIGKILL ended it, after "
    assert any(line.startswith(f"flatout: attempt 1 failed: {killed}") for line in n2.said())
    assert any(f"; on n2: {killed}" in line for line in n1.said())
    assert dict(job.losses()) == uninterrupted
    both = report(capfd, monkeypatch, job.books)
    assert (both["nodes"], both["num_devices"], both["runs"]) == (2, 2, 1)
    each = [report(capfd, monkeypatch, job.books / f"ledger-{name}.jsonl") for name in ("n1", "n2")]
    assert both["allocated_device_s"] == pytest.approx(sum(one["allocated_device_s"] for one in each))
    assert both["steps"] == max(one["steps"] for one in each)
    assert report(capfd, monkeypatch, *sorted(job.books.glob("*.jsonl")))["classes"] == both["classes"]


def losing_a_node(folder: Path, lost: int) -> Together:
    with two_nodes_in(folder) as nodes:
        job = Together(nodes, folder, "--step_s=0.2")
        node, other = nodes[lost], nodes[1 - lost]
        job.wait(lambda: any(step >= 12 for step, _ in job.losses()))
        node.lose()
        job.wait(lambda: any("no status from" in line for line in other.said()), 60)
        assert f"flatout: no status from {node.name} for 15 s: node or network down" in other.said()
        job.start(node)
        job.wait_for_the_end()
    return job


@pytest.mark.parametrize("lost", [0, 1], ids=["the node of the meeting place", "another node"])
@ahead(losing_a_node)
def test_a_node_that_was_lost_comes_back_and_the_job_goes_on(
    ran: Together, uninterrupted: dict[int, float], lost: int
) -> None:
    job = ran
    node, other = job.nodes[lost], job.nodes[1 - lost]
    assert job.codes() == [0, 0]
    assert dict(job.losses()) == uninterrupted
    assert any(line.startswith("flatout: resuming rdzv-job: start 2, step ") for line in node.said())
    assert "flatout: restart 2 of 3" not in other.said(), "one loss, one restart"
    first, second = job.events(node.name, "run")
    assert first["start"] is second["start"] is None and second["away_s"] > 10


@ahead(to_its_end("--fault=data", "--rank=1"))
def test_a_hang_on_one_node_is_told_on_both_with_node_and_rank(ran: Together) -> None:
    job = ran
    n1, n2 = job.nodes
    assert job.codes() == [0, 0]
    (hang,) = job.events("n2", "hang")
    assert hang["late"] == [1] and "in data loading: keep_job.py:" in hang["says"]
    assert hang["unix_s"] - (job.folder / "out" / "fault-data").stat().st_mtime < 30
    assert job.events("n1", "hang") == [], "its own ranks have only waited"
    (failure,) = [line for line in job.events("n1", "failure") if not line["awaits_peers"]]
    assert "; on n2: hang at step 20" in failure["says"]
    assert "rank 1 is in data loading: keep_job.py:" in failure["says"]
    assert "flatout: restart 2 of 3" not in [*n1.said(), *n2.said()]


def judged(node: Node) -> list[str]:
    """What Flatout said on a node, without its last words about the checkpoint."""
    return [line for line in node.said() if not line.startswith("flatout: newest checkpoint")]


@ahead(to_its_end("--fault=raise", "--always", "--at=12", "--rank=1"))
def test_a_bug_on_one_node_ends_the_job_on_both(ran: Together) -> None:
    """Else the other one would wait for torchrun's ten minutes, and again for each restart that is left."""
    job = ran
    n1, n2 = job.nodes
    assert judged(n2)[-1] == (
        "flatout: the same failure at step 13 occurred for the second time, so it is a bug in the job: not restarted"
    )
    assert judged(n1)[-1].startswith(("flatout: n2 does not restart it: the same failure", judged(n2)[-1]))
    assert 0 not in job.codes()


def slower_than_tuned(folder: Path) -> Together:
    """Steps of 100 ms, of which a tuning on two nodes promises that they take a millisecond."""
    config = tuned_file(folder / "tuned.toml", step_s=0.001, num_hosts=2)
    options = ("--config", str(config), "--on-regression=revert")
    with two_nodes_in(folder) as nodes:
        both = Together(nodes, folder, "--steps=180", "--step_s=0.1", options=options)
        both.wait_for_the_end()
    return both


@ahead(slower_than_tuned)
def test_a_job_that_is_slower_than_tuned_goes_back_on_both_nodes_at_once(ran: Together) -> None:
    job = ran
    n1, n2 = job.nodes
    assert job.codes() == [0, 0]
    (check,) = [line for node in ("n1", "n2") for line in job.events(node, "tuning_check")]
    assert (check["outcome"], check["reverts"]) == ("regression", True)
    for node in ("n1", "n2"):
        assert len(job.events(node, "reverted")) == 1
        assert len(job.events(node, "attempt")) == 2
        assert job.events(node, "failure") == []
    followed = [line for line in (*n1.said(), *n2.said()) if "restarts the job without the changes: so does" in line]
    assert len(followed) == 1
    assert not any("restart 1 of" in line for line in (*n1.said(), *n2.said()))
    losses: dict[int, set[float]] = {}
    for step, loss in job.losses():
        losses.setdefault(step, set()).add(loss)
    assert sorted(losses) == list(range(180))
    assert all(len(values) == 1 for values in losses.values()), "steps that were made again have the same losses"
    assert len(job.losses()) - 180 < 30, "it goes back soon after a checkpoint"


ELASTIC = ("--nnodes=1:2", "--rdzv-conf=last_call_timeout=15")


@ahead(to_its_end("--fault=kill", "--always", "--at=12", "--rank=1", launcher=ELASTIC))
def test_a_node_that_fails_again_is_left_out_of_an_elastic_job(ran: Together) -> None:
    job = ran
    n1, n2 = job.nodes
    assert job.codes()[0] == 0 and job.codes()[1] != 0
    assert judged(n2)[-1].endswith("for the second time, so it is a bug in the job: not restarted")
    assert judged(n1)[-1] == "flatout: restart 2 of 3"
    assert {step for step, _ in job.losses()} == set(range(40))
    last = job.events("n1", "attempt")[-1]["unix_s"]
    alone = [line["num_devices"] for line in job.events("n1", "seconds") if line["unix_s"] > last]
    assert set(alone) == {1}
