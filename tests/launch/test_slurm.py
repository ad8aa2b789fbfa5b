"""The Slurm launcher on a real Slurm: what its jobs do, and what is done to them, told apart."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.slurm import SlurmLab

from flatout.errors import FlatoutError, InputError, UsageError
from flatout.launch import ExitStatus, SlurmLauncher
from flatout.launch import slurm as module

NAME = "flatout-test"
# One line of `scontrol show job --oneliner` each, of Slurm 22.05; the second in a cluster that enforces memory limits.
OVER_MEMORY = (
    "JobId=9 JobName=x UserId=u(1) JobState=OUT_OF_MEMORY Reason=OutOfMemory Dependency=(null) ExitCode=0:125"
    " StartTime=2026-11-28T07:43:52 SuspendTime=None PreemptTime=None ReqNodeList=(null) NodeList=n[1-2] BatchHost=n1"
)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def launcher(slurm: SlurmLab, said: list[str]) -> SlurmLauncher:
    return SlurmLauncher(["--nodes=1"], name=NAME, say=said.append)


def run(launcher: SlurmLauncher, folder: Path, *command: str, limit_s: float = 60.0, **more: str) -> ExitStatus:
    return launcher.run(command, {**os.environ, **more}, output=folder / "output.log", limit_s=limit_s)


def shell(launcher: SlurmLauncher, folder: Path, script: str, *, limit_s: float = 60.0, **more: str) -> ExitStatus:
    return run(launcher, folder, "sh", "-c", script, limit_s=limit_s, **more)


class Meanwhile:
    """Does something once the job with our name runs."""

    def __init__(self, lab: SlurmLab, do: Callable[[str], None]) -> None:
        self._lab, self._do = lab, do
        self._thread = threading.Thread(target=self._wait)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _wait(self) -> None:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            found = self._lab.run("squeue", "-h", "-n", NAME, "-t", "RUNNING", "-o", "%A").split()
            if found:
                time.sleep(0.5)
                self._do(found[0])
                return
            time.sleep(0.1)


def in_queue(lab: SlurmLab) -> list[str]:
    return lab.run("squeue", "-h", "-n", NAME, "-t", "PENDING,RUNNING,SUSPENDED", "-o", "%A").split()


def test_output_code_environment_and_node_are_the_jobs(
    slurm: SlurmLab, launcher: SlurmLauncher, tmp_path: Path
) -> None:
    script = "echo $ONE $SLURMD_NODENAME 'a  b'; echo error >&2; exit 3"
    ended = shell(launcher, tmp_path, script, ONE="a;b $HOME '")
    assert (tmp_path / "output.log").read_text() == "a;b $HOME ' n1 a  b\nerror\n"
    assert (ended.code, ended.signal, ended.cause, ended.is_timed_out) == (3, None, None, False)
    assert ended.nodes == "n1"
    assert abs(ended.start_unix_s - time.time()) < 15


def test_words_reach_the_command_as_they_are(launcher: SlurmLauncher, tmp_path: Path) -> None:
    odd = ["a b", "it's", '"', "$HOME", "", "*", "é", "{trial}", "x={head_node}:1 '$y"]
    ended = run(launcher, tmp_path, sys.executable, "-c", "import sys; print(sys.argv[1:])", *odd)
    assert ended.code == 0
    assert eval((tmp_path / "output.log").read_text()) == [*odd[:-1], "x=n1:1 '$y"]


def test_a_job_has_its_nodes_and_the_next_one_the_same(slurm: SlurmLab, said: list[str], tmp_path: Path) -> None:
    launcher = SlurmLauncher([], name=NAME, say=said.append)
    holder = slurm.run("sbatch", "--parsable", "-wn1", "--exclusive", "-o/dev/null", "--wrap=sleep 600").strip()
    assert shell(launcher, tmp_path, "true").nodes == "n2"
    slurm.run("scancel", holder)
    assert shell(launcher, tmp_path, "true").nodes == "n2"  # not n1, which comes first


def test_the_wait_for_nodes_is_not_in_the_limit(slurm: SlurmLab, launcher: SlurmLauncher, tmp_path: Path) -> None:
    slurm.run("sbatch", "-N2", "--exclusive", "-o/dev/null", "--wrap=sleep 5")
    ended = shell(launcher, tmp_path, "sleep 1; echo done", limit_s=3.5)
    assert (ended.code, ended.is_timed_out) == (0, False)
    assert 3 <= launcher.waited_s <= 12


def test_a_job_past_its_limit_is_cancelled(slurm: SlurmLab, launcher: SlurmLauncher, tmp_path: Path) -> None:
    ended = shell(launcher, tmp_path, "echo on; sleep 600", limit_s=1.5)
    assert (ended.is_timed_out, ended.code, ended.cause) == (True, None, None)
    assert in_queue(slurm) == []
    assert (tmp_path / "output.log").read_text().startswith("on\n")


def test_an_interruption_cancels_the_job(
    slurm: SlurmLab, launcher: SlurmLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*_: object) -> None:
        assert in_queue(slurm) != []
        raise KeyboardInterrupt

    monkeypatch.setattr(SlurmLauncher, "_look", look)
    with pytest.raises(KeyboardInterrupt):
        shell(launcher, tmp_path, "sleep 600")
    assert in_queue(slurm) == []


def test_what_a_killed_tuning_left_in_the_queue_is_cancelled(
    slurm: SlurmLab, launcher: SlurmLauncher, tmp_path: Path
) -> None:
    left = slurm.run("sbatch", "--parsable", f"--job-name={NAME}", "-o/dev/null", "--wrap=sleep 600").strip()
    other = slurm.run("sbatch", "--parsable", "--job-name=other", "-o/dev/null", "--wrap=sleep 600").strip()
    assert shell(launcher, tmp_path, "true").code == 0
    states = [slurm.run("scontrol", "show", "job", "-o", job).split("JobState=")[1].split()[0] for job in (left, other)]
    assert states == ["CANCELLED", "RUNNING"]


def test_a_failed_node_says_nothing_of_the_job(slurm: SlurmLab, launcher: SlurmLauncher, tmp_path: Path) -> None:
    fail = lambda _: slurm.run("scontrol", "update", "nodename=n1", "state=down", "reason=test")  # noqa: E731
    with Meanwhile(slurm, fail):
        ended = shell(launcher, tmp_path, "sleep 600")
    assert (ended.cause, ended.reason) == ("void", "a node failed")
    assert shell(launcher, tmp_path, "true").nodes == "n2"  # it does not wait for the failed one


def test_nodes_that_are_gone_before_the_next_job_are_not_waited_for(
    slurm: SlurmLab, launcher: SlurmLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GONE_AFTER_S", 1.0)
    assert shell(launcher, tmp_path, "true").nodes == "n1"
    slurm.run("scontrol", "update", "nodename=n1", "state=down", "reason=test")
    found = [shell(launcher, tmp_path, "true") for _ in range(2)]
    assert found[0].cause == "void" or found[0].nodes == "n2"
    assert (found[1].nodes, found[1].code) == ("n2", 0)


def test_a_preempted_job_says_nothing_of_the_job(slurm: SlurmLab, launcher: SlurmLauncher, tmp_path: Path) -> None:
    preempt = lambda _: slurm.run(  # noqa: E731
        "sbatch", "-phigh", "-N2", "--exclusive", "-o/dev/null", "--wrap=sleep 2"
    )
    with Meanwhile(slurm, preempt):
        ended = shell(launcher, tmp_path, "sleep 600")
    assert (ended.cause, ended.reason) == ("void", "it was preempted by another job")
    assert in_queue(slurm) == []  # Slurm did not put it back: it would run beside the one that takes its place


def test_a_suspended_job_measured_nothing(slurm: SlurmLab, launcher: SlurmLauncher, tmp_path: Path) -> None:
    def suspend(job: str) -> None:
        slurm.run("scontrol", "suspend", job)
        time.sleep(1)
        slurm.run("scontrol", "resume", job)

    with Meanwhile(slurm, suspend):
        ended = shell(launcher, tmp_path, "sleep 3")
    assert (ended.cause, ended.reason) == ("void", "it was suspended in the meantime")


def test_a_job_that_someone_cancels_ends_the_tuning(slurm: SlurmLab, launcher: SlurmLauncher, tmp_path: Path) -> None:
    with (
        Meanwhile(slurm, lambda job: print(slurm.run("scancel", job))),
        pytest.raises(FlatoutError, match=r"job \d+ was cancelled, but not by Flatout"),
    ):
        shell(launcher, tmp_path, "sleep 600")


def test_an_output_that_the_nodes_cannot_write_is_one_line(slurm: SlurmLab, launcher: SlurmLauncher) -> None:
    if not slurm.has_hostnames:
        pytest.skip("needs root, for a folder that the nodes do not see")
    folder = slurm.login_only / "out"
    folder.mkdir()
    with pytest.raises(InputError, match=r"job \d+ could not write .*/output\.log on n1"):
        shell(launcher, folder, "true")


def test_flatout_itself_must_be_on_the_nodes(
    launcher: SlurmLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STARTUP", tmp_path / "absent")
    assert shell(launcher, tmp_path, "echo ran").code == 72
    assert (tmp_path / "output.log").read_text().strip() == (
        f"FileNotFoundError: node n1 does not see {tmp_path / 'absent'}"
    )


def test_what_sbatch_refuses_is_one_line(slurm: SlurmLab, tmp_path: Path) -> None:
    launcher = SlurmLauncher(["--partition=absent"], name=NAME, say=print)
    with pytest.raises(InputError, match="Slurm rejects the job: Batch job submission failed: Invalid partition"):
        shell(launcher, tmp_path, "true")


@pytest.mark.parametrize("option", ["--array=1-3", "-a1", "--wrap=true"])
def test_a_trial_is_one_job(slurm: SlurmLab, option: str) -> None:
    with pytest.raises(UsageError, match="a trial is a single job"):
        SlurmLauncher([option], name=NAME, say=print)


def test_without_slurm_it_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="needs sbatch, which was not found"):
        SlurmLauncher([], name=NAME, say=print)


def test_a_job_within_a_job_is_one_of_its_own(slurm: SlurmLab, tmp_path: Path, said: list[str]) -> None:
    """As where the tuning itself runs in a job of a CPU partition."""
    launcher = SlurmLauncher(["-N2", "--ntasks-per-node=1"], name=NAME, say=said.append)
    outer = {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "5", "SLURM_NNODES": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3"}
    ended = shell(launcher, tmp_path, "echo $SLURM_NTASKS $SLURM_NNODES $SLURM_STEP_ID; srun echo x", **outer)
    assert ended.code == 0
    assert (tmp_path / "output.log").read_text().split() == ["2", "2", "x", "x"]


@pytest.mark.parametrize(
    ("state", "cause"), [("TIMEOUT", "timed_out"), ("OUT_OF_MEMORY", "out_of_memory"), ("BOOT_FAIL", "void")]
)
def test_states_that_take_long_to_make(slurm: SlurmLab, tmp_path: Path, state: str, cause: str) -> None:
    """A cluster without control groups never says OUT_OF_MEMORY, and limits are minutes."""
    launcher = SlurmLauncher([], name=NAME, say=print)
    seen = module._seen(OVER_MEMORY.replace("OUT_OF_MEMORY", state))
    assert (seen.nodes, seen.was_preempted, seen.was_suspended) == ("n[1-2]", False, False)
    ended = launcher._judge("9", seen, tmp_path / "out", is_timed_out=False)
    assert (ended.cause, ended.signal, ended.job) == (cause, 125, "9")
