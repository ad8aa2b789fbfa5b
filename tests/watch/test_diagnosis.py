"""Slowdowns of replayed steps: when they are found, whom they name, and that 24 hours without one raise no alarm."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.keep.beating import Clock, Rank

from flatout.keep.heartbeats import HeartbeatReader, HeartbeatSample, ranks_of
from flatout.launch.process_identity import core_wait_s
from flatout.probe.port_counters import PortCounters
from flatout.records.watch import LiveFinding
from flatout.report.watch_text import finding_sentence
from flatout.storage.counts import Counts
from flatout.watch.diagnosis import live
from flatout.watch.diagnosis.causes import JobParts, RankParts, name_cause, ranks_wait_for_cores
from flatout.watch.diagnosis.change_points import (
    ALLOWANCE,
    ALLOWANCE_SDS,
    BLOCK_STEPS,
    LEARN_BLOCKS,
    LEAST_BLOCKS,
    RETURN_BLOCKS,
    SHORT_BLOCKS,
    ChangePoints,
)
from flatout.watch.diagnosis.host_counters import HostCountersOfBlock
from flatout.watch.diagnosis.live import LiveDiagnosis
from flatout.watch.diagnosis.memory_growth import LEAST_GROWTH_BYTES, NUM_BLOCKS, MemoryGrowth
from flatout.watch.diagnosis.work_per_step import LEAST_BLOCKS as LEAST_BLOCKS_OF_WORK
from flatout.watch.diagnosis.work_per_step import LEAST_CHANGE, WorkPerStep

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from live_diagnosis import AT, BUSY, STEPS_PER_DAY, decaying, delays, own_alarms, slower, step_times

S = 10**9
MS = 10**6


@pytest.mark.parametrize(
    ("shape", "most_steps"), [("+5 %", 200), ("+10 %", 60), ("+20 %", 40), ("+1 % per 100 steps", 700)]
)
def test_a_slowdown_is_found_within_some_blocks(shape: str, most_steps: int) -> None:
    found = delays(own_alarms, shape, repeats=3)
    assert all(delay is not None and delay <= most_steps for delay in found), found


def test_a_day_of_steps_without_a_slowdown_raises_at_most_one_alarm() -> None:
    assert len(own_alarms(step_times(STEPS_PER_DAY, np.random.default_rng(1000)))) <= 1


@pytest.mark.parametrize(("share", "is_found"), [(ALLOWANCE * 0.9, False), (ALLOWANCE * 2.2, True)])
def test_the_allowance_decides_what_is_too_small_to_report(share: float, is_found: bool) -> None:
    times = np.full(6000, 0.3)
    assert bool(own_alarms(slower(times, share))) is is_found


def test_a_slowdown_ends_when_the_steps_are_back_and_a_second_one_is_another() -> None:
    changes = ChangePoints()
    times = [0.3] * 1000 + [0.36] * 400 + [0.3] * 400 + [0.33] * 400
    for step, duration in enumerate(times, 1):
        changes.add(step, duration)
    (first,) = changes.ended
    assert (first.first_step, first.last_step) == (1001, 1400)
    assert (first.before_s, first.after_s) == pytest.approx((0.3, 0.36), rel=0.001)
    assert changes.shift is not None and changes.shift.first_step == 1801


def blocks(*levels: float) -> list[float]:
    """Return the steps of blocks at these multiples of 0.3 s."""
    return [0.3 * level for level in levels for _ in range(BLOCK_STEPS)]


@pytest.mark.parametrize(("num_slow", "is_found"), [(LEAST_BLOCKS - 1, False), (LEAST_BLOCKS, True)])
def test_a_single_block_is_no_slowdown(num_slow: int, is_found: bool) -> None:
    assert bool(own_alarms(blocks(*[1.0] * 20, *[1.5] * num_slow, *[1.0] * 20))) is is_found


@pytest.mark.parametrize(("share", "is_found"), [(0.9, False), (1.1, True)])
def test_blocks_that_differ_raise_the_allowance(share: float, is_found: bool) -> None:
    """Blocks 2 % above and below have a standard deviation of 1.4826 x 2 %."""
    slower_by = share * ALLOWANCE_SDS * 1.4826 * 0.02
    assert bool(own_alarms(blocks(*[1.02, 1.0, 0.98] * 20, *[1 + slower_by] * 70))) is is_found


def test_a_machine_that_becomes_busy_raises_no_alarm() -> None:
    """The noise of the first 300 steps alone raised 82, 184 and 166 alarms in these 100,000 steps (8 h)."""
    most = {"noisier": 1, "wandering": 10, "bursts": 70}
    found = {name: len(own_alarms(make(100_000, np.random.default_rng(0)))) for name, make in BUSY.items()}
    assert all(found[name] <= most[name] for name in BUSY), found


@pytest.mark.parametrize(("num_slow", "is_noise"), [(SHORT_BLOCKS - RETURN_BLOCKS, True), (8, False)])
def test_short_slowdowns_that_come_again_and_again_are_noise(num_slow: int, is_noise: bool) -> None:
    alarms = own_alarms(blocks(*[1.0] * 20, *([1.06] * num_slow + [1.0] * 4) * 40))
    assert len(alarms) <= 5 if is_noise else len(alarms) == 40


def test_a_single_slow_step_and_a_checkpoint_are_no_slowdown() -> None:
    times = np.full(6000, 0.3)
    times[::50] = 30.0
    assert own_alarms(times) == []


def job(step_s: float, exposed: Sequence[float | None], data: Sequence[float] = (), **facts: object) -> JobParts:
    data = data or [0.0] * len(exposed)
    parts = zip(exposed, data, strict=True)
    ranks = {rank: RankParts(data_s=waits, exposed_s=late) for rank, (late, waits) in enumerate(parts)}
    return msgspec.structs.replace(JobParts(step_s=step_s, ranks=ranks), **facts)


QUIET = job(0.30, [0.02, 0.02, 0.02, 0.02])


@pytest.mark.parametrize(
    ("since", "cause", "ranks"),
    [
        (job(0.36, [0.08, 0.08, 0.02, 0.08]), "late_rank", (2,)),
        (job(0.36, [0.08, 0.08, 0.034, 0.08]), "late_rank", (2,)),
        (job(0.36, [0.08, 0.08, 0.036, 0.08]), "unknown", ()),
        (job(0.36, [0.051, 0.08, 0.02, 0.08]), "late_rank", (2,)),
        (job(0.36, [0.049, 0.08, 0.02, 0.08]), "unknown", ()),
        (job(0.36, [0.08] * 4), "communication", ()),
        (job(0.36, [0.08, 0.08, 0.02, 0.08], [0, 0, 0.06, 0]), "data_loading", (2,)),
        (job(0.36, [0.02] * 4, [0.05] * 4), "data_loading", ()),
        (job(0.36, [0.02] * 4, [0.029] * 4), "unknown", ()),
        (job(0.36, [None] * 4), "unknown", ()),
        (job(0.36, [0.02] * 4, other_cores=3.0), "unknown", ()),
    ],
)  # fmt: skip
def test_the_culprit_waits_least_or_its_own_part_grew(since: JobParts, cause: str, ranks: tuple[int, ...]) -> None:
    named = name_cause(QUIET, since)
    assert (named.cause, named.ranks) == (cause, ranks)


def test_a_throttled_rank_and_a_neighbour_are_named() -> None:
    hot = job(0.36, [None] * 2)
    hot = msgspec.structs.replace(hot, ranks={**hot.ranks, 1: RankParts(data_s=0, throttle=("hardware_thermal",))})
    assert name_cause(job(0.3, [None] * 2), hot).cause == "throttling"
    assert name_cause(job(0.3, [None] * 2), hot).ranks == (1,)
    always_hot = msgspec.structs.replace(hot, step_s=0.3)
    assert name_cause(always_hot, hot).cause == "unknown", "it was throttled before, too"
    assert name_cause(hot, hot).cause == "unknown", "nothing became slower"
    busy = [job(0.3, [None], other_cores=cores) for cores in (0.5, 1.4, 1.6)]
    causes = [name_cause(busy[0], msgspec.structs.replace(each, step_s=0.36)).cause for each in busy[1:]]
    assert causes == ["unknown", "noisy_neighbour"]


@pytest.mark.parametrize(
    ("waits", "cause", "ranks"),
    [
        ((0.031, 0.001), "noisy_neighbour", (0,)),
        ((0.031, 0.015), "noisy_neighbour", (0,)),
        ((0.031, 0.016), "noisy_neighbour", ()),
        ((0.030, 0.001), "unknown", ()),
        ((None, None), "unknown", ()),
    ],
)
def test_ranks_that_wait_for_a_core_have_a_neighbour_although_no_more_cores_are_busy(
    waits: tuple[float | None, ...], cause: str, ranks: tuple[int, ...]
) -> None:
    def waiting(step_s: float, waits: tuple[float | None, ...]) -> JobParts:
        of_ranks = {rank: RankParts(data_s=0.0, core_wait_s=wait) for rank, wait in enumerate(waits)}
        return JobParts(step_s=step_s, ranks=of_ranks, other_cores=2.0)

    named = name_cause(waiting(0.30, (0.0005, 0.0005)), waiting(0.36, waits))
    assert (named.cause, named.ranks) == (cause, ranks)


@pytest.mark.parametrize(
    ("core_waits", "cause"),
    [
        ([0.010, 0.010, 0.039, 0.010], "late_rank"),  # 29 ms more than its peers, of 60 ms that they wait for it
        ([0.010, 0.010, 0.041, 0.010], "noisy_neighbour"),
        ([0.070, 0.070, 0.099, 0.070], "late_rank"),  # all wait for cores, it hardly more than the others
        ([0.070, 0.070, 0.101, 0.070], "noisy_neighbour"),
        ([0.090, 0.090, 0.010, 0.090], "late_rank"),
        ([None] * 4, "late_rank"),
    ],
)
def test_a_late_rank_is_at_fault_unless_it_waits_for_cores_more_than_its_peers(
    core_waits: Sequence[float | None], cause: str
) -> None:
    quiet = of_ranks(0.30, exposed_s=[0.02] * 4, core_wait_s=[0.010] * 4)
    since = of_ranks(0.36, exposed_s=[0.08, 0.08, 0.02, 0.08], core_wait_s=core_waits)
    named = name_cause(quiet, since)
    assert (named.cause, named.ranks) == (cause, (2,))


@pytest.mark.parametrize(
    ("behind_s", "ranks"),
    [
        ([0.0, 0.0, 0.031, 0.0], (2,)),  # of 60 ms
        ([0.0, 0.0, 0.029, 0.0], ()),
        ([0.0, 0.0, 0.031, 0.014], (2,)),
        ([0.0, 0.0, 0.031, 0.016], ()),
        ([0.0, 0.031, 0.031, 0.0], (1, 2)),
        ([None] * 4, (3,)),
    ],
)
def test_ranks_that_come_later_than_their_peers_are_late_whatever_they_wait(
    behind_s: Sequence[float | None], ranks: tuple[int, ...]
) -> None:
    quiet = of_ranks(0.30, exposed_s=[0.02] * 4, behind_s=[0.0] * 4)
    since = of_ranks(0.36, exposed_s=[0.08, 0.08, 0.08, 0.02], behind_s=behind_s)
    named = name_cause(quiet, since)
    assert (named.cause, named.ranks) == ("late_rank" if ranks else "unknown", ranks)


@pytest.mark.parametrize(
    ("core_waits", "is_longer"),
    [([0.024, 0.01], False), ([0.026, 0.01], True), ([0.01, 0.026], True), ([None, 0.01], None)],
)
def test_ranks_wait_for_cores_by_a_quarter_of_the_slowdown(
    core_waits: Sequence[float | None], is_longer: bool | None
) -> None:
    quiet = of_ranks(0.30, core_wait_s=[0.010] * 2)
    assert ranks_wait_for_cores(quiet, of_ranks(0.36, core_wait_s=core_waits)) is is_longer


def of_ranks(step_s: float, **waits: Sequence[float | None]) -> JobParts:
    ranks = {
        rank: RankParts(**dict(zip(waits, times, strict=True)))
        for rank, times in enumerate(zip(*waits.values(), strict=True))
    }
    return JobParts(step_s=step_s, ranks=ranks)


@pytest.mark.parametrize("longer", [None, "data_s", "exposed_s", "core_wait_s"])
@pytest.mark.parametrize(("growth_s", "cause"), [(0.014, "computation"), (0.016, "unknown"), (None, "unknown")])
def test_ranks_that_wait_no_longer_compute_longer(longer: str | None, growth_s: float | None, cause: str) -> None:
    """The step grew by 60 ms; a quarter of that is 15 ms."""
    quiet = {"data_s": (0.001, 0.001), "exposed_s": (0.02, 0.02), "core_wait_s": (0.0005, 0.0005)}
    since: dict[str, tuple[float | None, float | None]] = dict(quiet)
    if longer is not None:
        now_s = None if growth_s is None else quiet[longer][0] + growth_s
        since[longer] = (now_s, now_s)
    named = name_cause(of_ranks(0.30, **quiet), of_ranks(0.36, **since))
    assert (named.cause, named.ranks) == (cause if longer else "computation", ())


def test_a_job_of_one_rank_needs_no_exchanges_to_compute_longer() -> None:
    quiet, since = (of_ranks(step_s, data_s=[0.0], core_wait_s=[0.0]) for step_s in (0.30, 0.36))
    assert name_cause(quiet, since).cause == "computation"


def test_waits_for_a_core_are_read_of_a_process() -> None:
    waited_s = core_wait_s(os.getpid())
    assert waited_s is not None and 0 <= waited_s < 3600
    assert core_wait_s(0) is None


LOADING = job(0.36, [0.02] * 2, [0.05] * 2)
EXCHANGING = job(0.36, [0.08] * 2)
CALM = job(0.30, [0.02] * 2, port_errors=3.0, read_latencies_s={"/data": 0.002, "sda": 0.001})


@pytest.mark.parametrize(
    ("since", "facts", "cause"),
    [
        (LOADING, {"read_latencies_s": {"/data": 0.0031}}, "storage"),
        (LOADING, {"read_latencies_s": {"/data": 0.0029}}, "data_loading"),
        (LOADING, {"read_latencies_s": {"/new": 9.0}}, "data_loading"),
        (LOADING, {"port_errors": 99.0}, "data_loading"),
        (EXCHANGING, {"port_errors": 6.0}, "link_errors"),
        (EXCHANGING, {"port_errors": 5.0}, "communication"),
        (EXCHANGING, {"port_errors": None}, "communication"),
        (EXCHANGING, {"read_latencies_s": {"/data": 9.0}}, "communication"),
        (job(0.36, [0.02] * 2), {"read_latencies_s": {"/data": 9.0}, "port_errors": 99.0}, "unknown"),
    ],
)
def test_counters_of_the_host_name_a_cause_only_with_the_waits_of_the_job(
    since: JobParts, facts: dict[str, object], cause: str
) -> None:
    assert name_cause(CALM, msgspec.structs.replace(since, **facts)).cause == cause
    quiet = msgspec.structs.replace(CALM, port_errors=0.0)
    assert name_cause(quiet, msgspec.structs.replace(EXCHANGING, port_errors=0.0)).cause == "communication"


def test_errors_and_latencies_are_those_since_the_last_call() -> None:
    errors, reads = iter([100.0, 100.0, 107.0, 3.0]), iter([(10, 1.0), (15, 1.5), (19, 9.0), (30, 9.11)])

    def ports() -> list[PortCounters]:
        values = {"flatout_port_symbol_errors": next(errors), "flatout_port_received_bytes": 1e9}
        return [PortCounters(device="mlx5_0", port="1", values=values)]

    def storage() -> dict[str, Counts]:
        num_reads, read_s = next(reads)
        return {"/data": Counts(num_reads=num_reads, read_s=read_s)}

    host = HostCountersOfBlock(ports, storage)
    assert [host.port_errors() for _ in range(4)] == [None, 0.0, 7.0, 0.0]
    found = [host.read_latencies_s() for _ in range(4)]
    assert found == [{}, {"/data": pytest.approx(0.1)}, {}, {"/data": pytest.approx(0.01)}]
    assert HostCountersOfBlock(list, dict).port_errors() is None


@pytest.mark.parametrize(
    ("growth", "num_falls", "is_found"),
    [
        (LEAST_GROWTH_BYTES // NUM_BLOCKS + 1, 0, True),
        (LEAST_GROWTH_BYTES // NUM_BLOCKS - 1, 0, False),
        (10**8, NUM_BLOCKS // 5, True),
        (10**8, NUM_BLOCKS // 5 + 1, False),
    ],
)
def test_memory_that_grows_in_almost_every_block_is_a_leak(growth: int, num_falls: int, is_found: bool) -> None:
    memory, value = MemoryGrowth(), 10**9
    for block in range(NUM_BLOCKS + 1):
        memory.add({3: value})
        value += -1 if block < num_falls else growth
    assert (list(memory.growing()) == [3]) is is_found


class ReplayedJob:
    """Ranks whose heartbeats are written step by step, and a diagnosis that looks at them every ten steps."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, num_ranks: int = 4) -> None:
        clock = Clock(time.monotonic_ns() - 3600 * S)
        self.ranks = [Rank(folder, number, num_ranks, clock, patch) for number in range(num_ranks)]
        self.reader = HeartbeatReader(folder)
        self.diagnosis = LiveDiagnosis()
        self.news: list[LiveFinding] = []
        self.step = 0
        self.core_wait_s: float | None = 0.0  # of each rank so far; None: unknown
        self.core_wait_ms = 0  # per step
        self.tokens: int | None = None  # of each batch
        self.values: int | None = None  # of each batch without tokens
        self.change: Callable[[list[HeartbeatSample]], list[HeartbeatSample]] = list

    def run(
        self, num_steps: int, late: int | None = None, late_ms: int = 0, data_ms: int = 0, slower_ms: int = 0
    ) -> None:
        """Make steps of 100 ms, of which rank `late` computes or loads for longer, and the others wait.

        All ranks take `slower_ms` longer for no reason that they show.
        """
        for _ in range(num_steps):
            self.step += 1
            if self.core_wait_s is not None:
                self.core_wait_s += self.core_wait_ms / 1e3
            for number, rank in enumerate(self.ranks):
                is_late = number == late
                if is_late and data_ms:
                    rank.spends("data", data_ms * MS)
                if self.tokens is not None:
                    rank.beat.loaded(None, self.tokens, self.tokens)
                if self.values is not None:
                    rank.beat.loaded(4, None, self.values)
                rank.spends("compute", (100 + slower_ms + late_ms + (0 if is_late else data_ms)) * MS)
                rank.steps()
                if self.step % 50 == 0:
                    wait_ms = 5 if is_late else 5 + late_ms + data_ms
                    rank.beat.exchanged(self.step, wait_ms * MS, per_step=1, num_ranks=len(self.ranks))
            if self.step % 10 == 0:
                self.look()

    def look(self) -> None:
        samples = self.change(ranks_of(self.reader.read()))
        self.news += self.diagnosis.look(samples, self.ranks[0].ns / S)


