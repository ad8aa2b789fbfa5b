"""Jobs that run on after the Flatout command that started them was killed: which are found, and from which folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flatout.inside.protocol import Variable
from flatout.launch.abandoned import abandoned_jobs, has_lost_its_starter, note_starter, remove_note

LEAVES_NOTE = (
    "import sys; from pathlib import Path; from flatout.launch.abandoned import note_starter;"
    "note_starter(Path(sys.argv[1]), 'flatout profile', 'train *** x\\ny')"
)
StartJob = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the notes of a recording, in a working folder of the test's own."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "recording" / ".state"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def start_job(notes: Path) -> Iterator[StartJob]:
    started: list[subprocess.Popen[bytes]] = []

    def start(**variables: str) -> subprocess.Popen[bytes]:
        given = {Variable.RECORDING: str(notes.parent), "PATH": os.environ["PATH"], **variables}
        started.append(subprocess.Popen(["sleep", "60"], env=given))
        return started[-1]

    yield start
    for job in started:
        job.kill()
        job.wait()


def leave_note(folder: Path, *, cwd: Path | None = None) -> None:
    """By a process that has ended, as one that was killed."""
    subprocess.run([sys.executable, "-c", LEAVES_NOTE, str(folder)], check=True, cwd=cwd)


def test_a_job_is_told_of_with_its_first_process(notes: Path, start_job: StartJob) -> None:
    leave_note(notes)
    assert abandoned_jobs() == []
    first = start_job()
    start_job()
    (abandoned,) = abandoned_jobs()
    assert abandoned.describe() == (
        f"a job whose `flatout profile` was killed is still running, unmonitored: process {first.pid}, train *** x\\ny "
        f"(`kill {first.pid}` ends it)"
    )


def test_a_job_of_another_folder_is_not_told_of(notes: Path, start_job: StartJob, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    leave_note(notes, cwd=elsewhere)
    start_job()
    assert abandoned_jobs() == []
    os.chdir(elsewhere)
    assert len(abandoned_jobs()) == 1


def test_a_job_that_is_monitored_and_one_without_a_note_are_not_abandoned(notes: Path, start_job: StartJob) -> None:
    start_job()
    assert abandoned_jobs() == [] and not has_lost_its_starter(notes)
    note_starter(notes, "flatout profile", "train")
    assert abandoned_jobs() == [] and not has_lost_its_starter(notes)
    leave_note(notes)
    assert abandoned_jobs() == [], "of two hosts, one monitors it"
    remove_note(notes)
    assert len(abandoned_jobs()) == 1 and has_lost_its_starter(notes)


def test_a_job_of_flatout_run_is_found_by_its_own_variable(notes: Path, start_job: StartJob) -> None:
    leave_note(notes)
    job = start_job(**{Variable.RECORDING: "", Variable.SAVES: str(notes)})
    assert [abandoned.pid for abandoned in abandoned_jobs()] == [job.pid]


def test_trials_of_a_tuning_are_left_to_its_guard(notes: Path, start_job: StartJob) -> None:
    leave_note(notes)
    start_job(**{Variable.TUNING: "x"})
    assert abandoned_jobs() == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"process": 1}', b"\xff"])
def test_a_damaged_note_is_none(notes: Path, start_job: StartJob, content: bytes) -> None:
    start_job()
    (notes / "starter-x-1.json").write_bytes(content)
    assert abandoned_jobs() == []


def test_a_note_is_for_its_user_alone(notes: Path) -> None:
    note_starter(notes, "flatout profile", "train")
    (path,) = notes.iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
