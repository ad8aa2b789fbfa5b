"""What is a hang and what is not, and who is to blame, on pulses and stacks that were made up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from flatout.keep.busy import ProcessUsage
from flatout.keep.flight import FlightRecord
from flatout.keep.hang import Hang
from flatout.keep.hang_timeout import HangTimeout
from flatout.keep.hang_watch import HangWatch
from flatout.keep.heartbeats import HeartbeatSample
from flatout.keep.peer_board import PeerRank, PeerStatus
from flatout.keep.stacks import Stack, parse

TORCH = "/env/lib/python3.11/site-packages/torch/"
ALL_REDUCE = [
    (f"{TORCH}distributed/distributed_c10d.py", "all_reduce"),
    (f"{TORCH}distributed/c10d_logger.py", "wrapper"),
    ("/job/train.py", "reduce_metrics"),
]
BARRIER = [(f"{TORCH}distributed/distributed_c10d.py", "barrier"), ("/job/train.py", "sync")]
BACKWARD = [(f"{TORCH}autograd/graph.py", "_engine_run_backward"), ("/job/train.py", "main")]
READING = [("/job/data.py", "__getitem__"), (f"{TORCH}utils/data/dataloader.py", "__next__"), ("/job/train.py", "main")]
SLEEPING = [("/job/train.py", "main")]
PHASES = ("compute", "data", "checkpoint", "evaluation")


def pulse(rank: int, **changes: Any) -> HeartbeatSample:
    buckets = [0] * 64
    buckets[27] = 50  # about 0.1 s
    none = dict.fromkeys(PHASES, 0.0)
    base: dict[str, Any] = {
        "name": f"host-{rank}",
        "hostname": "host",
        "pid": 1000 + rank,
        "rank": rank,
        "world_size": 2,
        "is_alive": True,
        "is_local": True,
        "has_ended": False,
        "num_events": 200,
        "num_steps": 51,
        "base_step": 0,
        "has_loaded": False,
        "phase": "compute",
        "phase_since_s": 0.0,
        "began_s": 0.0,
        "first_step_end_s": 1.0,
        "last_step_end_s": 6.0,
        "num_checkpoints": 0,
        "checkpoint_step": None,
        "main_thread": 1,
        "gives_stacks": True,
        "has_gpu": False,
        "gpu": None,
        "exchange": None,
        "sequences": {"0": 52},
        "spent_s": none,
        "spent_at_first_s": none,
        "spent_at_last_s": none,
        "longest_s": none,
        "step_buckets": tuple(buckets),
    }
    return HeartbeatSample(**{**base, **changes})


def stack(frames: list[tuple[str, str]]) -> Stack:
    lines = [f'  File "{file}", line {10 + n} in {function}' for n, (file, function) in enumerate(frames)]
    return parse(1, "\n".join(["Current thread 0x1 (most recent call first):", *lines]), main_thread=1)


def watch(
    pulses: list[HeartbeatSample],
    stacks: Mapping[int, list[tuple[str, str]]] | Any,
    *,
    for_s: float = 30.0,
    work: Any = lambda pid, now: ProcessUsage(cpu_s=0.0, moved_bytes=0),
    fixed_s: float | None = None,
    flight: Any = lambda asked: (),
    others: tuple[PeerStatus, ...] = (),
) -> tuple[Hang | None, float]:
    """The verdict on a job that has been silent from the start, and when it came."""
    now = 0.0

    def ask(asked: Any) -> dict[str, Stack]:
        frames = stacks(now) if callable(stacks) else stacks
        return {one.name: stack(frames[one.rank]) for one in asked}

    watching = HangWatch(HangTimeout(fixed_s), ask, lambda pid: work(pid, now), flight=flight, others=lambda: others)
    while now < for_s:
        found = watching.look(now, pulses)
        if found is not None:
            return found, now
        now += 0.25
    return None, now


def test_the_rank_that_has_begun_fewer_collectives_is_late() -> None:
    ranks = [pulse(0, sequences={"0": 52}), pulse(1, sequences={"0": 51}, phase="data")]
    hang, at = watch(ranks, {0: ALL_REDUCE, 1: READING})
    assert hang is not None and hang.late == (1,)
    assert at < 15, "seconds, not minutes"
    assert hang.describe() == (
        "hang at step 51, after 12 s without progress: "
        "rank 0 waits in collective #52 of the default group (all_reduce); "
        "rank 1 has not arrived: it is in data loading: data.py:10 in __getitem__"
    )


def test_collectives_of_a_subgroup_are_told_by_its_name() -> None:
    ranks = [pulse(n, sequences={"0": 52, f"pair-{n // 2}": 7 - (n == 3)}) for n in range(4)]
    hang, _ = watch(ranks, {0: ALL_REDUCE, 1: ALL_REDUCE, 2: ALL_REDUCE, 3: SLEEPING})
    assert hang is not None and hang.late == (3,) and (hang.group, hang.sequence) == ("pair-1", 7)


def test_of_ranks_in_different_collectives_the_odd_one_is_named() -> None:
    hang, _ = watch([pulse(0), pulse(1)], {0: BACKWARD, 1: BARRIER})
    assert hang is not None and hang.late == (1,)
    where = "it is in the step: barrier, train.py:11 in sync"
    assert f"rank 1 has not arrived at the same collective: {where}" in hang.describe()


def test_the_flight_recorder_tells_what_the_collective_is() -> None:
    ranks = [pulse(0, sequences={"0": 52}), pulse(1, sequences={"0": 51})]
    entries = [
        FlightRecord(profiling_name="nccl:broadcast", collective_seq_id=52, process_group=("7", "tp")),
        FlightRecord(
            profiling_name="nccl:all_reduce",
            collective_seq_id=52,
            process_group=("0", "default_pg"),
            input_sizes=[[3, 4]],
            input_dtypes=["Float"],
        ),
    ]
    hang, _ = watch(ranks, {0: BACKWARD, 1: SLEEPING}, flight=lambda asked: entries)
    assert hang is not None
    assert "rank 0 waits in collective #52 (all_reduce of Float [3, 4]) of the default group" in hang.describe()


def test_where_all_are_in_the_same_collective_no_rank_is_blamed() -> None:
    hang, _ = watch([pulse(0), pulse(1)], {0: ALL_REDUCE, 1: ALL_REDUCE})
    assert hang is not None and hang.late == ()
    assert "ranks 0, 1 wait in collective #52" in hang.describe() and "no rank of this host" in hang.describe()


def test_a_rank_that_died_is_who_the_others_wait_for() -> None:
    dead = [pulse(0), pulse(1, is_alive=False)]
    assert watch(dead, {0: ALL_REDUCE}, for_s=55)[0] is None, "its launcher will notice"
    hang, _ = watch(dead, {0: ALL_REDUCE}, for_s=120)
    assert hang is not None and hang.late == (1,) and "rank 1 has not arrived" in hang.describe()
    assert "it no longer has a process" in hang.describe()


def test_ranks_that_spin_in_one_collective_hang_all_the_same() -> None:
    """As those of NCCL do: a core that is busy with waiting is no work."""
    spins = watch(
        [pulse(0), pulse(1)],
        {0: ALL_REDUCE, 1: ALL_REDUCE},
        work=lambda pid, now: ProcessUsage(cpu_s=now, moved_bytes=0),
    )
    assert spins[0] is not None and spins[0].late == ()


def test_a_rank_that_died_is_to_blame_whatever_the_counts_say() -> None:
    ranks = [pulse(0, sequences={"0": 51}), pulse(1, is_alive=False, sequences={"0": 52})]
    hang, _ = watch(ranks, {0: BARRIER}, for_s=120)
    assert hang is not None and hang.late == (1,)


def test_a_rank_that_has_left_is_who_the_others_wait_for_and_else_no_hang() -> None:
    ranks = [pulse(0), pulse(1, is_alive=False, has_ended=True)]
    hang, _ = watch(ranks, {0: BARRIER}, for_s=120)
    assert hang is not None and hang.late == (1,) and "it has left the job: its script has ended" in hang.describe()
    assert watch(ranks, {0: SLEEPING}, for_s=55)[0] is None, "it may have work that the other one has not"
    working = watch(ranks, {0: SLEEPING}, for_s=600, work=lambda pid, now: ProcessUsage(cpu_s=now, moved_bytes=0))
    assert working[0] is None


@pytest.mark.parametrize("phase", ["evaluation", "checkpoint"])
def test_a_phase_that_is_long_by_nature_has_longer(phase: str) -> None:
    """Rank 0 writes or evaluates alone, in one call that shows nothing; rank 1 waits for it in a barrier."""
    ranks = [pulse(0, phase=phase, sequences={"0": 51}), pulse(1)]
    assert watch(ranks, {0: SLEEPING, 1: BARRIER}, for_s=300)[0] is None
    hang, at = watch(ranks, {0: SLEEPING, 1: BARRIER}, for_s=1500)
    assert hang is not None and hang.late == (0,) and 600 <= at < 1000
    known = [
        pulse(0, phase=phase, sequences={"0": 51}, longest_s={**dict.fromkeys(PHASES, 0.0), phase: 30.0}),
        pulse(1),
    ]
    assert watch(known, {0: SLEEPING, 1: BARRIER}, for_s=85)[0] is None
    assert watch(known, {0: SLEEPING, 1: BARRIER}, for_s=300)[0] is not None, "three times as long as ever before"
    quick = [
        pulse(0, phase=phase, sequences={"0": 51}, longest_s={**dict.fromkeys(PHASES, 0.0), phase: 1.0}),
        pulse(1),
    ]
    hang, at = watch(quick, {0: SLEEPING, 1: BARRIER}, for_s=300)
    assert hang is not None and 60 <= at < 90, "not after 3 s: one of a minute is nothing unusual"


@pytest.mark.parametrize(
    "function", ["evaluate", "estimate_loss_eval", "run_validation", "save_checkpoint", "test", "save_model"]
)
def test_phases_that_no_hook_marks_are_known_by_the_names_of_functions(function: str) -> None:
    ranks = [pulse(0, sequences={"0": 51}), pulse(1)]
    assert watch(ranks, {0: [("/job/train.py", function), *SLEEPING], 1: BARRIER}, for_s=300)[0] is None


def test_a_compilation_has_longest() -> None:
    ranks = [pulse(0, sequences={"0": 51}), pulse(1)]
    compiling = [(f"{TORCH}_inductor/async_compile.py", "wait"), *SLEEPING]
    assert watch(ranks, {0: compiling, 1: BARRIER}, for_s=900)[0] is None
    hang, at = watch(ranks, {0: compiling, 1: BARRIER}, for_s=4000)
    assert hang is not None and 1800 <= at < 2700


def test_a_rank_whose_stack_changes_gets_on() -> None:
    ranks = [pulse(0, sequences={"0": 51}), pulse(1)]
    for_ever = watch(ranks, lambda now: {0: [("/job/a.py", f"f{int(now)}"), *SLEEPING], 1: BARRIER}, for_s=600)
    assert for_ever[0] is None


def test_a_rank_that_computes_or_writes_gets_on_and_so_does_who_waits_for_it() -> None:
    ranks = [pulse(0, sequences={"0": 51}), pulse(1)]

    def computes(pid: int, now: float) -> ProcessUsage:
        return ProcessUsage(cpu_s=now if pid == 1000 else 0.0, moved_bytes=0)

    def writes(pid: int, now: float) -> ProcessUsage:
        return ProcessUsage(cpu_s=0.0, moved_bytes=int(now * 1e6) if pid == 1000 else 0)

    for work in (computes, writes):
        assert watch(ranks, {0: SLEEPING, 1: BARRIER}, for_s=600, work=work)[0] is None
    # The one that waits may spin: it is not the one that matters.
    hang, _ = watch(
        ranks, {0: SLEEPING, 1: BARRIER}, work=lambda pid, now: ProcessUsage(cpu_s=now * (pid == 1001), moved_bytes=0)
    )
    assert hang is not None and hang.late == (0,)


@pytest.mark.parametrize(
    ("cores", "bytes_per_s", "is_hang"), [(1 / 8, 0, False), (0.05, 16_384, True), (0, 5e4, False)]
)
def test_a_rank_with_a_small_part_of_a_core_or_of_a_disk_gets_on(
    cores: float, bytes_per_s: float, is_hang: bool
) -> None:
    """64 processes on 8 cores get an eighth each; threads that poll and some lines in a log are no work."""
    ranks = [pulse(0, sequences={"0": 51}), pulse(1)]

    def work(pid: int, now: float) -> ProcessUsage:
        return ProcessUsage(cpu_s=now * cores, moved_bytes=int(now * bytes_per_s))

    assert (watch(ranks, {0: SLEEPING, 1: BARRIER}, for_s=600, work=work)[0] is not None) == is_hang


def test_one_process_alone_or_one_without_a_stack_may_be_at_rest_for_longer() -> None:
    alone = [pulse(0, world_size=1, sequences={})]
    assert watch(alone, {0: SLEEPING}, for_s=55)[0] is None
    assert watch(alone, {0: SLEEPING}, for_s=120)[0] is not None
    uploading = [pulse(0, sequences={"0": 51}), pulse(1)]
    sending = [
        ("/usr/lib/python3.11/ssl.py", "send"),
        ("/env/site-packages/urllib3/connection.py", "request"),
        *SLEEPING,
    ]
    assert watch(uploading, {0: sending, 1: BARRIER}, for_s=300)[0] is None


def test_nothing_is_known_before_the_third_step() -> None:
    ranks = [
        pulse(0, num_steps=0, step_buckets=(0,) * 64, sequences={"0": 1}),
        pulse(1, num_steps=0, sequences={"0": 0}),
    ]
    assert watch(ranks, {0: BARRIER, 1: SLEEPING}, for_s=295)[0] is None
    hang, at = watch(ranks, {0: BARRIER, 1: SLEEPING}, for_s=400)
    assert hang is not None and hang.late == (1,) and at >= 300


@pytest.mark.parametrize(("num_steps", "is_early"), [(2, False), (3, True)])
def test_from_the_third_step_on_a_hang_is_found_within_seconds(num_steps: int, is_early: bool) -> None:
    ranks = [pulse(0, num_steps=num_steps), pulse(1, num_steps=num_steps, sequences={"0": 51})]
    hang, at = watch(ranks, {0: BARRIER, 1: SLEEPING}, for_s=400)
    assert hang is not None and (at < 15) == is_early


@pytest.mark.parametrize(("shares", "low", "high"), [((40, 60), 680, 1400), ((60, 40), 85, 175)])
def test_the_median_step_decides_how_long_a_job_may_be_silent(shares: tuple[int, int], low: float, high: float) -> None:
    """Some steps take 8.6 to 17 s, the others 69 to 137: ten medians. A look that came too early is made up for."""
    buckets = [0] * 64
    buckets[34], buckets[37] = shares
    slow = [pulse(0, step_buckets=tuple(buckets), sequences={"0": 51}), pulse(1, step_buckets=tuple(buckets))]
    hang, at = watch(slow, {0: SLEEPING, 1: BARRIER}, for_s=3000)
    assert hang is not None and low <= at <= high


@pytest.mark.parametrize(("stall_s", "low", "high"), [(15, 45, 60), (100, 60, 90)])
def test_a_stall_that_once_ended_gives_the_next_one_three_times_as_long_up_to_a_minute(
    stall_s: float, low: float, high: float
) -> None:
    now, resumed_s, hang = 0.0, stall_s + 1, None

    def ask(asked: Any) -> dict[str, Stack]:
        return {one.name: stack([BARRIER, SLEEPING][one.rank]) for one in asked}

    def work(pid: int) -> ProcessUsage:  # in the stall it reads a file
        return ProcessUsage(cpu_s=0.0, moved_bytes=int(1e6 * min(now, resumed_s)))

    watching = HangWatch(HangTimeout(), ask, work)
    while hang is None and now < resumed_s + 200:
        num_events = 200 + (now >= resumed_s)
        late = pulse(1, num_events=num_events, sequences={"0": 51})
        hang = watching.look(now, [pulse(0, num_events=num_events), late])
        now += 0.25
    assert hang is not None and low <= now - resumed_s < high


def test_a_rank_that_is_silent_for_long_is_asked_ever_less_often() -> None:
    """Three times each, from 10 s on and then after half as long again: 10, 15, 22.5, ... in ten minutes ten times."""
    ranks, asked_at, now = [pulse(0, phase="evaluation", sequences={"0": 51}), pulse(1)], [], 0.0

    def ask(asked: Any) -> dict[str, Stack]:
        asked_at.append(now)
        return {one.name: stack([SLEEPING, BARRIER][one.rank]) for one in asked}

    watching = HangWatch(HangTimeout(), ask, lambda pid: ProcessUsage(cpu_s=0.0, moved_bytes=0))
    while now < 590:
        assert watching.look(now, ranks) is None
        now += 0.25
    assert 24 <= len(asked_at) <= 33


def test_long_steps_have_more_patience_and_a_fixed_one_is_obeyed() -> None:
    buckets = [0] * 64
    buckets[36] = 50  # steps of about a minute
    slow = [pulse(0, step_buckets=tuple(buckets), sequences={"0": 51}), pulse(1, step_buckets=tuple(buckets))]
    assert watch(slow, {0: SLEEPING, 1: BARRIER}, for_s=400)[0] is None
    hang, at = watch(slow, {0: SLEEPING, 1: BARRIER}, for_s=400, fixed_s=20)
    assert hang is not None and 20 <= at < 25


@pytest.mark.parametrize(("limit_s", "look_after_s"), [(20.0, 18.0), (4.0, 2.0), (3.0, 1.5)])
def test_a_fixed_limit_leaves_two_seconds_for_the_looks_or_half_of_a_short_limit(
    limit_s: float, look_after_s: float
) -> None:
    assert HangTimeout(limit_s).look_after_s([]) == look_after_s


def test_somebody_in_a_debugger_is_left_alone() -> None:
    ranks = [pulse(0, sequences={"0": 51}), pulse(1)]
    debugging = [("/usr/lib/python3.11/cmd.py", "cmdloop"), ("/usr/lib/python3.11/pdb.py", "interaction"), *SLEEPING]
    assert watch(ranks, {0: debugging, 1: BARRIER}, for_s=600)[0] is None


def test_of_ranks_that_have_all_gone_nothing_is_said() -> None:
    gone = [pulse(0, is_alive=False), pulse(1, is_alive=False)]
    assert watch(gone, {}, for_s=900)[0] is None


def test_a_job_that_gets_on_is_never_asked() -> None:
    def never(asked: Any) -> dict[str, Stack]:
        raise AssertionError("a job that gets on was asked for its stacks")

    watching = HangWatch(HangTimeout(), never, lambda pid: ProcessUsage(cpu_s=0.0, moved_bytes=0))
    for tick in range(400):
        ranks = [pulse(0, num_events=tick // 8), pulse(1, num_events=tick // 8)]
        assert watching.look(tick * 0.25, ranks) is None


def test_the_main_thread_is_found_among_others() -> None:
    text = (
        "Thread 0x00000002 (most recent call first):\n"
        '  File "/a/threading.py", line 327 in wait\n\n'
        "Current thread 0x00000001 (most recent call first):\n"
        '  File "/job/train.py", line 7 in main\n'
    )
    assert [str(frame) for frame in parse(9, text, main_thread=1).frames] == ["train.py:7 in main"]
    assert [str(frame) for frame in parse(9, text, main_thread=2).frames] == ["threading.py:327 in wait"]


def elsewhere(waits: bool | None, num_begun: int = 52, phase: str = "compute") -> tuple[PeerStatus, ...]:
    rank = PeerRank(rank=2, steps=51, phase=phase, sequences={"0": num_begun}, waits=waits)
    return (PeerStatus(node="n2", ranks=(rank,)),)


WAITING = [pulse(0, world_size=3), pulse(1, world_size=3)]


def test_ranks_that_wait_for_another_node_leave_the_verdict_to_it() -> None:
    """It may write a checkpoint, which its own Flatout knows; here nothing is late."""
    stacks = {0: BARRIER, 1: BARRIER}
    for waits in (None, False):
        assert watch(WAITING, stacks, for_s=1500, others=elsewhere(waits, 51, "checkpoint"))[0] is None


def test_where_nothing_is_known_of_other_nodes_ranks_may_wait_as_long_as_for_a_checkpoint() -> None:
    stacks = {0: BARRIER, 1: BARRIER}
    assert watch(WAITING, stacks, for_s=590)[0] is None
    hang, at = watch(WAITING, stacks, for_s=1500)
    assert hang is not None and hang.late == () and 600 <= at < 1000


def test_where_the_ranks_of_all_nodes_wait_it_is_a_hang_within_seconds() -> None:
    hang, at = watch(WAITING, {0: BARRIER, 1: BARRIER}, others=elsewhere(True))
    assert hang is not None and at < 15


def test_a_rank_that_alone_on_its_node_has_begun_fewer_collectives_than_others_elsewhere_is_late() -> None:
    alone = [pulse(0, world_size=2, sequences={"0": 51})]
    hang, at = watch(alone, {0: BARRIER}, others=elsewhere(True))
    assert hang is not None and hang.late == (0,) and at < 15, "it is seen that others wait: no pause of its own"
    assert hang.sequence == 52


def spinning(pid: int, now: float) -> ProcessUsage:
    return ProcessUsage(cpu_s=now if pid == 1000 else 0.0, moved_bytes=0)


def copying(pid: int, now: float) -> ProcessUsage:  # a child of rank 0 writes a file, without end
    return ProcessUsage(cpu_s=0.0, moved_bytes=int(now * 1e6) if pid == 1000 else 0)


@pytest.mark.parametrize("work", [spinning, copying])
def test_a_limit_that_is_given_binds_whatever_a_rank_does(work: Any) -> None:
    ranks = [pulse(0, sequences={"0": 51}), pulse(1)]
    hang, at = watch(ranks, {0: SLEEPING, 1: BARRIER}, for_s=60, work=work, fixed_s=15)
    assert hang is not None and hang.late == (0,) and 15 <= at < 15.5
    assert "rank 0 has not arrived: it is in the step, busy: train.py:10 in main" in hang.describe()
    moving, at = watch(
        ranks, lambda now: {0: [("/job/a.py", f"f{int(now)}"), *SLEEPING], 1: BARRIER}, for_s=60, fixed_s=15
    )
    assert moving is not None and at < 20


@pytest.mark.parametrize(
    ("changes", "moves", "ceiling_s"),
    [
        ({}, False, 600),
        ({"phase": "evaluation"}, False, 1800),
        ({}, True, 3600),
    ],
)
def test_a_rank_that_works_while_others_wait_has_a_ceiling(
    changes: dict[str, Any], moves: bool, ceiling_s: float
) -> None:
    """Nobody knows whether it spins. The looks become rare: it is found before the silence is half as long again."""
    ranks = [pulse(0, sequences={"0": 51}, **changes), pulse(1)]

    def stacks(now: float) -> dict[int, list[tuple[str, str]]]:
        function = f"f{int(now)}" if moves else "f"
        return {0: [("/job/a.py", function), *SLEEPING], 1: BARRIER}

    assert watch(ranks, stacks, for_s=ceiling_s, work=spinning)[0] is None
    hang, at = watch(ranks, stacks, for_s=2 * ceiling_s, work=spinning)
    assert hang is not None and hang.late == (0,) and ceiling_s <= at < 1.6 * ceiling_s


def test_a_rank_that_works_alone_has_no_ceiling() -> None:
    alone = [pulse(0, world_size=1, sequences={})]
    assert watch(alone, {0: SLEEPING}, for_s=8000, work=spinning)[0] is None
    together = [pulse(0), pulse(1)]
    assert watch(together, {0: SLEEPING, 1: SLEEPING}, for_s=8000, work=lambda pid, now: spinning(1000, now))[0] is None


def test_a_stopped_process_is_called_stopped() -> None:
    ranks = [pulse(0), pulse(1, is_stopped=True, gives_stacks=True)]
    hang, _ = watch(ranks, {0: BARRIER, 1: SLEEPING}, for_s=120)
    assert hang is not None and hang.late == (1,)
    assert "rank 1 has not arrived: it is stopped by a signal (state T): `kill -CONT` resumes it" in hang.describe()


def test_a_job_that_is_suspended_does_not_hang() -> None:
    ranks = [pulse(0, is_stopped=True), pulse(1, is_stopped=True)]
    assert watch(ranks, {0: BARRIER, 1: SLEEPING}, for_s=5000)[0] is None
    assert watch(ranks, {0: BARRIER, 1: SLEEPING}, for_s=500, fixed_s=15)[0] is None


@pytest.mark.parametrize(("gap_s", "is_hang"), [(9.0, True), (11.0, False)])
def test_time_in_which_nobody_could_look_is_no_silence(gap_s: float, is_hang: bool) -> None:
    """All processes of the host were suspended, this one too; after it, the ranks need a moment."""
    ranks = [pulse(0, sequences={"0": 51}), pulse(1)]
    frames = {0: SLEEPING, 1: BARRIER}
    watching = HangWatch(
        HangTimeout(12.0),
        lambda asked: {one.name: stack(frames[one.rank or 0]) for one in asked},
        lambda pid: ProcessUsage(cpu_s=0.0, moved_bytes=0),
    )
    times = [*[0.25 * tick for tick in range(6)], *[1.25 + gap_s + 0.25 * tick for tick in range(36)]]
    hangs = [watching.look(now, ranks) for now in times]
    assert any(hang is not None for hang in hangs) is is_hang


@pytest.mark.parametrize(
    ("written", "expected"), [("999999999", 999999999), ("1000000000", 0), ("7" * 5000, 0), ("???", 0)]
)
def test_a_line_number_that_none_has_is_unknown(written: str, expected: int) -> None:
    text = f'Current thread 0x1 (most recent call first):\n  File "train.py", line {written} in main'
    assert [frame.line for frame in parse(9, text, main_thread=1).frames] == [expected]
