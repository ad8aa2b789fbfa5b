"""Clocks of different nodes: shifted by milliseconds, aligned on the common ends of collectives."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.diagnose.jobs import attributed, blame_us, parts_us
from tests.diagnose.simulate import Program, programs, simulated

from flatout.attribute.job import attribute_job
from flatout.attribute.rank import attribute_rank
from flatout.records.job import JobAttribution
from flatout.testing import TraceBuilder

MS = 1_000_000


def late_loader(shift_us: float = 0, *, operation: str = "allreduce", num_steps: int = 3) -> list[TraceBuilder]:
    """Two ranks; rank 1 loads data 300 us longer in each step, and its clock is off by `shift_us`."""
    traces = [TraceBuilder(0), TraceBuilder(1)]
    for trace, clock, late in zip(traces, (0.0, shift_us), (0, 300), strict=True):
        for number in range(num_steps):
            at = 1000 * number + clock
            trace.step(number + 1, at, 1000)
            trace.data_loading(at, 50 + late)
            trace.launch("gemm", at + 50 + late, 5, at + 60 + late, 100)
            root = 0 if operation == "broadcast" else None
            trace.collective(operation, at + 56 + late, at + 200 + late, 700 - late, root=root)
    return traces


def result(job: JobAttribution) -> tuple[list[dict[str, float]], dict[tuple[int, int, str], float]]:
    return [parts_us(job, timeline.rank) for timeline in job.timelines], blame_us(job)


@pytest.mark.parametrize("shift_us", [5000, -5000, 150, 3.6e9])
def test_a_shifted_clock_is_corrected_and_changes_nothing(shift_us: float) -> None:
    job = attributed(*late_loader(shift_us))
    assert job.clock_offset_ns == {0: 0, 1: round(-1000 * shift_us)}
    assert result(job) == result(attributed(*late_loader()))
    assert blame_us(job) == {(0, 1, "data_loading"): 900}


def test_a_correction_is_told() -> None:
    quality = attributed(*late_loader(5000)).quality
    assert [(note.rank, note.problem) for note in quality] == [
        (1, "the clock differs by -5000.0 us from that of rank 0")
    ]
    assert attributed(*late_loader()).quality == ()


def test_all_times_of_the_shifted_rank_move_together() -> None:
    """Steps, segments, kernels and their launches are on the common clock afterwards."""
    shifted, plain = attributed(*late_loader(5000)).timelines[1], attributed(*late_loader()).timelines[1]
    assert shifted.window_start_ns == plain.window_start_ns == 0
    assert shifted.window_end_ns == plain.window_end_ns
    assert shifted.first_event_ns == plain.first_event_ns
    assert shifted.steps == plain.steps
    assert (shifted.segments.start_ns == plain.segments.start_ns).all()
    assert (shifted.communication.launched_ns == plain.communication.launched_ns).all()


def test_a_difference_as_small_as_on_one_host_is_no_shift() -> None:
    job = attributed(*late_loader(40))
    assert job.clock_offset_ns == {0: 0, 1: 0}
    assert job.quality == ()


def test_a_difference_within_the_spread_of_the_ends_is_no_shift() -> None:
    """Ends that disagree by 0.1 to 1 ms, each in its own way, do not show a clock."""
    traces = [TraceBuilder(0), TraceBuilder(1)]
    for number, late in enumerate((-900, 700, 150, -400, 1000, 200)):
        at = 5000 * number
        for trace, extra in zip(traces, (0, late), strict=True):
            trace.step(number + 1, at, 5000)
            trace.collective("allreduce", at, at + 100, 2000 + extra)
    assert attributed(*traces).clock_offset_ns == {0: 0, 1: 0}


@pytest.mark.parametrize("shift_us", [0, 5000])
def test_one_outlier_neither_moves_a_clock_nor_spoils_a_correction(shift_us: float) -> None:
    traces = late_loader(shift_us, num_steps=5)
    traces[0].collective("allreduce", 4910, 4915, 20)
    traces[1].collective("allreduce", 4910 + shift_us, 4915 + shift_us, 3000)
    assert attributed(*traces).clock_offset_ns == {0: 0, 1: round(-1000 * shift_us)}


@pytest.mark.parametrize("operation", ["broadcast", "reduce"])
def test_operations_that_ranks_leave_at_different_times_show_no_clock(operation: str) -> None:
    """The root of a broadcast is done when it has sent, long before the last rank has received."""
    root, other = TraceBuilder(0), TraceBuilder(1)
    for number in range(3):
        at = 1000 * number
        for trace, length in ((root, 20), (other, 800)):
            trace.step(number + 1, at, 1000)
            trace.collective(operation, at, at + 10, length, root=0)
    assert attributed(root, other).clock_offset_ns == {0: 0, 1: 0}


@pytest.mark.parametrize("groups", [((0, 1), (1, 2)), ((0, 2), (1, 2)), ((0, 1), (0, 2))])
def test_ranks_without_a_common_collective_are_aligned_through_others(groups: tuple[tuple[int, int], ...]) -> None:
    """Ranks 1 and 2 are on nodes with clocks of their own."""
    shifts = (0.0, -3000.0, 5000.0)
    traces = [TraceBuilder(rank, 3) for rank in range(3)]
    for number in range(3):
        for trace, clock in zip(traces, shifts, strict=True):
            at = 1000 * number + clock
            trace.step(number + 1, at, 1000)
            for place, members in enumerate(groups):
                if trace.rank in members:
                    trace.collective("allreduce", at + place, at + 100 + 400 * place, 300, group=str(place + 1),
                                     group_ranks=members, stream=20 + place)  # fmt: skip
    job = attributed(*traces)
    assert job.clock_offset_ns == {0: 0, 1: 3 * MS, 2: -5 * MS}
    assert [parts_us(job, rank).get("wait", 0) for rank in range(3)] == [0, 0, 0]


def test_ranks_that_share_no_collective_keep_their_own_times() -> None:
    traces = [TraceBuilder(rank, 4) for rank in range(4)]
    for trace, clock in zip(traces, (0, 0, 5000, 5000), strict=True):
        members = (0, 1) if trace.rank < 2 else (2, 3)
        trace.step(1, clock, 1000).collective("allreduce", clock, clock + 100, 300, group="1", group_ranks=members)
    assert attributed(*traces).clock_offset_ns == dict.fromkeys(range(4), 0)


def stages(shift_us: float, *, back: bool = True) -> list[TraceBuilder]:
    """Two pipeline stages that only send and receive: forward, and back; the second one's clock is off."""
    first, last = TraceBuilder(0), TraceBuilder(1)
    for number in range(3):
        at, clock = 2000 * number, 2000 * number + shift_us
        first.step(number + 1, at, 2000).launch("gemm", at, 2, at + 5, 400)
        first.collective("send", at + 6, at + 405, 100, root=1)
        last.step(number + 1, clock, 2000).collective("recv", clock, clock + 5, 500, root=0)
        last.launch("gemm", clock + 8, 2, clock + 505, 400)
        if back:
            last.collective("send", clock + 11, clock + 905, 100, root=0)
            first.collective("recv", at + 8, at + 505, 500, root=1)
    return [first, last]


