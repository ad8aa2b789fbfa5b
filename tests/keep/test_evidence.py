"""Whose failure ended an attempt: a rank's, and not that of a program beside it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from tests.keep.beating import Clock, Rank

from flatout.keep.evidence import Death, Failure, evidence_of, failures_of
from flatout.keep.heartbeats import HeartbeatReader
from flatout.keep.rules import judge
from flatout.launch import ExitStatus


def noted(
    folder: Path,
    pid: int,
    *,
    rank: int = 0,
    has_torch: bool = False,
    exception: str = "ImportError",
    message: str = "no",
) -> None:
    failure = Failure(
        rank=rank,
        hostname=os.uname().nodename,
        pid=pid,
        unix_s=float(pid),
        kind="error",
        where=None,
        exception=exception,
        message=message,
        has_torch=has_torch,
        age_s=1.0,
    )
    (folder / f"failure-host-{pid}.json").write_bytes(msgspec.json.encode(failure))


def test_a_process_without_torch_with_the_number_of_a_rank_that_was_seen_is_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Rank(tmp_path, 0, 2, Clock(), monkeypatch)
    pulses = HeartbeatReader(tmp_path).read()
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
    ended = ExitStatus(code=code, signal=signal, start_unix_s=0.0, end_unix_s=1.0)
    noted(tmp_path, 1, exception=exception)
    assert bool(evidence_of(ended, [], tmp_path, deaths={}).failures) is is_cause
    noted(tmp_path, 2, exception=exception, has_torch=True)
    assert evidence_of(ended, [], tmp_path, deaths={}).failures[-1].pid == 2


@pytest.mark.parametrize(
    ("deaths", "killed"),
    [
        # Rank 0 raised, as rank 1 had gone: whether the kernel still tells how each ended is a matter of the moment.
        ((0, 9), (1,)),
        ((0, None), (1,)),
        ((15, None), (1,)),
        ((None, None), (1,)),
        ((15, 15), (1,)),
        ((0, 0), (1,)),
    ],
)
def test_a_killed_rank_is_found_beside_one_that_says_that_it_has_gone(
    deaths: tuple[int | None, int | None], killed: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in (0, 1):
        Rank(tmp_path, rank, 2, Clock(), monkeypatch)
    pulses = [
        msgspec.structs.replace(one, pid=10 + one.rank)
        for one in HeartbeatReader(tmp_path).read()
        if one.rank is not None
    ]
    noted(tmp_path, 10, has_torch=True, exception="DistNetworkError", message="Connection closed by peer")
    evidence = evidence_of(
        ExitStatus(code=1, signal=None, start_unix_s=0.0, end_unix_s=1.0),
        pulses,
        tmp_path,
        deaths={one.name: Death(0.25 * one.rank, deaths[one.rank]) for one in pulses if one.rank is not None},
    )
    assert evidence.killed == killed and judge(evidence).rule == "killed"
    assert evidence.host == os.uname().nodename


@pytest.mark.parametrize(
    ("deaths", "killed"),
    [
        ({0: Death(1.0, 15), 1: Death(1.0, 9)}, (1,)),
        ({0: Death(1.0, 15), 1: Death(2.0, None)}, (1,)),
        ({0: Death(1.0, None), 1: Death(2.0, None)}, (0,)),
        ({0: Death(1.0, None), 1: Death(1.0, None)}, (0, 1)),
        ({0: Death(1.0, 9), 1: Death(2.0, 9)}, (0,)),
        ({0: Death(1.0, 15), 1: Death(2.0, 15)}, (0,)),
    ],
)
def test_of_ranks_without_a_word_the_first_that_the_launcher_did_not_end_is_the_cause(
    deaths: dict[int, Death], killed: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in (0, 1):
        Rank(tmp_path, rank, 2, Clock(), monkeypatch)
    pulses = HeartbeatReader(tmp_path).read()
    named = {one.name: deaths[one.rank] for one in pulses if one.rank is not None}
    ended = ExitStatus(code=1, signal=None, start_unix_s=0.0, end_unix_s=1.0)
    assert evidence_of(ended, pulses, tmp_path, deaths=named).killed == killed
