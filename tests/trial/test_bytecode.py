"""Bytecode is kept between trials where the job loses it, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.trial.recordings import START_UNIX_S, rank

from flatout.records.recording import RankRecording
from flatout.records.start_costs import StartTimes
from flatout.trial.bytecode import Bytecode

TORCH = "/home/user/project/.venv/torch/__pycache__/__init__.cpython-311.pyc"


def with_bytecode(path: str | None, written_s: float | None) -> RankRecording:
    started = StartTimes(process_s=None, torch_s=0.0, bytecode=path, bytecode_s=written_s)
    return msgspec.structs.replace(rank(), started=started)


@pytest.mark.parametrize(
    ("path", "written_s", "overlaid", "is_kept"),
    [
        (TORCH, None, (), True),  # it is not there: it may not be written
        (TORCH, START_UNIX_S - 1, ("/home/user/project",), False),  # it was there before the trial
        (TORCH, START_UNIX_S, ("/home/user/project",), True),  # the trial wrote it, and it is gone with the overlay
        (TORCH, START_UNIX_S, ("/home/user/proj",), False),  # the trial wrote it elsewhere: the next one finds it
        (TORCH, START_UNIX_S, (), False),
        (None, None, (), False),  # unknown
    ],
)
def test_bytecode_is_kept_where_the_next_trial_would_compile_again(
    path: str | None, written_s: float | None, overlaid: tuple[str, ...], is_kept: bool
) -> None:
    bytecode = Bytecode(Path("/out/runs/bytecode"), {"HOME": "/home/user"})
    assert bytecode.learn([with_bytecode(path, written_s)], START_UNIX_S, overlaid) == is_kept
    kept = {"PYTHONPYCACHEPREFIX": "/out/runs/bytecode", "PYTHONDONTWRITEBYTECODE": ""}
    assert bytecode.variables == (kept if is_kept else {})
    if is_kept:  # once is enough
        assert not bytecode.learn([with_bytecode(path, written_s)], START_UNIX_S, overlaid)


def test_a_folder_of_the_users_own_stays() -> None:
    bytecode = Bytecode(Path("/out/runs/bytecode"), {"PYTHONPYCACHEPREFIX": "/cache"})
    assert not bytecode.learn([with_bytecode(TORCH, None)], START_UNIX_S, ())
    assert bytecode.variables == {}


def test_a_recorder_that_says_nothing_of_bytecode_changes_nothing() -> None:
    bytecode = Bytecode(Path("/out/runs/bytecode"), {})
    assert not bytecode.learn([rank()], START_UNIX_S, ())
    assert not bytecode.learn([], START_UNIX_S, ())
