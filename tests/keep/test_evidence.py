"""Whose failure ended an attempt: a rank's, and not that of a program beside it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from tests.keep.beating import Clock, Rank

from flatout.keep.beats import Beats
from flatout.keep.evidence import Failure, evidence_of, failures_of
from flatout.launch import Ended


def noted(folder: Path, pid: int, *, rank: int = 0, has_torch: bool = False, exception: str = "ImportError") -> None:
    failure = Failure(
        rank=rank,
        hostname=os.uname().nodename,
        pid=pid,
        unix_s=float(pid),
        kind="error",
        where=None,
        exception=exception,
        message="no",
        has_torch=has_torch,
        age_s=1.0,
    )
    (folder / f"failure-host-{pid}.json").write_bytes(msgspec.json.encode(failure))


def test_a_process_without_torch_with_the_number_of_a_rank_that_was_seen_is_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Rank(tmp_path, 0, 2, Clock(), monkeypatch)
    pulses = Beats(tmp_path).read()
    noted(tmp_path, 1, rank=0)
    assert failures_of(tmp_path, pulses) == ()
    noted(tmp_path, 2, rank=1)
    assert [one.pid for one in failures_of(tmp_path, pulses)] == [2], "of a rank that never came so far"
    noted(tmp_path, 3, rank=0, has_torch=True)
    assert [one.pid for one in failures_of(tmp_path, pulses)] == [2, 3]
    noted(tmp_path, os.getpid(), rank=0, has_torch=True)
    assert [one.pid for one in failures_of(tmp_path, pulses)] == [os.getpid()], "the rank itself"
    assert [one.pid for one in failures_of(tmp_path, [])] == [1, 2, 3, os.getpid()]


@pytest.mark.parametrize(
    ("code", "signal", "exception", "is_cause"),
    [
        (1, None, "ImportError", True),
        (2, None, "SystemExit", True),
        (1, None, "SystemExit", True),  # of a launcher
        (2, None, "ImportError", False),
        (9, None, "ImportError", False),
        (137, None, "ImportError", False),
        (None, 9, "ImportError", False),
    ],
)
def test_without_torch_it_is_the_cause_only_if_the_job_ended_as_by_it(
    tmp_path: Path, code: int | None, signal: int | None, exception: str, is_cause: bool
) -> None:
    ended = Ended(code=code, signal=signal, start_unix_s=0.0, end_unix_s=1.0)
    noted(tmp_path, 1, exception=exception)
    assert bool(evidence_of(ended, [], tmp_path, gone={}).failures) is is_cause
    noted(tmp_path, 2, exception=exception, has_torch=True)
    assert evidence_of(ended, [], tmp_path, gone={}).failures[-1].pid == 2