@pytest.fixture
def replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReplayedJob:
    replayed = ReplayedJob(tmp_path / "beats", monkeypatch)
    monkeypatch.setattr(live, "core_wait_s", lambda pid: replayed.core_wait_s)  # not of this process
    return replayed


WARMUP = (LEARN_BLOCKS + 5) * 20


def test_a_late_rank_is_one_finding_that_begins_and_ends(replayed: ReplayedJob) -> None:
    replayed.run(WARMUP)
    replayed.run(300, late=2, late_ms=20)
    (finding,) = replayed.diagnosis.findings
    assert (finding.cause, finding.ranks, finding.last_step) == ("late_rank", (2,), None)
    assert finding.first_step == pytest.approx(WARMUP + 1, abs=20)
    assert (finding.before_s, finding.after_s) == pytest.approx((0.1, 0.12), rel=0.01)
    assert finding.cost_gpu_h == pytest.approx(4 * 300 * 0.02 / 3600, rel=0.15)
    replayed.run(200)
    (ended,) = replayed.diagnosis.findings
    assert ended.last_step == pytest.approx(WARMUP + 300, abs=20)
    begun = [each for each in replayed.news if each.last_step is None]
    assert len({each.first_step for each in begun}) == 1 and replayed.news[-1] == ended
    assert finding_sentence(ended).startswith(f"steps {ended.first_step:,} to {ended.last_step:,}: one rank is late")


