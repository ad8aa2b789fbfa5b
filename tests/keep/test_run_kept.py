"""`flatout run` on two gloo ranks: a failure is reported with its rank and place, and the job is restarted, or not.

Most of these jobs wait: for a hang to be one, for a slow evaluation. Those begin with the module, a few at a time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.keep.conftest import ahead

import flatout as package

pytestmark = pytest.mark.usefixtures("warm")

JOB = Path(__file__).parents[1] / "jobs" / "keep_job.py"
SOURCE = str(Path(package.__file__).parents[1])
RESUMES = ("--resume-arg=--init_from=resume", "--checkpoint=out/ckpt.pt")

Ran = tuple[Path, subprocess.CompletedProcess[str], list[dict[str, Any]]]


def kept(options: list[str], *job: str) -> Callable[..., Ran]:
    """Return what runs this job in a folder. A parameter of the test may be in the job's words."""

    def run_in(folder: Path, **parameters: str) -> Ran:
        return (folder, *run(folder, options, *(word.format(**parameters) for word in job)))

    return run_in


def run(
    tmp_path: Path, options: list[str], *job: str, ranks: int = 2
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, Any]]]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FLATOUT_", "TORCHELASTIC"))}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    kept = [sys.executable, "-m", "flatout", "run", "--ledger", str(tmp_path / "ledger.jsonl"), *options]
    done = subprocess.run(
        [*kept, "--", *launcher, str(JOB), f"--out={tmp_path / 'out'}", *job],
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
        cwd=tmp_path,
        env={**inherited, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", "TORCH_FR_BUFFER_SIZE": "200"},
    )
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    return done, lines


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("flatout: ")]


def losses(tmp_path: Path, rank: int = 0) -> list[tuple[int, float]]:
    rows = [line.split() for line in (tmp_path / "out" / f"losses-{rank}.txt").read_text().splitlines()]
    return [(int(step), float(loss)) for step, loss in rows]


def events(lines: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["event"] == name]


def assert_sums(lines: list[dict[str, Any]], num_devices: int = 2) -> dict[str, int]:
    """All classes together are the time from the run's beginning to its end, of each device."""
    totals: dict[str, int] = {}
    for line in events(lines, "seconds"):
        for name, value in line["ns"].items():
            totals[name] = totals.get(name, 0) + value
    wall_s = events(lines, "end")[-1]["unix_s"] - events(lines, "run")[0]["unix_s"]
    assert sum(totals.values()) / 1e9 / num_devices == pytest.approx(wall_s, abs=0.1)
    return totals


@ahead(kept(["--max-restarts=2", *RESUMES], "--fault=data"))
def test_a_hang_in_one_ranks_data_loading_is_told_with_rank_and_stack_and_ended(ran: Ran) -> None:
    folder, done, lines = ran
    assert done.returncode == 0, done.stderr
    (hang,) = events(lines, "hang")
    assert hang["late"] == [1]
    assert "rank 1 has not arrived: it is in data loading: keep_job.py:" in hang["says"]
    assert "rank 0 waits in collective #" in hang["says"]
    assert "(all_reduce of Float [161]) of the default group" in hang["says"], "by torch's flight recorder"
    assert "in __getitem__" in hang["stacks"]["1"] and "_engine_run_backward" in hang["stacks"]["0"]
    written = (folder / "out" / "fault-data").stat().st_mtime
    assert hang["unix_s"] - written < 30
    assert [step for step, _ in losses(folder)] == list(range(40)), "it went on from its last checkpoint, of step 20"
    totals = assert_sums(lines)
    until = events(lines, "attempt")[1]["unix_s"]  # after a pause of a second
    assert totals["hang"] / 2e9 == pytest.approx(until - written, abs=3)
    assert totals.get("recomputed", 0) == 0, "it hung right after a checkpoint"


@ahead(kept(["--hang-after=auto"], "--fault=late"))
def test_a_hang_in_a_collective_that_one_rank_calls_alone_names_it(ran: Ran) -> None:
    folder, done, lines = ran
    assert done.returncode != 0
    (hang,) = events(lines, "hang")
    assert hang["late"] == [1]
    assert "barrier, keep_job.py:" in hang["says"] and "has not arrived at the same collective" in hang["says"]
    assert "barrier" in hang["stacks"]["1"]
    assert hang["unix_s"] - (folder / "out" / "fault-late").stat().st_mtime < 30
    assert said(done)[-1] == "flatout: no restart requested (--max-restarts)"


@pytest.mark.parametrize("fault", ["evaluation", "checkpoint"])
@ahead(kept(["--hang-after=auto"], "--fault={fault}"))
def test_a_long_evaluation_or_checkpoint_is_no_hang(ran: Ran, fault: str) -> None:
    """Both ranks do nothing that could be seen for 18 s, longer than a step's patience and the looks."""
    _, done, lines = ran
    assert done.returncode == 0, done.stderr
    assert events(lines, "hang") == []
    totals = assert_sums(lines)
    num_ranks = 2 if fault == "evaluation" else 1
    assert totals[fault] / 1e9 == pytest.approx(18 * num_ranks, abs=2)