@pytest.mark.parametrize("shift_us", [5000, -5000, 900])
def test_ranks_that_only_send_are_aligned_so_that_nothing_is_received_before_it_was_sent(shift_us: float) -> None:
    job = attributed(*stages(shift_us))
    assert job.clock_offset_ns == {0: 0, 1: round(-1000 * shift_us)}
    assert result(job) == result(attributed(*stages(0)))
    assert "no message arrives before it is sent" in job.quality[0].effect


def test_messages_in_one_direction_show_a_clock_only_where_it_breaks_causality() -> None:
    assert attributed(*stages(5000, back=False)).clock_offset_ns == {0: 0, 1: 0}, "it may just be slow"
    late_by_bound = attributed(*stages(-5000, back=False)).clock_offset_ns[1]
    assert late_by_bound == (5000 - 100) * 1000, "the receive ends when the send begins, at the earliest"


def test_collectives_that_cannot_be_the_same_stay_unsplit() -> None:
    """One of four ended on rank 0 before it began on rank 1: whatever it is, it is not the same."""
    a, b = TraceBuilder(0).step(1, 0, 9000), TraceBuilder(1).step(1, 0, 9000)
    for at in (100, 1100, 2100):
        a.collective("allreduce", at, at + 10, 300)
        b.collective("allreduce", at, at + 110, 200)
    a.collective("allreduce", 3100, 3110, 300)
    b.collective("allreduce", 3100, 7110, 300)
    job = attributed(a, b)
    assert [parts_us(job, rank)["communication_unsplit"] for rank in (0, 1)] == [300, 300]
    assert "1 of 4 matched collectives" in job.quality[0].problem
    assert parts_us(job, 0)["wait"] == 300


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(programs(), st.data())
def test_shifting_the_clock_of_any_rank_changes_less_than_a_microsecond(
    program: tuple[int, Program], data: st.DataObject
) -> None:
    shift = st.sampled_from((0, 5 * MS, -5 * MS, 137 * MS + 1, -100_001))
    bases = [10**9 + data.draw(shift) for _ in range(program[0])]
    expected, shifted = attributed(*simulated(program)), attributed(*simulated(program, base_ns=bases))
    for rank in range(program[0]):
        assert parts_us(shifted, rank) == pytest.approx(parts_us(expected, rank), abs=1)
    assert blame_us(shifted) == pytest.approx(blame_us(expected), abs=1)