def busy_host(replayed: ReplayedJob, other_cores: float = 1.9, idle_cores: float = 0.1) -> ReplayedJob:
    """Replay the job on a host with this load, after its step time was learned."""
    replayed.diagnosis = LiveDiagnosis(other_cores=lambda: other_cores, idle_cores=lambda: idle_cores)
    replayed.run(WARMUP)
    return replayed


@pytest.mark.parametrize(
    ("load", "num_findings"),
    [
        ({"idle_cores": 0.49}, 0),
        ({"idle_cores": 0.5}, 1),
        ({"other_cores": 1.0}, 0),
        ({"other_cores": 0.99}, 1),
    ],
)
def test_a_short_slowdown_without_a_cause_is_no_finding_where_other_programs_leave_no_core(
    load: dict[str, float], num_findings: int, replayed: ReplayedJob
) -> None:
    """A healthy job on two cores beside a load of 12 had two such findings, of 60 steps each."""
    busy_host(replayed, **load)
    replayed.run(60, slower_ms=4)
    assert [each.cause for each in replayed.diagnosis.findings] == ["computation"] * num_findings
    replayed.run(200)
    assert len(replayed.diagnosis.findings) == num_findings
    assert bool(replayed.news) is bool(num_findings)


@pytest.mark.parametrize(("core_wait_ms", "cause"), [(None, "noisy_neighbour"), (6, "noisy_neighbour"), (4, "unknown")])
def test_a_long_one_is_put_down_to_other_programs_unless_the_ranks_do_not_wait_for_cores(
    core_wait_ms: int | None, cause: str, replayed: ReplayedJob
) -> None:
    """The step takes 20 ms longer, of which a quarter counts. When the job explains the slowdown, it is named."""
    busy_host(replayed)
    if core_wait_ms is None:
        replayed.core_wait_s = None
    else:
        replayed.core_wait_ms = core_wait_ms
    replayed.run(190, slower_ms=20)
    assert replayed.diagnosis.findings == ()
    replayed.run(20, slower_ms=20)
    (finding,) = replayed.diagnosis.findings
    assert (finding.cause, finding.ranks) == (cause, ())
    assert finding.evidence == ({} if cause == "unknown" else {"other_cores": 1.9, "idle_cores": 0.1})
    replayed.run(1000, late=2, late_ms=20)
    assert [(each.cause, each.ranks) for each in replayed.diagnosis.findings] == [("late_rank", (2,))]


