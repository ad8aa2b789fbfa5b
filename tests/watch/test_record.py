"""A trace of a running job: all ranks trace the same steps, and a rank that cannot says why."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import msgspec
import pytest
import torch
from tests.keep.beating import Clock, Rank
from torch.autograd import profiler as autograd_profiler

from flatout.errors import InputError, OutputError
from flatout.inside.liveness import heartbeat
from flatout.inside.liveness.asked_trace import AskedTrace
from flatout.records.watch import RecordingProgress
from flatout.report.watch_text import recording_progress
from flatout.watch.jobs import RunningJob
from flatout.watch.record import first_traced_step, record_steps

S = 10**9


def job_in(folder: Path) -> RunningJob:
    return RunningJob(program="flatout run", name="train.py", pid=7, folder=folder, pids=(8,))


@pytest.mark.parametrize(("step_s", "ahead"), [(0.1, 28), (2.5, 4), (60.0, 4), (0.0, 100_003)])
def test_the_first_step_is_far_enough_ahead_for_all_ranks_to_see_the_request(step_s: float, ahead: int) -> None:
    assert first_traced_step(1000, step_s) == 1000 + ahead


def test_a_rank_traces_the_steps_of_the_request_and_no_others(tmp_path: Path) -> None:
    asked = AskedTrace(tmp_path)
    asked.look(5, 3)
    assert not asked.is_active
    request = {"first_step": 8, "num_steps": 2, "folder": str(tmp_path)}
    (tmp_path / "trace-request").write_text(json.dumps(request))
    for step in range(5, 13):
        torch.ones(2).add(1)
        if asked.is_active:
            asked.stepped(step)
        asked.look(step, 3)
    events = json.loads((tmp_path / "rank3.json").read_text())["traceEvents"]
    marks = {event["name"] for event in events if str(event.get("name")).startswith("ProfilerStep#")}
    assert marks == {"ProfilerStep#8", "ProfilerStep#9"}
    assert not asked.is_active and not (tmp_path / "failed-rank3").exists()


def test_a_process_that_ends_while_it_is_traced_ends_the_trace_and_keeps_complete_steps(tmp_path: Path) -> None:
    """torch crashed at its end under a running profiler: a job whose work was done had failed with SIGSEGV."""
    heart = heartbeat._Heart(tmp_path)
    request = {"first_step": 8, "num_steps": 50, "folder": str(tmp_path)}
    (tmp_path / "trace-request").write_text(json.dumps(request))
    heart.asked_trace.look(5, 0)
    for step in range(5, 10):
        torch.ones(2).add(1)
        heart.asked_trace.stepped(step)
    assert autograd_profiler._is_profiler_enabled
    heart._ends()
    assert not autograd_profiler._is_profiler_enabled
    events = json.loads((tmp_path / "rank0.json").read_text())["traceEvents"]
    marks = {event["name"] for event in events if str(event.get("name")).startswith("ProfilerStep#")}
    assert marks == {"ProfilerStep#8", "ProfilerStep#9"}


def test_a_rank_that_is_past_the_first_step_says_so_and_traces_nothing(tmp_path: Path) -> None:
    asked = AskedTrace(tmp_path)
    request = {"first_step": 8, "num_steps": 2, "folder": str(tmp_path)}
    (tmp_path / "trace-request").write_text(json.dumps(request))
    asked.look(7, 0)
    assert not asked.is_active and "too late" in (tmp_path / "failed-rank0").read_text()


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    clock = Clock(time.monotonic_ns() - 60 * S)
    for number in range(2):
        rank = Rank(tmp_path / "attempt-0", number, 2, clock, monkeypatch)
        for _ in range(10):
            rank.spends("compute", S // 10)
            rank.steps()
    return tmp_path


def test_the_ranks_of_a_run_are_asked_and_awaited(state: Path) -> None:
    folder = state / "out"

    def answer(_: float) -> None:
        request = json.loads((state / "attempt-0" / "trace-request").read_text())
        assert request == {"first_step": 10 + 28, "num_steps": 5, "folder": str(folder)}
        (folder / "rank0.json").write_text("{}")
        (folder / "failed-rank1").write_text("the script runs torch.profiler itself")

    recorded = record_steps(job_in(state), 5, folder, sleep=answer)
    assert recorded.ranks == (0,) and recorded.problems == {1: "the script runs torch.profiler itself"}
    with pytest.raises(OutputError, match="already exists"):
        record_steps(job_in(state), 5, folder)


def test_a_recording_says_what_it_waits_for(state: Path) -> None:
    folder, said = state / "out", []

    def answer(_: float) -> None:
        (folder / f"rank{len(said) - 1}.json").write_text("{}")

    record_steps(
        job_in(state), 5, folder, show=lambda progress: said.append(recording_progress(progress)), sleep=answer
    )
    assert said == ["steps 38 to 42 will be traced; the job is at 10"] * 2
    asked = RecordingProgress(step=36, first_step=38, num_steps=5, num_traced=0, num_ranks=2)
    sentences = {
        36: "steps 38 to 42 will be traced; the job is at 36",
        37: "tracing steps 38 to 42; the job is at 37",
        41: "tracing steps 38 to 42; the job is at 41",
        42: "writing the traces: 0 of 2 ranks",
    }
    for step, sentence in sentences.items():
        assert recording_progress(msgspec.structs.replace(asked, step=step)) == sentence


def test_a_job_that_ends_is_not_waited_for(state: Path) -> None:
    folder, num_looks = state / "out", 0

    def job_ends(_: float) -> None:
        nonlocal num_looks
        num_looks += 1
        (folder / "rank0.json").write_text("{}")
        shutil.rmtree(state / "attempt-0", ignore_errors=True)

    recorded = record_steps(job_in(state), 5, folder, sleep=job_ends)
    assert num_looks == 1 and recorded.ranks == (0,)
    assert recorded.problems == {1: "it ended before the traced steps did"}


def test_a_job_that_cannot_be_asked_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has made two steps"):
        record_steps(job_in(tmp_path), 5, tmp_path / "out")
    profile = msgspec.structs.replace(job_in(tmp_path), program="flatout profile")
    with pytest.raises(InputError, match="records its own steps"):
        record_steps(profile, 5, tmp_path / "out")