# --- ranks of one host


def on_hosts(traces: list[TraceBuilder], **meta: tuple[object, object]) -> JobAttribution:
    """Attribute two ranks whose metadata differs in these fields."""
    timelines = []
    for number, trace in enumerate(traces):
        table = trace.to_table()
        own = {field: values[number] for field, values in meta.items()}
        timelines.append(
            attribute_rank(msgspec.structs.replace(table, meta=msgspec.structs.replace(table.meta, **own)))
        )
    return attribute_job(timelines)


SAME_HOST: dict[str, dict[str, tuple[object, object]]] = {
    "by name": {"hostname": ("a", "a")},
    "by the numbers of their GPUs": {"device": (0, 1), "num_devices": (8, 8)},
    "all ranks, in another order": {"device": (1, 0), "num_devices": (2, 2)},
}
OTHER_HOST: dict[str, dict[str, tuple[object, object]]] = {
    "by name": {"hostname": ("a", "b")},
    "by name, whatever their GPUs": {"hostname": ("a", "b"), "device": (0, 1), "num_devices": (8, 8)},
    "each is the first GPU": {"device": (0, 0), "num_devices": (8, 8)},
    "one GPU a host": {"device": (0, 1), "num_devices": (1, 1)},
    "unknown": {},
}


@pytest.mark.parametrize("how", SAME_HOST)
def test_ranks_of_one_host_are_never_shifted(how: str) -> None:
    job = on_hosts(late_loader(6700), **SAME_HOST[how])
    assert job.clock_offset_ns == {0: 0, 1: 0}
    (note,) = [note for note in job.quality if "on the same host" in note.problem]
    assert note.problem.startswith("collectives end 6700.0 us apart from those of rank 0")
    assert (note.rank, note.max_confidence) == (1, "medium")
    assert not on_hosts(late_loader(), **SAME_HOST[how]).quality


@pytest.mark.parametrize("how", OTHER_HOST)
def test_ranks_of_other_hosts_are(how: str) -> None:
    assert on_hosts(late_loader(6700), **OTHER_HOST[how]).clock_offset_ns == {0: 0, 1: -6_700_000}


def test_stages_of_one_host_are_never_shifted_by_their_messages() -> None:
    assert on_hosts(stages(5000), hostname=("a", "a")).clock_offset_ns == {0: 0, 1: 0}
    assert on_hosts(stages(5000), hostname=("a", "b")).clock_offset_ns == {0: 0, 1: -5_000_000}


def on_cpu(late_us: float, *, clock_us: float = 0) -> list[TraceBuilder]:
    """Rank 1 leaves each collective `late_us` after rank 0, because its process does not get to run."""
    traces = [TraceBuilder(0), TraceBuilder(1)]
    for number in range(4):
        for trace, clock, late in zip(traces, (0.0, clock_us), (0.0, late_us), strict=True):
            at = 100_000 * number + clock
            trace.step(number, at, 100_000).op("aten::mm", at, 10_000)
            trace.annotation("gloo:all_reduce", at + 10_000, 20_000 + late)
    return traces


def test_ranks_on_the_cpu_that_leave_late_have_no_other_clock() -> None:
    job = attributed(*on_cpu(6700))
    assert job.clock_offset_ns == {0: 0, 1: 0}
    assert not [note for note in job.quality if "clock" in note.problem or "apart" in note.problem]


@pytest.mark.parametrize(("clock_us", "offset_us"), [(20_100, 0), (20_101, -20_101), (-20_101, 20_101)])
def test_ranks_on_the_cpu_are_shifted_where_one_would_leave_before_the_other_enters(
    clock_us: float, offset_us: float
) -> None:
    """Each collective lasts 20 ms; differences up to 0.1 ms are none."""
    assert attributed(*on_cpu(0, clock_us=clock_us)).clock_offset_ns == {0: 0, 1: 1000 * offset_us}