@ahead(kept(["--max-restarts=1", *RESUMES], "--fault=kill", "--at=22"))
def test_a_killed_rank_is_named_and_the_job_resumes_by_its_own_flag_to_the_same_losses(
    ran: Ran, tmp_path: Path
) -> None:
    run(tmp_path, [])
    folder, done, lines = ran
    assert done.returncode == 0, done.stderr
    (failure,) = events(lines, "failure")
    assert (failure["rule"], failure["step"]) == ("killed", 23)
    assert failure["says"].startswith("rank 1 ended without an error message (SIGKILL ended it, after ")
    uninterrupted = dict(losses(tmp_path))
    assert dict(losses(folder)) == uninterrupted, "the curve goes on as if nothing had been"
    steps = [step for step, _ in losses(folder)]
    again = [step for step in set(steps) if steps.count(step) > 1]
    assert set(again) <= {20, 21, 22}
    totals = assert_sums(lines)
    assert totals["recomputed"] > 0 and totals["restart"] > 0
    assert totals["recomputed"] < totals["productive"]


def test_what_a_killed_launcher_leaves_is_ended_before_the_next_attempt(tmp_path: Path) -> None:
    import psutil

    def ranks() -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or []
            if f"--out={tmp_path / 'out'}" in words and "torch.distributed.run" not in words and "run" not in words:
                found.append(process)
        return found

    seen: list[int] = []

    def kill_launcher() -> None:
        deadline = time.monotonic() + 60
        while not (tmp_path / "out" / "ckpt.pt").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        seen.extend(process.pid for process in ranks())
        ranks()[0].parent().kill()

    killer = threading.Thread(target=kill_launcher)
    killer.start()
    done, lines = run(
        tmp_path,
        ["--max-restarts=1", "--resume-arg=--init_from=resume", f"--checkpoint={tmp_path / 'out' / 'ckpt.pt'}"],
        "--steps=60",
        "--step_s=0.1",
    )
    killer.join()
    assert done.returncode == 0, done.stderr
    (failure,) = events(lines, "failure")
    assert failure["rule"] in ("signal", "killed")
    assert len(seen) == 2 and ranks() == []
    begins = events(lines, "attempt")[1]["unix_s"]
    written = [line.split() for line in (tmp_path / "out" / "times-0.txt").read_text().splitlines()]
    by_first = [float(at) for pid, at in written if int(pid) in seen]
    assert by_first and max(by_first) < begins, "no rank of the first attempt lives beside the second"
    assert dict(losses(tmp_path)).keys() == set(range(60))


@ahead(kept(["--max-restarts=5"], "--fault=raise", "--always", "--steps=25"))
def test_the_same_exception_at_the_same_step_twice_stops(ran: Ran) -> None:
    _, done, lines = ran
    assert done.returncode == 1
    assert len(events(lines, "attempt")) == 2
    order, failure = said(done)[:2]
    assert order.startswith("flatout: the position of the DataLoader over Subset is not saved"), "before the failure"
    assert "rank 1 raised ValueError at keep_job.py:" in failure
    assert "a number of 20 that is too large (a fault in the job itself)" in failure
    assert said(done)[-1] == (
        "flatout: the same failure at step 21 occurred for the second time, so it is a bug in the job: not restarted"
    )
    assert_sums(lines)


@ahead(kept(["--max-restarts=1", *RESUMES], "--fault=kill", "--always", "--at=8", "--rank=0"))
def test_the_budget_ends(ran: Ran) -> None:
    _, done, lines = ran
    assert done.returncode == 1 and len(events(lines, "attempt")) == 2
    assert "flatout: restart 1 of 1" in said(done)


