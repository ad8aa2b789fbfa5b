"""`flatout submit` on a real Slurm: the command arrives as it was typed, and what became of it is known."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.slurm import SlurmLab

from flatout.cli import main
from flatout.read.sacct import parse_sacct

pytestmark = pytest.mark.usefixtures("warm")

# Prints its arguments as JSON, one line; ends with the code in its first argument.
PROGRAM = "import json, os, sys; print(json.dumps([sys.argv[2:], os.getcwd()]), flush=True); sys.exit(int(sys.argv[1]))"
WORDS = ["two  blanks", "it's", '"quoted"', "$HOME `id` \\", "", "line\nbreak", "--dry-run", "*", "ümlaut", "a" * 120]


def submit(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *arguments: str, code: int = 0
) -> dict[str, object]:
    monkeypatch.setattr(sys, "argv", ["flatout", "submit", "--json", *arguments])
    ended = main()
    out, err = capfd.readouterr()
    assert ended == code, err
    found = json.loads(out) if out else {"error": err}
    assert isinstance(found, dict)
    return found


def waited_for(path: Path, timeout_s: float = 90.0) -> str:
    deadline = time.monotonic() + timeout_s
    while not (path.is_file() and path.read_text()):
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.1)
    return path.read_text()


@pytest.fixture
def folder(slurm: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("code", [0, 7])
def test_arguments_arrive_whole_and_output_and_exit_code_are_known(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], code: int
) -> None:
    found = submit(monkeypatch, capfd, "--", sys.executable, "-c", PROGRAM, str(code), *WORDS)
    assert (found["schema"], found["scheduler"], found["dry_run"]) == ("flatout/submission", "slurm", False)
    assert waited_for(Path(str(found["exit_code_file"]))) == f"{code}\n"
    printed = json.loads(Path(str(found["output"])).read_text().splitlines()[0])
    assert printed == [WORDS, str(folder)]
    assert str(found["job"]).isdecimal()
    assert found["next"] == f"squeue --jobs {found['job']}"
    assert [Path(str(path)).name for path in (found["files"] if isinstance(found["files"], list) else [])] == [
        "job.sbatch"
    ]


def test_slurm_knows_the_name_the_nodes_and_the_limit(
    slurm: SlurmLab, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    found = submit(
        monkeypatch, capfd, "--name", "night-run", "--nodes", "2", "--time", "90m", "--deadline", "2d", "--resume",
        "--partition", "high", "--sbatch-options=--hold --comment='a  b'", "--", "sleep", "60",
    )  # fmt: skip
    told = slurm.run("scontrol", "show", "job", "--oneliner", str(found["job"]))
    for words in (
        "JobName=night-run",
        "NumNodes=2",
        "TimeLimit=01:30:00",
        "Partition=high",
        "Requeue=1",
        "Comment=a  b",
    ):
        assert words in told
    assert "Deadline=2" in told


def test_a_job_prefers_nodes_with_its_data_set_and_is_queued_where_none_has_it(
    slurm: SlurmLab, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    options = ("--data-set", "image-net", "--sbatch-options=--hold", "--", "sleep", "60")
    found = submit(monkeypatch, capfd, *options)
    assert "no node has the feature data_image_net yet" in str(found["notes"])
    node = slurm.run("sinfo", "--noheader", "--format=%n").split()[0]
    features = ("AvailableFeatures=data_image_net", "ActiveFeatures=data_image_net")
    slurm.run("scontrol", "update", f"NodeName={node}", *features)
    try:
        found = submit(monkeypatch, capfd, *options)
    finally:
        slurm.run("scontrol", "update", f"NodeName={node}", "AvailableFeatures=", "ActiveFeatures=")
    assert "--prefer=data_image_net" in str(found["submitted"])
    assert "no node has the feature" not in str(found["notes"])


def test_a_dry_run_shows_and_does_nothing(
    slurm: SlurmLab, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["flatout", "submit", "--dry-run", "--gpus", "8", "--", "echo", "--dry-run"])
    assert main() == 0
    said = capfd.readouterr().out
    assert "would submit: sbatch --parsable" in said
    assert "--gpus-per-node=8" in said
    assert "\nsrun echo --dry-run\n" in said
    assert said.splitlines()[-1] == "next: flatout submit --gpus 8 -- echo --dry-run"
    assert list(folder.iterdir()) == []
    assert slurm.run("squeue", "-h") == ""


def test_what_slurm_refuses_leaves_nothing_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    found = submit(monkeypatch, capfd, "--partition", "none", "--", "echo", code=2)
    assert "Slurm rejects the job: " in str(found["error"])
    assert "Invalid partition" in str(found["error"])
    assert [path for path in folder.rglob("*") if path.is_file()] == []


def test_a_submission_never_takes_the_folder_of_another(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(time, "strftime", lambda *_: "20260131-120000")
    folders = {str(submit(monkeypatch, capfd, "--", "true")["folder"]) for _ in range(3)}
    assert len(folders) == 3
    taken = min(folders)
    error = submit(monkeypatch, capfd, "--out", taken, "--", "true", code=2)["error"]
    assert "already exists, and nothing is overwritten" in str(error)


def test_from_within_a_job_its_variables_do_not_speak_for_the_new_one(
    slurm: SlurmLab, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"SLURM_JOB_ID": "1", "SLURM_NNODES": "2", "SLURM_NTASKS": "2", "SBATCH_X": "1"}.items():
        monkeypatch.setenv(name, value)
    found = submit(monkeypatch, capfd, "--", "sh", "-c", "echo $SLURM_NNODES")
    assert waited_for(Path(str(found["exit_code_file"]))) == "0\n"
    assert Path(str(found["output"])).read_text() == "1\n"


def test_a_preempted_job_that_can_resume_runs_again(
    slurm: SlurmLab, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    script = "[ -e began ] && exec echo resumed; touch began; echo first; sleep 60"
    found = submit(monkeypatch, capfd, "--resume", "--sbatch-options=--exclusive", "--", "sh", "-c", script)
    waited_for_file(folder / "began")
    urgent = slurm.run("sbatch", "--parsable", "-p", "high", "-N2", "--exclusive", "-o", "/dev/null", "--wrap", "true")
    assert urgent
    output = Path(str(found["output"]))
    deadline = time.monotonic() + 120
    while "resumed" not in output.read_text():
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(0.2)
    assert "first" in output.read_text()  # the first attempt's output is kept
    assert waited_for(Path(str(found["exit_code_file"]))) == "0\n"


# Of 2 tasks on 2 nodes the first fails once, while the other would linger; on a restart both say how they were called.
FAILS_ONCE = """\
import os, sys, time, zipfile
if "--resume" not in sys.argv:
    if os.environ["SLURM_PROCID"] == "0":
        with zipfile.ZipFile("ckpt.pt", "w") as file:  # the container that torch.save writes
            file.writestr("ckpt/data.pkl", b"state")
        sys.exit(3)
    time.sleep(600)
