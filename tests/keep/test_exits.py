"""Which rank left first, on ends that were made up; and what a rank leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from tests.keep.test_hang import pulse

from flatout.inside.failure.stderr_tail import StderrTail
from flatout.inside.protocol import STDERR_BYTES
from flatout.keep.attempt import _Deaths
from flatout.keep.exits import Death, RankExit, StderrFile, left_first, rank_exits, stderr_tail


def ended(rank: int, at_s: float, **changes: object) -> RankExit:
    return RankExit(**{"rank": rank, "hostname": "host", "at_s": at_s, **changes})  # type: ignore[arg-type]


REGULAR = {"code": 0, "is_orderly": True}


def test_the_first_rank_that_ends_itself_is_named() -> None:
    exits = [ended(1, 1.0, code=3, is_orderly=True), ended(2, 2.0, code=4), ended(0, 3.0, signal=signal.SIGTERM)]
    first = left_first(exits, 1.2)
    assert first is not None and first.rank == 1


def test_ranks_that_the_launcher_ends_are_no_cause() -> None:
    assert left_first([ended(0, 1.0, signal=signal.SIGTERM), ended(1, 1.0, signal=signal.SIGTERM)], 2.0) is None
    assert left_first([ended(0, 1.0)], 2.0) is None, "nothing is known of its end"


def test_a_regular_end_is_a_cause_only_if_a_rank_complains_after_it() -> None:
    assert left_first([ended(0, 1.0, **REGULAR)], None) is None
    first = left_first([ended(0, 1.0, **REGULAR)], 1.5)
    assert first is not None and first.rank == 0


@pytest.mark.parametrize(("after_s", "is_cause"), [(0.49, True), (0.51, False)])
def test_an_end_after_the_first_complaint_only_follows(after_s: float, is_cause: bool) -> None:
    assert (left_first([ended(0, 5.0 + after_s, code=1)], 5.0) is not None) is is_cause
    assert left_first([ended(0, 5.0 + after_s, signal=signal.SIGSEGV)], 5.0) is not None, "a crash never only follows"


@pytest.mark.parametrize(("alive_s", "is_cause"), [(4.9, True), (5.0, True), (5.1, False), (None, False)])
def test_an_end_that_was_seen_late_is_the_cause_unless_the_rank_was_alive_after_the_first_complaint(
    alive_s: float | None, is_cause: bool
) -> None:
    assert (left_first([ended(1, 7.0, code=3, alive_s=alive_s)], 5.0) is not None) is is_cause


@pytest.mark.parametrize(("phase_since_s", "alive_at", "alive_s"), [(4.0, 4.6, 4.6), (4.7, 4.6, 4.7), (4.7, None, 4.7)])
def test_a_rank_was_alive_when_it_was_seen_so_and_when_it_last_changed_its_phase(
    tmp_path: Path, phase_since_s: float, alive_at: float | None, alive_s: float
) -> None:
    death = Death(7.0, 0, 3, alive_at)
    (one,) = rank_exits(tmp_path, [pulse(1, phase_since_s=phase_since_s)], {"host-1": death}, noted=set())
    assert (one.at_s, one.alive_s) == (7.0, alive_s)


def test_a_rank_is_last_seen_alive_by_the_look_before_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((10.0, 11.0, 15.0))
    monkeypatch.setattr("flatout.keep.attempt.time", SimpleNamespace(monotonic=lambda: next(clock)))
    deaths = _Deaths()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        deaths.follow([pulse(0, pid=process.pid)])
        deaths.look()
        deaths.look()
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and the kernel still tells how
        deaths.look()
        assert deaths.found == {"host-0": Death(15.0, signal.SIGKILL, 0, alive_at=11.0)}


def test_code_and_signal_come_from_the_kernel_or_else_from_the_launcher(tmp_path: Path) -> None:
    children = [{"rank": rank, "pid": 1000 + rank, "code": code} for rank, code in ((0, 3), (1, -6), (2, 9))]
    (tmp_path / "children-host-7.json").write_bytes(
        msgspec.json.encode({"hostname": "host", "children": children, "unix_s": 1.0})
    )
    (tmp_path / "children-host-8.json").write_text("{")
    pulses = [pulse(rank) for rank in range(4)]
    deaths = {
        "host-0": Death(1.0, None),
        "host-1": Death(2.0, None),
        "host-2": Death(3.0, 0, 5),
        "host-3": Death(4.0, 11, 0),
    }
    exits = rank_exits(tmp_path, pulses, deaths, noted=set())
    assert [(one.rank, one.code, one.signal) for one in exits] == [
        (0, 3, None),
        (1, None, 6),
        (2, 5, None),
        (3, None, 11),
    ]
    assert [one.rank for one in rank_exits(tmp_path, pulses, deaths, noted={("host", 1000), ("host", 1001)})] == [2, 3]


@pytest.mark.parametrize(("is_whole", "code"), [(True, 0), (False, None)])
def test_a_rank_that_is_not_among_all_that_failed_ended_with_0(
    tmp_path: Path, is_whole: bool, code: int | None
) -> None:
    """`os._exit(0)`: torchrun has reaped it, and names the other rank only. `spawn` names one rank, whoever failed."""
    children = [{"rank": 0, "pid": 1000, "code": 1}]
    content = {"hostname": "host", "children": children, "unix_s": 1.0, "is_whole": is_whole}
    (tmp_path / "children-host-7.json").write_bytes(msgspec.json.encode(content))
    deaths = {"host-1": Death(1.0, None), "elsewhere-2": Death(2.0, None)}
    (one,) = rank_exits(tmp_path, [pulse(1)], deaths, noted=set())
    assert (one.code, one.is_orderly, one.is_regular) == (code, False, is_whole)
    assert (left_first([one], first_complaint_s=1.2) == one) is is_whole
    assert left_first([one], first_complaint_s=None) is None  # nobody misses it


def test_a_rank_that_ended_in_order_tells_when(tmp_path: Path) -> None:
    exits = rank_exits(tmp_path, [pulse(0, has_ended=True, ended_s=7.5)], {"host-0": Death(9.0, 0, 3)}, noted=set())
    assert [(one.at_s, one.code, one.is_orderly) for one in exits] == [(7.5, 3, True)]
    assert rank_exits(tmp_path, [pulse(0)], {}, noted=set()) == ()


def test_the_stack_of_a_crash_and_the_last_lines_are_read(tmp_path: Path) -> None:
    (tmp_path / "crash-host-1").write_text(
        "Fatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n"
        '  File "/job/train.py", line 47 in fault\n'
    )
    (tmp_path / "stderr-host-1").write_bytes((7).to_bytes(8, "little") + b"a\n\nbye\n".ljust(STDERR_BYTES - 8, b"\0"))
    (one,) = rank_exits(tmp_path, [pulse(1)], {"host-1": Death(1.0, signal.SIGABRT, 0)}, noted=set())
    assert one.is_crash and one.stack is not None and str(one.stack.user_frame()) == "train.py:47 in fault"
    assert one.last_lines == ("a", "bye")


@pytest.mark.parametrize("num_lines", [1, 3, 400, 2000])
def test_the_end_of_standard_error_survives_in_a_ring(tmp_path: Path, num_lines: int) -> None:
    tail = StderrTail(tmp_path)
    for number in range(num_lines):
        tail.add(f"line {number}\n")
    (file,) = tmp_path.glob("stderr-*")
    lines = stderr_tail(file.read_bytes()).splitlines()
    assert lines == [f"line {number}" for number in range(num_lines - len(lines), num_lines)]
    assert len(lines) == num_lines if num_lines < 400 else 300 < len(lines) < 600


def test_a_text_longer_than_the_ring_leaves_its_end(tmp_path: Path) -> None:
    tail = StderrTail(tmp_path)
    tail.add("x" * 10_000 + "\nthe end\n")
    (file,) = tmp_path.glob("stderr-*")
    assert stderr_tail(file.read_bytes()) == "the end\n"


@pytest.mark.parametrize("length", [0, 3, 8, 9, 40])
def test_a_ring_that_was_cut_has_at_most_its_text(tmp_path: Path, length: int) -> None:
    tail = StderrTail(tmp_path)
    tail.add("x" * 10_000 + "\nthe end\n")
    (file,) = tmp_path.glob("stderr-*")
    assert "the end" not in stderr_tail(file.read_bytes()[:length])


def test_what_is_added_to_a_file_of_standard_error_is_read_back(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+") as file:
        print("before", file=file, flush=True)
        added = StderrFile(file.fileno())
        assert added.lines() == []
        print("terminate called", file=file, flush=True)
        assert added.lines() == ["terminate called"]
    assert StderrFile(999_999).lines() == []