def test_a_mistake_before_the_first_step_is_not_tried_again(tmp_path: Path) -> None:
    program = tmp_path / "typo.py"
    program.write_text("import torch\nimport no_such_module\n")
    done = subprocess.run(
        [sys.executable, "-m", "flatout", "run", "--max-restarts=3", "--", sys.executable, str(program)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert done.returncode == 1
    assert said(done) == [
        "flatout: attempt 1 failed: before the first step rank 0 raised ModuleNotFoundError at typo.py:2: "
        "No module named 'no_such_module' (a fault in the job itself)",
        "flatout: a restart would not help (import)",
    ]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--max-restarts=2", "--", "no-such-command"], "error: the command `no-such-command` was not found"),
        (
            ["--hang-after=soon", "--", "true"],
            "error: `--hang-after` must be auto or off, or must be a duration from 1s",
        ),
        (["--max-restarts=1", "--resume-arg=-r", "--", "true"], "error: `--resume-arg` is added once there is a check"),
        (["--resume-arg=-r", "--checkpoint=c.pt", "--", "true"], "error: `--resume-arg` is added on restarts"),
        (
            ["--ledger=no/such/folder/l.jsonl", "--", "true"],
            "error: no/such/folder/l.jsonl: the ledger cannot be written",
        ),
        (["--checkpoint-folder=/dev/null", "--", "true"], "error: `--checkpoint-folder` must be a folder"),
        (["--recording=no/such", "--", "true"], "error: no/such does not exist"),
        (["--metrics-port=0", "--metrics-address=192.0.2.1", "--", "true"], "error: metrics cannot be served"),
    ],
)
def test_bad_input_is_an_error_of_one_line(tmp_path: Path, options: list[str], what: str) -> None:
    ledger = [] if any("--ledger" in option for option in options) else ["--ledger=l.jsonl"]
    done = subprocess.run(
        [sys.executable, "-m", "flatout", "run", *ledger, *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert done.returncode == 2
    first, *hint = done.stderr.splitlines()
    assert first.startswith(what) and len(hint) <= 1
    if (tmp_path / "l.jsonl").exists():
        assert json.loads((tmp_path / "l.jsonl").read_text().splitlines()[-1])["event"] == "end"


def test_a_full_standard_error_does_not_end_the_watch(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "flatout",
                "run",
                "--max-restarts=1",
                "--ledger=l.jsonl",
                "--",
                "sh",
                "-c",
                "exit 5",
            ],
            stderr=full,
            check=False,
            timeout=60,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": SOURCE},
        )
    lines = [json.loads(line) for line in (tmp_path / "l.jsonl").read_text().splitlines()]
    assert done.returncode == 5 and len(events(lines, "attempt")) == 2 and lines[-1]["event"] == "end"


def test_a_working_folder_that_is_gone_is_an_error_of_one_line(tmp_path: Path) -> None:
    kept = f"{sys.executable} -m flatout run --max-restarts=1 -- true"
    done = subprocess.run(
        ["sh", "-c", f"mkdir gone && cd gone && rmdir ../gone && {kept}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert done.returncode == 2 and "error: the working folder no longer exists" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_signal_of_the_users_is_no_failure(tmp_path: Path) -> None:
    import signal

    process = subprocess.Popen(
        [sys.executable, "-m", "flatout", "run", "--max-restarts=3", "--", "sh", "-c", "echo up; exec sleep 60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == "up\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == -signal.SIGTERM
    assert process.stderr.read() == ""
    process.stdout.close()
    process.stderr.close()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_between_two_attempts_ends_the_run_and_the_ledger(tmp_path: Path, name: str) -> None:
    import signal

    ledger = tmp_path / "ledger.jsonl"
    options = ["--max-restarts=5", f"--ledger={ledger}"]
    (tmp_path / "temporary").mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "flatout", "run", *options, "--", "sh", "-c", "kill -9 $$"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE, "TMPDIR": str(tmp_path / "temporary")},
    )
    assert process.stderr is not None
    while "restart 2 of 5" not in process.stderr.readline():  # followed by a pause of four seconds
        pass
    time.sleep(0.5)
    process.send_signal(signal.Signals[name])
    process.communicate(timeout=20)
    assert process.returncode == -signal.Signals[name]
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert lines[-1]["event"] == "end" and lines[-1]["code"] == 128 + signal.Signals[name]
    assert_sums(lines, num_devices=1)
    assert not list((tmp_path / "temporary").iterdir())


def test_waiting_for_a_slow_rank_is_a_class_of_its_own_as_ddp_times_it(tmp_path: Path) -> None:
    """Rank 1 is late by 200 ms in each step; rank 0 waits, in the exchange of gradients.

    It waits much longer than for a core on a busy host.
    The last test here: the jobs of the others have ended, so that none of them makes a rank late.
    """
    num = 50
    done, lines = run(tmp_path, [], "--fault=slow", f"--steps={num}")
    assert done.returncode == 0, done.stderr
    totals = assert_sums(lines)
    known_ns = sum(line["known_ns"].get("late_rank_wait", {}).get("ddp", 0) for line in events(lines, "seconds"))
    steps_ns = sum(line["steps_ns"] for line in events(lines, "seconds"))
    assert known_ns > 0.8 * steps_ns, "all but the steps before the first that was timed"
    assert totals["late_rank_wait"] / 1e9 == pytest.approx(0.2 * num, rel=0.15)
    asked = subprocess.run(
        [sys.executable, "-m", "flatout", "ledger", str(tmp_path / "ledger.jsonl"), "--json"],
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    classes = {one["name"]: one for one in json.loads(asked.stdout)["classes"]}
    assert classes["late_rank_wait"]["basis"] == ["ddp"] and classes["late_rank_wait"]["known_share"] > 0.8
    assert classes["throttled"]["device_s"] is None and classes["throttled"]["reason"] == "No rank uses a GPU"
