"""What a later start of a job takes from its ledger, and that it takes nothing of another job."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from flatout.keep.ledger import LedgerFile
from flatout.keep.ledger_merge import own_ledger, read_all
from flatout.keep.previous_runs import JobStart, earlier_of, start_of
from flatout.keep.supervise import Restarts, StepProgress
from flatout.launch.process_identity import start_ticks

SLURM = JobStart(job="slurm-7", number=1)


def run(
    path: Path,
    *,
    job: str | None = "slurm-7",
    start: int | None = 0,
    failures: tuple[dict[str, Any], ...] = (),
    end: dict[str, Any] | None = None,
    node: str = "n1",
    reached: int = 20,
    process: tuple[int, int] | None = None,
) -> None:
    writer = LedgerFile(path)
    writer.write("run", command="train", num_devices=2, gpu=None, node=node, process=process, job=job, start=start)
    writer.write("attempt", attempt=0)
    for number, failure in enumerate(failures):
        writer.write("failure", fault="unknown", says=f"on {node}", **failure)
        writer.write("attempt", attempt=number + 1)
    writer.write("seconds", attempt=0, num_devices=2, ns={"productive": 10}, steps=20, reached=reached, saved=15)
    if end is not None:
        writer.write("end", **end)
    writer.close()


ASKED = {"code": 143, "why": "a signal asked it to end", "goes_on": True}


def test_the_job_is_slurms_then_the_one_that_is_named_then_that_of_the_meeting() -> None:
    assert start_of({"SLURM_JOB_ID": "7", "SLURM_RESTART_COUNT": "2"}, "x") == JobStart(job="slurm-7", number=2)
    assert start_of({"SLURM_JOB_ID": "7"}, None) == JobStart(job="slurm-7", number=0)
    assert start_of({"SLURM_JOB_ID": "7", "FLATOUT_JOB": "mine"}, "x") == JobStart(job="mine", number=None)
    assert start_of({}, "x") == JobStart(job="rdzv-x", number=None)
    assert start_of({}, None) is None


def test_restarts_and_failures_of_earlier_starts_count(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    run(path, failures=({"key": "a", "step": 8, "restarts": True},), end=ASKED)
    earlier = earlier_of(path, SLURM, node="n1")
    assert earlier is not None
    assert (earlier.num_starts, earlier.num_restarts, earlier.farthest, earlier.saved) == (1, 1, 20, 15)
    assert earlier.last_unix_s == pytest.approx(time.time(), abs=5)
    assert Restarts(2, earlier=earlier).num == 1
    assert ("a", 8) in earlier.failures
    assert (StepProgress(earlier).farthest, StepProgress(earlier).saved) == (20, 15)


def test_a_start_that_ended_without_a_word_is_one_restart_and_waiting_for_peers_is_none(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    run(path)  # killed, or its node failed
    waited = {"key": "b", "step": None, "awaits_peers": True}
    run(path, start=1, failures=(waited, waited), end=ASKED)
    earlier = earlier_of(path, JobStart(job="slurm-7", number=2), node="n9")
    assert earlier is not None and (earlier.num_starts, earlier.num_restarts) == (2, 1)


@pytest.mark.parametrize(
    ("start", "written"),
    [
        (SLURM, {"job": "slurm-8"}),  # another job
        (JobStart(job="slurm-7", number=0), {"end": ASKED}),  # a second command in one allocation
        (JobStart(job="slurm-7", number=1), {"start": 1}),
        (JobStart(job="rdzv-x", number=None), {"job": "rdzv-x", "end": {"code": 0, "why": "done", "goes_on": False}}),
        (
            JobStart(job="rdzv-x", number=None),
            {"job": "rdzv-x", "end": {"code": 1, "why": "all 3 restarts are used up"}},
        ),
        (JobStart(job="rdzv-x", number=None), {"job": "rdzv-x", "start": None, "node": "n2"}),  # beside it, in one file
        (JobStart(job="mine", number=None), {"job": "mine", "process": (os.getpid(), start_ticks(os.getpid()))}),
        (None, {"job": None}),
    ],
)
def test_a_run_that_is_no_earlier_start_of_this_job_counts_for_nothing(
    tmp_path: Path, start: JobStart | None, written: dict[str, Any]
) -> None:
    run(tmp_path / "ledger.jsonl", **written)
    assert earlier_of(tmp_path / "ledger.jsonl", start, node="n1") is None


@pytest.mark.parametrize("end", [None, ASKED])
def test_where_nobody_counts_starts_a_run_without_an_end_or_one_that_was_to_go_on_is_continued(
    tmp_path: Path, end: dict[str, Any] | None
) -> None:
    run(tmp_path / "ledger.jsonl", job="rdzv-x", start=None, end=end)
    assert earlier_of(tmp_path / "ledger.jsonl", JobStart(job="rdzv-x", number=None), node="n1") is not None


def test_a_damaged_ledger_and_none_have_no_earlier_start(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    assert earlier_of(path, SLURM, node="n1") is None
    path.write_bytes(b"\xff\x00 no json\n[1]\n{}\n")
    assert earlier_of(path, SLURM, node="n1") is None
    path.unlink()
    run(path)
    with path.open("ab") as file:
        file.write(b'{"event": "seco')
    assert earlier_of(path, SLURM, node="n1") is not None


def test_a_job_that_slurm_put_on_another_node_finds_what_it_left_and_none_else_looks_there(tmp_path: Path) -> None:
    run(own_ledger(tmp_path, "n1"), end=ASKED)
    run(own_ledger(tmp_path, "n3"), job="mine", start=None)
    assert earlier_of(own_ledger(tmp_path, "n2"), SLURM, node="n2") is not None
    assert earlier_of(own_ledger(tmp_path, "n2"), JobStart(job="mine", number=None), node="n2") is None


def test_ledgers_of_nodes_add_devices_and_time_and_those_of_jobs_all(tmp_path: Path) -> None:
    folder = tmp_path / "books"
    folder.mkdir()
    failed = ({"key": "a", "step": 8, "restarts": True},)
    for node in ("n1", "n2"):
        run(own_ledger(folder, node), node=node, failures=failed, end=ASKED)
    both = read_all([folder])
    assert (both.num_nodes, both.num_devices, both.allocated_ns) == (2, 4, 20)
    assert (both.num_runs, both.num_attempts, both.num_failures, both.num_steps) == (1, 2, 1, 20)
    assert both.failures == ("on n1", "on n2")
    other = tmp_path / "other.jsonl"
    run(other, job="slurm-9", end=ASKED)
    all_of = read_all([folder, other])
    assert (all_of.num_runs, all_of.num_attempts, all_of.num_steps, all_of.allocated_ns) == (2, 3, 40, 30)
    assert read_all([other]).num_nodes == 1