print("resumed", sys.argv[1:], os.environ["SLURM_JOB_ID"], flush=True)
"""


def test_a_job_that_fails_is_started_again_on_all_nodes_of_its_allocation(
    slurm: SlurmLab, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "bin").mkdir()
    (folder / "bin" / "flatout").write_text(f'#!/bin/sh\nexec {slurm.python} -m flatout "$@"\n')
    (folder / "bin" / "flatout").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    (folder / "train.py").write_text(FAILS_ONCE)
    found = submit(
        monkeypatch, capfd, "--nodes", "2", "--max-restarts", "2", "--checkpoint", "ckpt.pt",
        "--resume-arg=--resume", "--ledger", "ledger.jsonl", "--sbatch-options=--ntasks-per-node=1",
        "--", sys.executable, "train.py", "--lr", "1",
    )  # fmt: skip
    assert waited_for(Path(str(found["exit_code_file"])), 120) == "0\n"
    said = Path(str(found["output"])).read_text()
    assert said.count(f"resumed ['--lr', '1', '--resume'] {found['job']}") == 2, said
    assert "flatout: restart 1 of 2" in said
    events = [json.loads(line)["event"] for line in (folder / "ledger.jsonl").read_text().splitlines()]
    assert (events.count("failure"), events[-1]) == (1, "end")


def waited_for_file(path: Path) -> None:
    deadline = time.monotonic() + 90
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_written_script_is_one_that_a_shell_reads(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    found = submit(monkeypatch, capfd, "--nodes", "2", "--sbatch-options=--hold", "--", "torchrun", "x.py", *WORDS)
    (script,) = found["files"] if isinstance(found["files"], list) else ()
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


def test_what_squeue_prints_of_it_is_read(
    slurm: SlurmLab, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    running = submit(monkeypatch, capfd, "--name", "one", "--", "sleep", "60")
    held = submit(monkeypatch, capfd, "--name", "two", "--nodes", "2", "--sbatch-options=--hold", "--", "sleep", "60")
    deadline = time.monotonic() + 90
    while "RUNNING" not in slurm.run("squeue", "-h", "-j", str(running["job"]), "-o", "%T"):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    text = slurm.run("squeue", "-o", "%i|%T|%a|%u|%j|%b|%M|%l|%D|%V|%S|%e")
    found = parse_sacct(text.encode(), name="squeue")
    assert (found.left_out, found.num_steps) == ((), 0)
    by_job = {each.job: each for each in found.attempts}
    one, two = by_job[str(running["job"])], by_job[str(held["job"])]
    assert (one.name, one.state, one.num_nodes, one.num_gpus) == ("one", "RUNNING", 1, 0)
    assert one.start_s is not None and one.submit_s is not None and one.end_s is None
    assert (two.name, two.state, two.start_s, two.elapsed_s) == ("two", "PENDING", None, 0)