def test_a_late_rank_is_named_on_a_busy_host_too(replayed: ReplayedJob) -> None:
    busy_host(replayed).run(300, late=2, late_ms=20)
    assert [(each.cause, each.ranks) for each in replayed.diagnosis.findings] == [("late_rank", (2,))]


def test_a_rank_that_waits_for_its_loader_is_named_with_it(replayed: ReplayedJob) -> None:
    replayed.run(WARMUP)
    replayed.run(100, late=1, data_ms=15)
    (finding,) = replayed.diagnosis.findings
    assert (finding.cause, finding.ranks) == ("data_loading", (1,))


def test_a_burst_of_slow_batches_is_named_although_its_waits_differ_much(replayed: ReplayedJob) -> None:
    replayed.run(WARMUP)
    waits = np.random.default_rng(0).uniform(10, 190, 6)
    for wait_ms in waits:
        for _ in range(20):
            for rank in replayed.ranks:
                rank.spends("data", int(wait_ms) * MS)
            replayed.run(1)
    replayed.look()
    (finding,) = replayed.diagnosis.findings
    assert (finding.cause, finding.ranks) == ("data_loading", ())


def test_larger_images_are_no_slowdown(replayed: ReplayedJob) -> None:
    replayed.values = 4 * 3 * 64 * 64
    replayed.run(WARMUP)
    replayed.values *= 4
    replayed.run(400, slower_ms=300)
    assert replayed.diagnosis.findings == ()


