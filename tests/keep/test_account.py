"""Each device's time is in exactly one class, whatever the ranks do and whenever one looks."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.keep.beating import Clock, Rank

from flatout.keep.account import CLASSES, Account, AttemptOutcome
from flatout.keep.clocks import ClockWatch
from flatout.keep.heartbeats import HeartbeatReader, HeartbeatSample, ranks_of
from flatout.keep.step_breakdown import StepBreakdown, StepShares
from flatout.keep.suspensions import Suspensions

S = 1_000_000_000
GPU = "GPU-8f3a2b1c-0000-1111-2222-333344445555"
ACTIVITIES = st.tuples(
    st.sampled_from(["data", "compute", "checkpoint", "evaluation", "step", "look", "exchange"]), st.integers(1, 20 * S)
)
ATTEMPTS = st.lists(
    st.tuples(
        st.lists(st.lists(ACTIVITIES, max_size=12), min_size=0, max_size=3),  # by rank
        st.sampled_from(["done", "failed", "hang"]),
        st.sampled_from([0, 3, None]),  # the step that it resumed from
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    attempts=ATTEMPTS,
    num_devices=st.sampled_from([None, 1, 4]),
    recorded=st.sampled_from([None, (1, 0.2, 0.5), (2, 0.7, 0.9), (3, 0.3, None)]),
    clock_hz=st.sampled_from([0.0, 1.0e9, 1.9e9]),
)
def test_classes_sum_to_the_allocated_time(
    attempts: list[tuple[list[list[tuple[str, int]]], AttemptOutcome, int | None]],
    num_devices: int | None,
    recorded: tuple[int, float, float | None] | None,
    clock_hz: float,
) -> None:
    clock = Clock()
    start = clock.ns
    gpu = {"uuid": GPU, "sm_clock_hz": clock_hz, "max_sm_clock_hz": 2e9, "throttle": ["power_brake"]}
    shares = None
    if recorded is not None:
        shares = StepShares(num_ranks=recorded[0], communication=recorded[1], wait=recorded[2])
    account = Account(start, num_devices, StepBreakdown(clocks=ClockWatch(lambda: [gpu]), recorded=shares))
    found: Counter[str] = Counter()
    begins = [start] * (num_devices or 0)  # of each device: with the run, or with the attempt that brought it
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for number, (scripts, outcome, base) in enumerate(attempts):
            state = Path(folder) / str(number)
            begin = clock.ns
            begins += [begin if begins and number else start] * (len(scripts) - len(begins))
            ranks = []
            for rank in range(len(scripts)):
                clock.ns = begin
                ranks.append(Rank(state, rank, len(scripts), clock, patch))
                ranks[-1].beat.is_on(UUID(GPU.removeprefix("GPU-")).bytes)
            beats = HeartbeatReader(state)
            account.attempt_begins(begin, is_first=number == 0, farthest=2 * number)

            def known(pulse: HeartbeatSample, base: int | None = base) -> int | None:
                return base

            for rank, script in zip(ranks, scripts, strict=True):
                for place, (what, ns) in enumerate(script):
                    if what == "exchange":
                        rank.beat.exchanged(place + 2, ns, per_step=1, num_ranks=len(scripts))
                    elif what == "step":
                        rank.steps()
                    elif what == "look":
                        found.update(account.look(max(one.ns for one in ranks), ranks_of(beats.read()), known))
                    else:
                        rank.spends(what, ns)
            clock.ns = max([begin, *(rank.ns for rank in ranks)]) + S
            if number == len(attempts) - 1 and not scripts:
                account.assume(1)
            found.update(account.attempt_ends(clock.ns, ranks_of(beats.read()), known, outcome))
            beats.close()
    steps_ns, known_ns, _ = account.take_known()
    for by_basis in known_ns.values():
        assert sum(by_basis.values()) <= steps_ns <= sum(found.values())
    assert set(found) <= set(CLASSES)
    assert all(value > 0 for value in found.values())
    assert sum(found.values()) == sum(clock.ns - began for began in begins or [start])


def test_what_a_script_spends_is_found_in_its_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    account = Account(clock.ns)
    rank = Rank(tmp_path / "0", 0, 1, clock, monkeypatch)
    account.attempt_begins(clock.ns, is_first=True, farthest=0)
    rank.spends("compute", 5 * S)
    rank.spends("data", 2 * S)
    rank.steps()  # start-up: 5 s, and 2 s of data
    for _ in range(3):
        rank.spends("data", S)
        rank.spends("compute", 4 * S)
        rank.steps()
    rank.spends("evaluation", 30 * S)
    rank.spends("checkpoint", 7 * S)
    rank.spends("compute", S)
    beats = HeartbeatReader(tmp_path / "0")
    found = account.attempt_ends(rank.ns, ranks_of(beats.read()), lambda pulse: 0, "done")
    assert found == {
        "start_up": 5 * S,
        "data": 5 * S,
        "productive": 12 * S,
        "evaluation": 30 * S,
        "checkpoint": 7 * S,
        "other": S,
    }


@pytest.mark.parametrize(
    ("base", "expected"), [(0, {"recomputed": 3}), (2, {"recomputed": 2, "productive": 1}), (9, {"productive": 3})]
)
def test_steps_that_were_made_before_are_recomputed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: int, expected: dict[str, int]
) -> None:
    """The first step belongs to the restart; of the three after it, those up to step 5 are recomputed."""
    clock = Clock()
    account = Account(clock.ns)
    rank = Rank(tmp_path / "0", 0, 1, clock, monkeypatch)
    account.attempt_begins(clock.ns, is_first=False, farthest=5)
    for _ in range(4):
        rank.spends("compute", S)
        rank.steps()
    beats = HeartbeatReader(tmp_path / "0")
    found = account.attempt_ends(rank.ns, ranks_of(beats.read()), lambda pulse: base, "done")
    assert found == {"restart": S, **{name: count * S for name, count in expected.items()}}


def test_steps_of_unknown_number_are_unknown_and_not_productive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    account = Account(clock.ns)
    rank = Rank(tmp_path / "0", 0, 1, clock, monkeypatch)
    account.attempt_begins(clock.ns, is_first=False, farthest=5)
    for _ in range(3):
        rank.spends("compute", S)
        rank.steps()
    found = account.attempt_ends(rank.ns, ranks_of(HeartbeatReader(tmp_path / "0").read()), lambda pulse: None, "done")
    assert found == {"restart": S, "unknown": 2 * S}


def test_a_part_that_is_kept_in_evaluation_mode_while_it_is_trained_is_no_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    account = Account(clock.ns)
    rank = Rank(tmp_path / "0", 0, 1, clock, monkeypatch)
    account.attempt_begins(clock.ns, is_first=True, farthest=0)
    for _ in range(3):
        rank.beat.evaluates(True)  # frozen batch norms: model.bn.eval() in each step, and no model.train() after it
        rank.spends("compute", S)
        rank.steps()
    found = account.attempt_ends(rank.ns, ranks_of(HeartbeatReader(tmp_path / "0").read()), lambda pulse: 0, "done")
    assert found == {"start_up": S, "productive": 2 * S}


def test_ranks_that_the_launcher_itself_starts_again_begin_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    account = Account(clock.ns)
    account.attempt_begins(clock.ns, is_first=True, farthest=0)
    first = Rank(tmp_path / "0", 0, 1, clock, monkeypatch)
    for _ in range(4):
        first.spends("compute", S)
        first.steps()
    found = Counter(account.look(first.ns, ranks_of(HeartbeatReader(tmp_path / "0").read()), lambda pulse: 0))
    clock.ns = first.ns + S
    again = Rank(tmp_path / "1", 0, 1, clock, monkeypatch)
    again.path = again.path.rename(again.path.with_name(again.path.name + "7"))  # another process
    for _ in range(6):
        again.spends("compute", S)
        again.steps()
    found.update(
        account.attempt_ends(again.ns, ranks_of(HeartbeatReader(tmp_path / "1").read()), lambda pulse: 0, "done")
    )
    assert found == {"start_up": S, "productive": 3 * S + 2 * S, "restart": 2 * S, "recomputed": 3 * S}


def test_a_second_rank_that_is_seen_before_the_first_is_no_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    account = Account(clock.ns)
    account.attempt_begins(clock.ns, is_first=True, farthest=0)
    second = Rank(tmp_path, 1, 2, clock, monkeypatch)
    found = Counter(account.look(clock.ns, ranks_of(HeartbeatReader(tmp_path).read()), lambda pulse: 0))
    ranks = [Rank(tmp_path, 0, 2, clock, monkeypatch), second]
    for rank in ranks:
        rank.spends("compute", S)
        rank.steps()
    found.update(account.attempt_ends(clock.ns, ranks_of(HeartbeatReader(tmp_path).read()), lambda pulse: 0, "done"))
    assert found == {"start_up": 2 * S}


def test_devices_without_a_rank_are_held_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    account = Account(clock.ns, 8)
    rank = Rank(tmp_path / "0", 0, 1, clock, monkeypatch)
    account.attempt_begins(clock.ns, is_first=True, farthest=0)
    for _ in range(2):
        rank.spends("compute", S)
        rank.steps()
    found = account.attempt_ends(rank.ns, ranks_of(HeartbeatReader(tmp_path / "0").read()), lambda pulse: 0, "done")
    assert found == {"start_up": S, "productive": S, "idle_held": 14 * S}


@pytest.mark.parametrize(("phase", "data_s", "productive_s"), [("compute", 30, 20), ("data", 10, 40)])
def test_time_in_which_a_rank_was_suspended_is_not_productive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str, data_s: int, productive_s: int
) -> None:
    clock = Clock()
    rank = Rank(tmp_path, 0, 1, clock, monkeypatch)
    account = Account(clock.ns, 1)
    reader = HeartbeatReader(tmp_path)
    rank.spends("compute", S)
    rank.steps()
    total = Counter(account.look(clock.ns, ranks_of(reader.read()), lambda pulse: 0))
    rank.spends("data", 30 * S)
    rank.spends("compute", 40 * S)
    account.suspends(0, phase, 15 * S)
    account.suspends(0, phase, 5 * S)
    rank.steps()
    total.update(account.look(clock.ns, ranks_of(reader.read()), lambda pulse: 0))
    rank.spends("compute", 7 * S)
    account.suspends(0, "compute", 3 * S)
    total.update(account.attempt_ends(clock.ns, ranks_of(reader.read()), lambda pulse: 0, "hang"))
    assert total["suspended"] == 23 * S and total["hang"] == 4 * S
    assert (total["data"], total["productive"]) == (data_s * S, productive_s * S)
    assert sum(total.values()) == 78 * S


def test_a_rank_is_suspended_while_it_is_stopped_and_with_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Rank(tmp_path, 0, 1, Clock(), monkeypatch)
    (pulse,) = HeartbeatReader(tmp_path).read()
    stopped = msgspec.structs.replace(pulse, is_stopped=True)
    suspensions = Suspensions()
    assert suspensions.look(0, [pulse]) == {}
    assert suspensions.look(S, [stopped]) == {}, "it was seen at work a second ago"
    assert suspensions.look(3 * S, [stopped]) == {0: 2 * S}
    assert suspensions.look(4 * S, [pulse]) == {}
    assert suspensions.look(14 * S, [pulse]) == {}, "ten seconds without a look are nothing unusual"
    assert suspensions.look(24 * S + 1, [pulse]) == {0: 10 * S + 1}
