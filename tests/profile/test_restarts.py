"""Ranks that are started again are recorded apart, and the last attempt with a trace is read."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.profile.runs import job, profiling, run, torchrun

from flatout.diagnosis_pipeline import diagnose_paths
from flatout.errors import OutputError
from flatout.profile import read_recording
from flatout.profile.folder import open_folder

pytestmark = pytest.mark.usefixtures("warm")


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two attempts: the first is ended by rank 1 in its 80th step, the second runs to its end.

    The window begins 0.3 s after the plan, or 30 of these steps, so both have a trace.

    On a busy machine gloo may not connect again after a restart, without Flatout too: the job fails or hangs then, and
    is run once more.
    """
    done = None
    for number in range(4):
        out = tmp_path_factory.mktemp("restarted") / "r"
        command = torchrun("--steps", 160, "--pause", 0.01, "--end", "first-attempt", "--port", 29571 + 2 * number)
        command.insert(command.index("--standalone"), "--max-restarts=1")
        try:
            done = run([*profiling(out, "--warmup", "12"), *command])
        except subprocess.TimeoutExpired:
            continue
        if done.returncode == 0 and all((out / f"rank{rank}.json.gz").exists() for rank in (0, 1)):
            assert "the ranks were restarted: 2 attempts were recorded" in done.stderr
            return out
    last_output = "no run ended" if done is None else done.stderr
    raise AssertionError(f"the job was not restarted in four runs: {last_output}")


def test_the_last_attempt_with_a_trace_is_read(restarted: Path) -> None:
    recording = read_recording(restarted)
    assert (recording.attempt, recording.num_attempts) == (1, 2)
    assert [len(rank.steps.number) for rank in recording.ranks] == [160, 160]
    assert sorted(file.name for file in restarted.glob("attempts/1/*")) == sorted(
        f"rank{rank}.{end}" for rank in (0, 1) for end in ("json.gz", "steps.jsonl")
    )
    assert (restarted / "rank1.steps.jsonl").exists()
    job = diagnose_paths([restarted]).diagnosis.job
    assert job.num_ranks == 2


def test_the_first_attempt_is_read_where_only_it_has_a_trace(restarted: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(restarted, copy)
    assert (copy / "rank1.json.gz").exists()
    for trace in copy.glob("attempts/1/*.json.gz"):
        trace.unlink()
    recording = read_recording(copy)
    assert recording.attempt == 0
    assert all(len(rank.steps.number) < 160 for rank in recording.ranks)
    assert recording.problems[0].effect == "all numbers are from attempt 1, the last one with a trace"


def test_attempts_are_replaced_with_the_recording_and_nothing_else_is(restarted: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(restarted, copy)
    (copy / "attempts" / "1" / "thesis.tex").write_text("years of work")
    with pytest.raises(OutputError, match="holds more than a recording, such as `attempts`"):
        open_folder(copy, force=True, environment={})
    (copy / "attempts" / "1" / "thesis.tex").unlink()
    done = run([*profiling(copy, "--force"), sys.executable, "-c", "pass"])
    assert done.returncode == 0
    assert not (copy / "attempts").exists()


LOOP = [
    sys.executable,
    "-c",
    "import os, subprocess, sys\n"
    "for turn in '123':\n"
    "    done = subprocess.run(sys.argv[1:], env={**os.environ, 'FLATOUT_TEST_TURN': turn})\n"
    "    if done.returncode == 0:\n"
    "        break\n",
]


def steps_of(folder: Path) -> dict[str, int]:
    """Rows by file, of all attempts."""
    files = [*folder.glob("rank*.steps.jsonl"), *folder.glob("attempts/*/rank*.steps.jsonl")]
    return {
        str(file.relative_to(folder)): sum(line.startswith("[") for line in file.read_text().splitlines())
        for file in files
    }


def test_a_script_that_a_loop_starts_again_after_it_failed_is_a_new_attempt(tmp_path: Path) -> None:
    out = tmp_path / "r"
    done = run([*profiling(out, "--warmup", "12"), *LOOP, *job("--steps", 60, "--end", "raise-in-turn-1")])
    assert done.returncode == 0, done.stderr
    assert "the ranks were restarted: 2 attempts were recorded" in done.stderr
    steps = steps_of(out)
    assert steps.pop("rank0.steps.jsonl") < 60
    assert steps == {"attempts/1/rank0.steps.jsonl": 60}
    assert (out / "attempts/1/rank0.json.gz").exists()


def test_a_torchrun_that_a_loop_starts_again_does_not_mix_its_ranks(tmp_path: Path) -> None:
    """Rank 1 of the first one is ended before it was recorded: its place stays empty."""
    out = tmp_path / "r"
    ranks = [*torchrun("--steps", 60, "--end", "early-in-turn-1")]
    done = run([*profiling(out, "--warmup", "12"), *LOOP, *ranks])
    assert done.returncode == 0, done.stderr
    steps = steps_of(out)
    assert {name: count for name, count in steps.items() if name.startswith("attempts")} == {
        "attempts/1/rank0.steps.jsonl": 60,
        "attempts/1/rank1.steps.jsonl": 60,
    }
    assert "rank1.steps.jsonl" not in steps
    assert read_recording(out).attempt == 1


def test_a_second_program_after_the_first_is_told(tmp_path: Path) -> None:
    out = tmp_path / "r"
    twice = [sys.executable, "-c", "import subprocess, sys; [subprocess.run(sys.argv[1:], check=True) for _ in 'ab']"]
    both = [*twice, *job("--steps", 40)]
    done = run([*profiling(out, "--warmup", "12"), *both])
    assert done.returncode == 0, done.stderr
    assert steps_of(out) == {"rank0.steps.jsonl": 40}
    said = "`job.py` was started after the recorded ranks had ended: 1 such process: not recorded, and in no total"
    assert said in [f"{one.problem}: {one.effect}" for one in read_recording(out).problems]
    assert "`job.py` was started after the recorded ranks had ended" in done.stderr
