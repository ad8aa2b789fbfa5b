"""A `flatout run` that gets SIGKILL leaves its job running: the next one says so, and starts no second beside it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.slurm import free_port

import flatout as package
from flatout.keep.ledger_merge import read_all

pytestmark = pytest.mark.usefixtures("warm")

JOB = Path(__file__).parents[1] / "jobs" / "keep_job.py"
SOURCE = str(Path(package.__file__).parents[1])
SLEEPS = ["sh", "-c", "echo up; exec sleep 300"]


class Folder:
    """Where runs are started, and the processes that are to be ended after the test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.temporary = path / "temporary"
        self.temporary.mkdir()
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *options: str, command: list[str]) -> subprocess.Popen[str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FLATOUT_", "TORCHEL"))}
        process = subprocess.Popen(
            [sys.executable, "-m", "flatout", "run", *options, "--", *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.path,
            env={**inherited, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", "TMPDIR": str(self.temporary)},
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def run(self, *options: str, command: list[str]) -> tuple[int, str]:
        process = self.start(*options, command=command)
        _, errors = process.communicate(timeout=120)
        return process.returncode, errors

    def kill_watch(self, process: subprocess.Popen[str]) -> psutil.Process:
        """SIGKILL of `flatout run` alone; the first process of its job, which lives on."""
        found: list[psutil.Process] = []
        while not found:  # one that becomes another program has no environment for a moment
            children = psutil.Process(process.pid).children()  # another one watches its signals
            found = [child for child in children if "FLATOUT_HEARTBEAT" in child.environ()]
        (job,) = found
        process.kill()
        process.wait(10)
        assert job.is_running()
        return job


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    found = Folder(tmp_path)
    yield found
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if process.environ().get("TMPDIR") == str(found.temporary):
                process.kill()
    for started in found.started:
        started.wait(10)
        for stream in (started.stdout, started.stderr):
            if stream is not None:
                stream.close()


def until(is_so: Callable[[], object], limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def up(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"


def test_the_next_run_names_the_job_that_runs_on_and_starts_none(folder: Folder) -> None:
    first = folder.start("--ledger=a.jsonl", "--checkpoint=ckpt.pt", command=SLEEPS)
    up(first)
    job = folder.kill_watch(first)
    options = ("--ledger=b.jsonl", "--checkpoint=./ckpt.pt")
    code, errors = folder.run(*options, command=[*SLEEPS, "another argument of the script"])
    assert code == 2 and not (folder.path / "b.jsonl").exists()
    line, hint = errors.splitlines()
    shared = f"checkpoint {folder.path / 'ckpt.pt'}"
    assert line == (
        f"error: a job whose `flatout run` was killed is still running, unmonitored, with the same {shared}: "
        f"process {job.pid}, sh -c 'echo up; exec sleep 300'"
    )
    assert hint == f"hint: --take-over ends it and resumes from its checkpoint; `kill {job.pid}` only ends it"
    for more in ([], ["--take-over"]):
        code, errors = folder.run(*options, *more, command=["touch", "started"])
        assert code == 2 and not (folder.path / "started").exists() and job.is_running()
        hint = f"hint: it is another job, which --take-over does not end: `kill {job.pid}` ends it"
        assert errors.splitlines() == [line, hint], "another script"
    job.kill()
    until(lambda: not job.is_running() or job.status() == psutil.STATUS_ZOMBIE)
    code, errors = folder.run("--ledger=b.jsonl", "--checkpoint=ckpt.pt", command=["touch", "started"])
    assert (code, errors) == (0, "") and (folder.path / "started").exists()


def test_the_same_command_in_the_same_folder_is_the_same_job_and_is_taken_over(folder: Folder) -> None:
    command = ["sh", "-c", "test -e again && exit 0; touch again; echo up; exec sleep 300"]
    first = folder.start("--ledger=a.jsonl", command=command)
    up(first)
    job = folder.kill_watch(first)
    code, errors = folder.run("--ledger=a.jsonl", command=command)
    assert code == 2 and f"with the same command in {folder.path}: process {job.pid}" in errors
    code, errors = folder.run("--ledger=a.jsonl", "--take-over", command=command)
    assert code == 0
    (line,) = errors.splitlines()
    assert line.startswith("flatout: taking over: a job whose `flatout run` was killed is still running")
    assert not job.is_running() or job.status() == psutil.STATUS_ZOMBIE
    assert not list(folder.temporary.iterdir()), "what the killed one had there is gone too"


def test_a_job_of_another_name_is_not_taken_over(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    first = folder.start("--ledger=a.jsonl", "--checkpoint=c.pt", command=SLEEPS)
    up(first)
    job = folder.kill_watch(first)
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    code, errors = folder.run("--ledger=b.jsonl", "--checkpoint=c.pt", "--take-over", command=SLEEPS)
    assert code == 2 and job.is_running() and "which --take-over does not end" in errors


def test_another_job_with_the_same_ledger_is_told_of_it_and_started(folder: Folder) -> None:
    first = folder.start("--ledger=a.jsonl", "--checkpoint=one.pt", command=SLEEPS)
    up(first)
    job = folder.kill_watch(first)
    code, errors = folder.run("--ledger=a.jsonl", "--checkpoint=two.pt", "--take-over", command=["touch", "started"])
    assert code == 0 and (folder.path / "started").exists() and job.is_running()
    assert f"with the same ledger {folder.path / 'a.jsonl'}: process {job.pid}" in errors


def test_two_runs_do_not_share_a_checkpoint_while_both_live(folder: Folder) -> None:
    first = folder.start("--checkpoint=c.pt", "--ledger=a.jsonl", command=SLEEPS)
    up(first)
    for options in (["--checkpoint=c.pt"], ["--checkpoint=c.pt", "--take-over"]):
        code, errors = folder.run("--ledger=b.jsonl", *options, command=["touch", "started"])
        assert code == 2 and not (folder.path / "started").exists()
        assert f"error: another `flatout run` (process {first.pid}) runs a job with the same checkpoint" in errors
    code, errors = folder.run("--ledger=b.jsonl", "--checkpoint=other.pt", command=["touch", "started"])
    assert (code, errors) == (0, "")
    assert first.poll() is None


def test_a_ledger_that_another_run_writes_is_refused_until_that_one_is_gone(folder: Folder) -> None:
    first = folder.start("--ledger=a.jsonl", command=SLEEPS)
    up(first)
    (folder.path / "link.jsonl").symlink_to("a.jsonl")
    for name in ("a.jsonl", "link.jsonl"):
        code, errors = folder.run(f"--ledger={name}", command=["touch", "started"])
        assert code == 2 and not (folder.path / "started").exists()
        assert errors.splitlines() == [
            f"error: another `flatout run` (process {first.pid} on {os.uname().nodename}) is writing to the ledger "
            f"{name}, and only one run can write to it at a time",
            "hint: pass --ledger ANOTHER_FILE, or an existing folder, in which each run has its own ledger",
        ]
    folder.kill_watch(first)  # its job lives, and has no part in the lock
    code, errors = folder.run("--ledger=a.jsonl", command=["touch", "started"])
    assert code == 0 and (folder.path / "started").exists(), errors
    events = [json.loads(line)["event"] for line in (folder.path / "a.jsonl").read_text().splitlines()]
    assert [event for event in events if event in ("run", "end")] == ["run", "run", "end"]


def test_two_agents_of_one_job_on_one_host_have_a_ledger_each_in_a_folder(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By torchrun's variables they are known for parts of one job, which may have one checkpoint."""
    (folder.path / "books").mkdir()
    monkeypatch.setenv("PET_NNODES", "2")
    monkeypatch.setenv("PET_RDZV_ID", "job")
    agent = ["-m", "torch.distributed.run", "--nproc-per-node=1", "--rdzv-backend=c10d"]
    command = [sys.executable, *agent, f"--rdzv-endpoint=localhost:{free_port()}", str(JOB), "--out=out", "--steps=20"]
    agents = [folder.start("--ledger=books", "--checkpoint=out/ckpt.pt", command=command) for _ in range(2)]
    for process in agents:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    host = os.uname().nodename
    books = {path.name: path for path in (folder.path / "books").glob("*.jsonl")}
    assert set(books) == {f"ledger-{host}.jsonl", f"ledger-{host}+2.jsonl"}
    for path in books.values():
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [line["event"] for line in lines if line["event"] != "seconds"] == ["run", "attempt", "end"]
        assert (path.name, lines[0]["job"]) == (f"ledger-{lines[0]['node']}.jsonl", "rdzv-job")
    both = read_all([folder.path / "books"])
    assert (both.num_nodes, both.num_runs, both.num_attempts, both.num_steps, both.num_devices) == (2, 1, 1, 20, 2)


def test_parts_of_one_job_share_a_checkpoint_and_two_jobs_of_many_tasks_do_not(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    first = folder.start("--checkpoint=c.pt", "--ledger=a.jsonl", command=SLEEPS)
    up(first)
    code, errors = folder.run("--ledger=b.jsonl", "--checkpoint=c.pt", command=["touch", "part"])
    assert (code, errors) == (0, "") and (folder.path / "part").exists()
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    code, errors = folder.run("--ledger=b.jsonl", "--checkpoint=c.pt", command=["touch", "other"])
    assert code == 2 and not (folder.path / "other").exists()
    assert f"error: another `flatout run` (process {first.pid}) runs a job with the same checkpoint" in errors


def test_what_a_job_left_in_order_is_in_nobodys_way(folder: Folder) -> None:
    command = ["sh", "-c", "sleep 300 </dev/null >/dev/null 2>&1 & exit 0"]
    for _ in range(2):
        code, errors = folder.run("--ledger=a.jsonl", "--checkpoint=c.pt", command=command)
        assert code == 0
        (line,) = errors.splitlines()
        assert line.startswith("flatout: the command exited and left running, unmonitored: process ")
        assert line.endswith("(sleep 300)")


def test_names_that_are_no_utf_8_are_compared_like_others(folder: Folder) -> None:
    odd = os.fsdecode(b"--checkpoint=\xff.pt")
    first = folder.start(odd, "--ledger=a.jsonl", command=[*SLEEPS, os.fsdecode(b"\xfe")])
    up(first)
    job = folder.kill_watch(first)
    code, errors = folder.run(odd, "--ledger=a.jsonl", command=["touch", "started"])
    assert code == 2 and f"process {job.pid}, sh -c" in errors and "Traceback" not in errors


def test_a_training_is_taken_over_from_its_checkpoint_with_nothing_lost(folder: Folder) -> None:
    def run(*options: str) -> subprocess.Popen[str]:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        return folder.start(
            *("--ledger=l.jsonl", "--checkpoint=out/ckpt.pt", "--max-restarts=3", "--resume-arg=--init_from=resume"),
            *options,
            command=[*launcher, str(JOB), "--out=out", "--steps=60", "--step_s=0.2"],
        )

    first = run()
    until((folder.path / "out" / "ckpt.pt").exists)
    folder.kill_watch(first)
    second = run("--take-over")
    _, errors = second.communicate(timeout=150)
    assert second.returncode == 0, errors
    pids: dict[int, list[float]] = {}
    for row in (folder.path / "out" / "times-0.txt").read_text().splitlines():
        pid, at = row.split()
        pids.setdefault(int(pid), []).append(float(at))
    before, after = pids.values()
    assert max(before) < min(after), "never two at once"
    steps = [int(row.split()[0]) for row in (folder.path / "out" / "losses-0.txt").read_text().splitlines()]
    assert set(steps) == set(range(60)) and steps.count(0) == 1, "it went on from a checkpoint"
    lines = [json.loads(line) for line in (folder.path / "l.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines if line["event"] in ("run", "end")] == ["run", "run", "end"]
    begin = max(place for place, line in enumerate(lines) if line["event"] == "run")
    names = {name for line in lines[begin:] if line["event"] == "seconds" for name in line["ns"]}
    assert "restart" in names and "start_up" not in names, "it is the same training"


def test_a_signal_while_it_takes_over_ends_it_and_starts_nothing(folder: Folder) -> None:
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(300)"
    command = [sys.executable, "-c", stubborn]
    first = folder.start("--ledger=a.jsonl", command=command)
    up(first)
    job = folder.kill_watch(first)
    second = folder.start("--ledger=a.jsonl", "--take-over", command=command)
    assert second.stderr is not None and "taking over" in second.stderr.readline()
    time.sleep(1)
    second.send_signal(signal.SIGINT)
    second.communicate(timeout=20)
    assert second.returncode == 130 and job.is_running()
