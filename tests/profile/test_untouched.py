"""The job does what it would do without us: results, output, exit code; whatever goes wrong on our side."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.profile.runs import job, profiling, recorded, run, torchrun, words

from flatout.profile import read_recording

pytestmark = pytest.mark.usefixtures("warm")

STEPS = 60


@pytest.fixture(scope="module")
def plain() -> tuple[str, str]:
    done = run(job("--steps", STEPS, "--workers", 1))
    assert done.returncode == 0
    return done.stdout, done.stderr


@pytest.mark.parametrize("option", ["--light", "--steps=2"])
def test_losses_are_the_same_to_the_last_bit(tmp_path: Path, plain: tuple[str, str], option: str) -> None:
    recording, done = recorded(tmp_path / "r", job("--steps", STEPS, "--workers", 1), option, "--warmup", "12")
    assert done.stdout == plain[0]
    assert done.stderr.startswith(plain[1])
    assert all(line.startswith("flatout: ") for line in done.stderr[len(plain[1]) :].splitlines()[:2])
    (rank,) = recording.ranks
    assert rank.flops_by_type is not None
    assert len(rank.traced_steps) == (0 if option == "--light" else 2)


def test_output_keeps_its_order(tmp_path: Path) -> None:
    script = "import os\nfor i in range(99): os.write(1 + i % 2, b'%d\\n' % i)"
    done = run(["sh", "-c", '"$@" 2>&1', "sh", *profiling(tmp_path / "r", "--light"), sys.executable, "-c", script])
    assert done.stdout.splitlines()[:99] == [str(number) for number in range(99)]


def test_standard_input_is_the_jobs(tmp_path: Path) -> None:
    script = "import sys; print(sys.stdin.read().upper(), end='')"
    done = run(["sh", "-c", 'printf abc | "$@"', "sh", *profiling(tmp_path / "r"), sys.executable, "-c", script])
    assert done.stdout == "ABC"


@pytest.mark.parametrize(("how", "code"), [("exit", 3), ("raise", 1)])
def test_the_exit_code_is_the_jobs(tmp_path: Path, how: str, code: int) -> None:
    recording, done = recorded(tmp_path / "r", job("--steps", 8, "--end", how), "--light", code=code)
    if how == "raise":
        assert "ArithmeticError: on purpose" in done.stderr
        assert "it ended with ArithmeticError" in [one.problem for one in recording.ranks[0].problems]
    assert recording.runs[0].exit_code == code


def test_a_killed_rank_leaves_what_it_had(tmp_path: Path) -> None:
    recording, done = recorded(tmp_path / "r", torchrun("--steps", 60, "--end", "kill"), "--warmup", "5", code=1)
    assert len(recording.ranks) == 2
    assert any("rank 1: it ended without an error message, as a killed process does" in line for line in words(done))
    assert "the command ended with code 1" in " ".join(words(done))


def test_a_killed_job_ends_us_by_the_same_signal(tmp_path: Path) -> None:
    command = job("--steps", 8, "--end", "kill")
    done = run([*profiling(tmp_path / "r"), *command])
    assert done.returncode == run(command).returncode == -signal.SIGKILL


def test_a_short_job_is_told_and_recorded(tmp_path: Path) -> None:
    recording, done = recorded(tmp_path / "r", job("--steps", 6))
    assert len(recording.ranks[0].steps.number) == 6
    assert "the job ended after 6 steps, before step times were stable" in " ".join(words(done))


def test_a_job_that_ends_in_the_window_leaves_a_short_trace(tmp_path: Path) -> None:
    recording, _ = recorded(tmp_path / "r", job("--steps", 20), "--warmup", "5", "--steps", "50")
    (rank,) = recording.ranks
    assert 0 < len(rank.traced_steps) < 15
    assert (tmp_path / "r" / "rank0.json.gz").exists()


def test_a_folder_that_vanishes_does_not_matter_to_the_job(tmp_path: Path) -> None:
    done = run([*profiling(tmp_path / "r", "--warmup", "5"), *job("--steps", 14, "--end", "lose-folder")])
    assert done.returncode == 0
    assert len(done.stdout.split()) == 14
    assert "flatout: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_full_disk_does_not_matter_to_the_job(tmp_path: Path) -> None:
    """A limit on the size of files fails as a full disk does: in the middle of a write."""
    limit = 6_000
    script = (
        "import resource, subprocess, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (%d, %d)); "
        "sys.exit(subprocess.call(sys.argv[1:]))"
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    command = [sys.executable, "-c", script % (limit, limit), *job("--steps", 60)]
    done = run([*profiling(tmp_path / "r", "--warmup", "5"), *command])
    assert done.returncode == 0
    assert len(done.stdout.split()) == 60
    said = " ".join(words(done))
    assert (
        "the trace was not written: it is truncated, possibly because the disk was full" in said
        or "cannot be read" in said
    )
    assert list((tmp_path / "r").glob("*.part")) == []
    assert len(read_recording(tmp_path / "r").ranks[0].steps.number) > 10


def test_a_folder_that_cannot_be_made_is_told_before_the_start() -> None:
    done = run([*profiling(Path("/proc/recording")), sys.executable, "-c", "print('started')"])
    assert done.returncode == 2
    assert done.stdout == ""
    assert "error: the recording cannot be written to `/proc/recording`" in done.stderr
    assert "the job was not started" in done.stderr


def test_a_disk_that_is_full_at_the_start_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    """Else the same command would meet a folder that exists, once there is space."""
    limited = ["sh", "-c", 'ulimit -f 0; "$@"', "sh"]
    done = run([*limited, *profiling(tmp_path / "r"), sys.executable, "-c", "print('started')"])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: the recording cannot be written to")
    assert list(tmp_path.iterdir()) == []


def test_a_trace_that_could_not_be_written_is_not_read(tmp_path: Path) -> None:
    """Without space for the trace, its steps were traced, and there is none."""
    out = tmp_path / "my r"
    done = run([*profiling(out, "--warmup", "5"), *job("--steps", 30)])
    assert done.returncode == 0
    assert done.stderr.endswith(f"next: flatout diagnose '{out}' --html report.html\n")
    (out / "rank0.json.gz").unlink()
    recording = read_recording(out)
    assert (recording.traced_ranks, bool(recording.ranks[0].traced_steps)) == ((), True)
    diagnosed = run([sys.executable, "-m", "flatout", "diagnose", out])
    assert diagnosed.returncode == 0
    assert "the recording has no trace" in " ".join(diagnosed.stdout.split())


def test_a_process_that_ends_itself_at_once_is_not_said_to_have_ended_early(tmp_path: Path) -> None:
    """`os._exit` leaves no time to write the last steps."""
    script = (
        "import os, torch; p = torch.nn.Linear(1, 1); o = torch.optim.SGD(p.parameters(), lr=0.1)\n"
        "for _ in range(9): p(torch.ones(1)).sum().backward(); o.step()\nos._exit(0)"
    )
    _, done = recorded(tmp_path / "r", [sys.executable, "-c", script], "--light")
    said = " ".join(words(done))
    assert "it ended without an error message" in said
    assert "its record ends after" in said
    assert "the job ended after" not in said
    assert "no trace" not in said


def test_a_training_that_is_left_in_the_background_is_named(tmp_path: Path) -> None:
    """It had not imported torch yet when the shell ended; that it never would is not said."""
    command = ["sh", "-c", f"{sys.executable} -c 'import time; time.sleep(6)' >&- 2>&- & sleep 2"]
    recording, done = recorded(tmp_path / "r", command)
    assert recording.runs[0].num_left_running == 1
    said = " ".join(words(done))
    assert "the command did not wait for 1 process that it started" in said
    assert "none imported torch" not in said


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print(1)"]
    assert run([*profiling(tmp_path / "r"), *command]).returncode == 0
    again = run([*profiling(tmp_path / "r"), *command])
    assert (again.returncode, again.stdout) == (2, "")
    assert "already exists, and nothing is overwritten" in again.stderr
    assert run([*profiling(tmp_path / "r", "--force"), *command]).returncode == 0
    (tmp_path / "r" / "thesis.tex").write_text("years of work")
    kept = run([*profiling(tmp_path / "r", "--force"), *command])
    assert kept.returncode == 2
    assert (tmp_path / "r" / "thesis.tex").exists()


def test_a_command_that_is_not_there_leaves_nothing_behind(tmp_path: Path) -> None:
    done = run([*profiling(tmp_path / "r"), "no-such-command"])
    assert done.returncode == 2
    assert "error: the command `no-such-command` was not found" in done.stderr
    assert not (tmp_path / "r").exists()


def test_secrets_are_masked_in_what_is_stored(tmp_path: Path) -> None:
    recorded(tmp_path / "r", [sys.executable, "-c", "pass", "--api-key", "abc123secret", "HF_TOKEN=hf_0123456789abc"])
    stored = "".join(file.read_text() for file in (tmp_path / "r").iterdir())
    assert "abc123secret" not in stored
    assert "hf_0123456789abc" not in stored


def test_json_is_the_last_line_of_standard_output(tmp_path: Path) -> None:
    _, done = recorded(tmp_path / "r", job("--steps", 20), "--warmup", "3", "--json")
    diagnosis = json.loads(done.stdout.splitlines()[-1])
    assert diagnosis["schema"] == "flatout/diagnosis"
    assert len(done.stdout.splitlines()) == 21


def test_json_without_a_trace_is_what_was_recorded(tmp_path: Path) -> None:
    recording, done = recorded(tmp_path / "r", job("--steps", 20), "--light", "--warmup", "3", "--json")
    *losses, line = done.stdout.splitlines()
    report = json.loads(line)
    assert (report["schema"], len(losses)) == ("flatout/recording-report", 20)
    (rank,) = report["ranks"]
    assert (rank["num_steps"], rank["ended_by"], rank["device"]) == (20, "exit", None)
    assert rank["untraced_step_s"] == recording.ranks[0].untraced_step_s == report["measured"]["step_s"]
    assert report["measured"]["samples_per_s"] == pytest.approx(4 / report["measured"]["mean_step_s"])
    assert report["measured"]["regular_samples_per_s"] == pytest.approx(4 / report["measured"]["regular_step_s"])
    assert report["measured"]["mfu"] is None and "CPU" in report["measured"]["reasons"]["mfu"]
    assert (report["path"], report["traced_ranks"]) == (str(tmp_path / "r"), [])
    assert [host["hostname"] for host in report["hosts"]] == [rank["hostname"]]
    assert report["runs"][0]["exit_code"] == 0


@pytest.mark.parametrize(("script", "code"), [("pass", 0), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_json_of_a_job_without_a_step_says_why(tmp_path: Path, script: str, code: int) -> None:
    done = run([*profiling(tmp_path / "r", "--json"), sys.executable, "-c", script])
    report = json.loads(done.stdout)
    assert (report["schema"], report["ranks"]) == ("flatout/recording-report", [])
    assert report["data_quality"] and report["measured"]["reasons"]["step_s"] == "no rank was recorded"
    assert report["runs"][0]["signal"] == (9 if code == 137 else None)


def test_a_full_disk_under_standard_output_is_not_called_a_broken_recording(tmp_path: Path) -> None:
    command = [*profiling(tmp_path / "r", "--light", "--json"), sys.executable, "-c", "raise SystemExit(3)"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert done.returncode == 3
    said = f"flatout: the recording is in {tmp_path / 'r'}, but standard output failed: No space left on device"
    assert said in done.stderr.splitlines()
    assert "Traceback" not in done.stderr


def test_json_where_the_traces_cannot_be_read_is_what_was_recorded(tmp_path: Path) -> None:
    trace = tmp_path / "r" / "rank0.json"
    code = f"import subprocess, sys; subprocess.run(sys.argv[1:]); open({str(trace)!r}, 'w').write('spoilt')"
    spoiling = [sys.executable, "-c", code]
    done = run([*profiling(tmp_path / "r", "--warmup", "3", "--json"), *spoiling, *job("--steps", 30)])
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["schema"] == "flatout/recording-report"
    assert report["traced_ranks"] == [0]
    assert any(one["problem"].startswith("its traces could not be diagnosed: ") for one in report["data_quality"])
    assert "reading it failed" in done.stderr