def test_a_stopped_rank_is_a_finding_until_it_continues(replayed: ReplayedJob) -> None:
    replayed.run(20)

    def stopped(samples: list[HeartbeatSample]) -> list[HeartbeatSample]:
        return [msgspec.structs.replace(sample, is_stopped=sample.rank == 3) for sample in samples]

    replayed.change = stopped
    replayed.look()
    replayed.ranks[0].ns += 36 * S
    replayed.look()
    (finding,) = replayed.diagnosis.findings
    assert (finding.cause, finding.ranks, finding.last_step) == ("stopped", (3,), None)
    assert finding.cost_gpu_h == pytest.approx(4 * 36 / 3600)
    replayed.change = list
    replayed.look()
    assert replayed.diagnosis.findings[0].last_step == 20


@pytest.mark.parametrize(("tokens", "num_findings"), [(1300, 0), (1030, 1)])
def test_steps_with_more_tokens_are_no_slowdown(tokens: int, num_findings: int, replayed: ReplayedJob) -> None:
    """Steps take 30 % longer, with 30 % more tokens or with 3 %."""
    replayed.tokens = 1000
    replayed.run(WARMUP)
    replayed.tokens = tokens
    replayed.run(200, late_ms=30)
    assert len(replayed.diagnosis.findings) == num_findings
    replayed.run(WARMUP, late_ms=30)
    replayed.run(100, late_ms=60)
    assert len(replayed.diagnosis.findings) == num_findings + (num_findings == 0), "it is found after it has learned"


