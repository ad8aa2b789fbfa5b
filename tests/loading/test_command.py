"""`flatout data profile` on real jobs: the cause, the numbers, and a job that is not changed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.profile.runs import environment

from flatout.cli.data import _report
from flatout.records.loading import LoadingProfile

pytestmark = pytest.mark.usefixtures("warm")

pytest.importorskip("torch")
JOB = Path(__file__).parents[1] / "jobs" / "files_job.py"
NOTHING_MEASURED = LoadingProfile(recording="out", ranks=(), slowest_rank=None, is_waiting=None)
DATA = [sys.executable, "-m", "flatout", "data"]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, env=environment(), capture_output=True, text=True, timeout=150, stdin=subprocess.DEVNULL, check=False
    )


def job(folder: Path, *options: str) -> list[str]:
    return [sys.executable, str(JOB), str(folder / "files"), *options]


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory, warm: None) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A job whose samples sleep 8 ms, in the training process."""
    folder = tmp_path_factory.mktemp("waiting")
    out = folder / "out"
    done = run(*DATA, "profile", "--out", str(out), "--", *job(folder, "--sleep-ms", "8"))
    assert done.returncode == 0, done.stderr
    return out, done


def profile_of(out: Path) -> dict[str, Any]:
    done = run(*DATA, "show", str(out), "--json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_a_job_whose_samples_wait_is_told_to_use_more_workers_than_cores(
    waiting: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    out, done = waiting
    assert "dataset-code-waits" in done.stderr and "augment (" in done.stderr
    assert "next: flatout tune -- " in done.stderr
    profile = profile_of(out)
    assert (profile["schema"], profile["version"], profile["is_waiting"]) == ("flatout/data-profile", 1, True)
    (rank,) = profile["ranks"]
    code = next(stage for stage in rank["stages"] if stage["name"] == "code")
    # Other processes that keep the cores busy lengthen a sample, but neither what it computes nor what it sleeps.
    work_s = sum(stage["cpu_s"] + stage["waiting_s"] for stage in rank["stages"])
    assert 0.008 * 0.9 <= code["waiting_s"] <= work_s <= 0.008 * 1.5
    timed_s = sum(stage["wall_s"] for stage in rank["stages"])
    assert rank["sample_s"] >= 0.008 and timed_s >= 0.008
    assert timed_s * rank["num_timed"] <= rank["sample_s"] * rank["num_batches"] * 1.01, "some of all batches"
    by_workers = {speed["num_workers"]: speed["samples_per_s"] for speed in rank["speeds"]}
    assert by_workers[2] == pytest.approx(2 * by_workers[0], rel=0.01)  # samples that wait need no core


def test_the_losses_are_those_of_the_unchanged_job(waiting: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, done = waiting
    plain = run(*job(out.parent, "--sleep-ms", "0", "--step-ms", "0"))
    assert plain.stdout and done.stdout == plain.stdout


def test_causes_are_reported_if_the_training_waits_and_only_then(tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ("--workers", "1", "--step-ms", "40", "--samples", "200", "--epochs", "1")
    done = run(*DATA, "profile", "--json", "--out", str(out), "--", *job(tmp_path, *options))
    assert done.returncode == 0, done.stderr
    profile = json.loads(done.stdout.splitlines()[-1])
    (rank,) = profile["ranks"]
    waits = rank["loader_wait_s"] >= 0.05 * rank["step_s"]  # on an idle machine it does not
    assert profile["is_waiting"] is waits and bool(profile["causes"]) is waits
    assert rank["num_workers"] == 1 and rank["busy_share"] is not None
    assert {speed["num_workers"] for speed in rank["speeds"]} >= {0, 1}


def test_the_code_of_the_job_is_passed_on(tmp_path: Path) -> None:
    done = run(*DATA, "profile", "--out", str(tmp_path / "out"), "--", sys.executable, "-c", "raise SystemExit(7)")
    assert done.returncode == 7
    assert "No process of this job made a batch with a torch DataLoader." in done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["show", "missing"], "`missing` is not a recording"),
        (["show", ""], "a path must not be empty"),
        (["profile"], "missing argument 'COMMAND...'"),
        (["profile", "--", "no-such-program"], "no-such-program"),
    ],
)
def test_what_makes_no_sense_is_one_line(words: list[str], text: str, tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "out")] if words[0] == "profile" else []
    done = run(*DATA, words[0], *out, *words[1:])
    assert done.returncode in (2, 127)
    assert text in done.stderr and "Traceback" not in done.stderr


def test_a_recording_without_stages_is_refused_with_the_way_out() -> None:
    recording = Path(__file__).parents[1] / "profile" / "golden" / "of_0_1"
    done = run(*DATA, "show", str(recording))
    assert done.returncode == 2
    assert "has no stages of batches" in done.stderr and "flatout data profile -- COMMAND" in done.stderr


@pytest.mark.parametrize("code", [0, None])  # None: it was ended by a signal
def test_a_command_that_ran_is_to_be_tuned_next(code: int | None, capsys: pytest.CaptureFixture[str]) -> None:
    _report(NOTHING_MEASURED, ["python", "train.py"], code, json=False)
    assert capsys.readouterr().err.splitlines()[-1] == "next: flatout tune -- python train.py"


def test_a_command_that_failed_is_not_to_be_tuned_next(capsys: pytest.CaptureFixture[str]) -> None:
    _report(NOTHING_MEASURED, ["false"], 3, json=False)
    said = capsys.readouterr().err
    assert said.endswith("\nthe command failed with exit code 3: correct it before you tune it\n")
    assert "flatout tune" not in said
