"""What a step's time holds besides computing: as DDP timed it, as a recording has it, as the clocks were."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.keep.beating import Clock, Rank

from flatout.keep.account import Account
from flatout.keep.clocks import ClockWatch
from flatout.keep.heartbeats import HeartbeatReader, HeartbeatSample, ranks_of
from flatout.keep.step_breakdown import StepBreakdown, StepShares
from flatout.run.recorded_steps import recorded_steps

S = 1_000_000_000
MS = 1_000_000
TRACES = Path(__file__).parents[2] / "examples" / "traces"


def spent(
    tmp_path: Path,
    patch: pytest.MonkeyPatch,
    within: StepBreakdown,
    exposed_ms: Sequence[Sequence[int]],
    *,
    world_size: int | None = None,
    num_ranks: int | None = None,
) -> tuple[dict[str, int], int, dict[str, dict[str, int]], dict[str, str]]:
    """Account for a job with one step of 1 s, and another of 1 s for each sample; `exposed_ms` is by rank and
    sample.
    """
    clock = Clock()
    begin = clock.ns
    account = Account(begin, within=within)
    account.attempt_begins(begin, is_first=True, farthest=0)
    world_size = world_size or len(exposed_ms)
    ranks = []
    for number in range(len(exposed_ms)):
        clock.ns = begin
        ranks.append(Rank(tmp_path / "0", number, world_size, clock, patch))
    beats = HeartbeatReader(tmp_path / "0")

    def known() -> list[HeartbeatSample]:
        return ranks_of(beats.read())

    found: dict[str, int] = {}

    def add(seconds: dict[str, int]) -> None:
        for name, ns in seconds.items():
            found[name] = found.get(name, 0) + ns

    for step in range(len(exposed_ms[0]) + 1):
        for rank, samples in zip(ranks, exposed_ms, strict=True):
            rank.spends("compute", S)
            rank.steps()
            if step:
                rank.beat.exchanged(step + 1, samples[step - 1] * MS, per_step=1, num_ranks=num_ranks or world_size)
        add(account.look(ranks[0].ns, known(), lambda pulse: 0))
    add(account.attempt_ends(ranks[0].ns, known(), lambda pulse: 0, "done"))
    return found, *account.take_known()


def test_the_late_rank_is_the_one_that_exchanges_the_shortest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, steps_ns, known, _ = spent(tmp_path, monkeypatch, StepBreakdown(), [[300] * 3, [50] * 3])
    assert found == {
        "start_up": 2 * S,
        "late_rank_wait": 3 * 250 * MS,
        "exposed_communication": 6 * 50 * MS,
        "productive": 6 * S - 3 * 250 * MS - 6 * 50 * MS,
    }
    assert known == {"late_rank_wait": {"ddp": 6 * S}, "exposed_communication": {"ddp": 6 * S}} and steps_ns == 6 * S


def test_one_long_wait_does_not_stand_for_the_steps_around_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, *_ = spent(tmp_path, monkeypatch, StepBreakdown(), [[100, 100, 100, 900, 100], [50] * 5])
    assert found["late_rank_wait"] == 5 * 50 * MS


@pytest.mark.parametrize(("world_size", "num_ranks"), [(4, 4), (2, 1)])
def test_where_ranks_are_missing_waiting_is_unknown_and_inside_communication(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world_size: int, num_ranks: int
) -> None:
    """They are on another host, or DDP exchanges in a smaller group."""
    found, _, known, reasons = spent(
        tmp_path, monkeypatch, StepBreakdown(), [[300], [50]], world_size=world_size, num_ranks=num_ranks
    )
    assert found["exposed_communication"] == 350 * MS
    assert "late_rank_wait" not in found and "late_rank_wait" not in known
    assert "it is included in exposed_communication" in reasons["late_rank_wait"]


@pytest.mark.parametrize(("num_ranks", "is_used"), [(2, True), (8, False)])
def test_a_recording_of_as_many_ranks_gives_its_shares_of_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_ranks: int, is_used: bool
) -> None:
    within = StepBreakdown(recorded=StepShares(num_ranks=num_ranks, communication=0.25, wait=0.125))
    clock = Clock()
    account = Account(clock.ns, within=within)
    account.attempt_begins(clock.ns, is_first=True, farthest=0)
    rank = Rank(tmp_path / "0", 0, 2, clock, monkeypatch)
    for _ in range(3):
        rank.spends("data", S)
        rank.spends("compute", 3 * S)
        rank.steps()
        rank.spends("checkpoint", 6 * S)
    found = account.attempt_ends(rank.ns, ranks_of(HeartbeatReader(tmp_path / "0").read()), lambda pulse: 0, "done")
    _, known, reasons = account.take_known()
    if not is_used:
        assert found["productive"] == 6 * S and "exposed_communication" not in known
        assert reasons["late_rank_wait"] == "The recording has 8 ranks, but the job has 2"
        return
    # Of the steps' own 8 s, in which the two checkpoints of 6 s between them are not.
    assert (found["exposed_communication"], found["late_rank_wait"], found["data"]) == (2 * S, 1 * S, 3 * S)
    assert found["productive"] == 3 * S
    assert known["late_rank_wait"] == {"recording": 6 * S}


def test_a_recordings_shares_are_those_of_its_diagnosis() -> None:
    """As `flatout diagnose` prints them in README.md: of 92.2 ms, transfer and wait."""
    found = recorded_steps(TRACES / "straggler.tar.xz").shares
    assert found.num_ranks == 4
    assert found.communication == pytest.approx(0.045, abs=0.001) and found.wait == pytest.approx(0.389, abs=0.001)


def clocks(*samples: tuple[float, list[str]]) -> ClockWatch:
    """One a second, of a GPU that can do 2 GHz."""
    left = iter(samples)
    watch = ClockWatch(
        lambda: [{"uuid": "GPU-1", "sm_clock_hz": 0.0, "max_sm_clock_hz": 2e9, "throttle": []} | _clock(*next(left))]
    )
    for second in range(len(samples)):
        watch.look(second * S)
        watch.look(second * S + S // 2)  # too early for another one
    return watch


def _clock(hz: float, reasons: list[str]) -> dict[str, object]:
    return {"sm_clock_hz": hz, "throttle": reasons}


def test_throttling_is_the_cycles_that_heat_and_brakes_take() -> None:
    watch = clocks((2e9, []), (1e9, ["hardware_thermal"]), (0.5e9, ["power_brake", "power_cap"]), (2e9, []))
    assert watch.lost("GPU-1", 0, 3 * S + S // 2) == pytest.approx((0 + 0.5 + 0.75 + 0) / 4)
    assert watch.lost("GPU-1", S, S + S // 2) == 0.5, "within one second, that of its sample"


def test_a_power_cap_and_an_idle_clock_are_no_throttling() -> None:
    assert clocks((1.2e9, ["power_cap"]), (0.3e9, [])).lost("GPU-1", 0, S) == 0.0


def test_a_gpu_that_was_not_watched_is_unknown() -> None:
    watch = clocks((2e9, []), (2e9, []))
    assert watch.lost("GPU-2", 0, S) is None and watch.lost(None, 0, S) is None
    assert watch.lost("GPU-1", 0, 60 * S) is None, "the last minute was not"
    silent = ClockWatch(lambda: [{"uuid": "GPU-1", "sm_clock_hz": 1e9}])
    silent.look(0)
    assert silent.lost("GPU-1", 0, S) is None