def test_a_slowdown_ends_with_its_attempt_and_the_next_one_is_learned_again(replayed: ReplayedJob) -> None:
    replayed.run(WARMUP)
    replayed.run(100, late=2, late_ms=20)
    assert [each.last_step for each in replayed.diagnosis.findings] == [None]

    def restarted(samples: list[HeartbeatSample]) -> list[HeartbeatSample]:
        return [msgspec.structs.replace(sample, name=f"again-{sample.name}") for sample in samples]

    replayed.change = restarted
    replayed.run(200, late_ms=40)
    (ended,) = replayed.diagnosis.findings
    assert ended.last_step == WARMUP + 100


def test_work_that_differs_from_block_to_block_is_no_change() -> None:
    generator = np.random.default_rng(3)
    work = WorkPerStep()
    assert not any(work._is_other(float(tokens)) for tokens in generator.normal(1000, 100, 2000))
    assert [work._is_other(1000 * (1 + share)) for share in (0.9, 0.9)] == [False, True]
    assert not any(work._is_other(1900.0) for _ in range(LEAST_BLOCKS_OF_WORK))
    assert work._is_other(1000.0, 2), "two blocks since the last look"


@pytest.mark.parametrize(("share", "is_other"), [(LEAST_CHANGE * 0.9, False), (LEAST_CHANGE * 1.1, True)])
def test_a_small_change_of_the_work_is_none(share: float, is_other: bool) -> None:
    work = WorkPerStep()
    for _ in range(10):
        work._is_other(1000.0)
    assert [work._is_other(1000 * (1 + share)) for _ in range(2)][-1] is is_other


def test_evaluations_and_checkpoints_are_not_part_of_the_step_time(replayed: ReplayedJob) -> None:
    for _ in range(8):
        replayed.run(99)
        for rank in replayed.ranks:
            rank.spends("checkpoint", 30 * S)
    replayed.run(20)
    assert replayed.diagnosis.findings == ()


def test_decaying_times_grow_from_the_given_step() -> None:
    times = decaying(np.ones(AT + 201), 0.01)
    assert times[AT] == 1 and times[AT + 200] == pytest.approx(1.02)
