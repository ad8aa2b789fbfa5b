"""Which communication of the ranks is taken for the same collective."""

from __future__ import annotations

import msgspec
import pytest
from tests.diagnose.jobs import attributed, blame_us, parts_us

from flatout.attribute.job import attribute_job
from flatout.attribute.rank import attribute_rank
from flatout.records.job import JobAttribution
from flatout.testing import TraceBuilder


def ranks(world_size: int = 2, *, present: tuple[int, ...] | None = None, duration: float = 1000) -> list[TraceBuilder]:
    return [TraceBuilder(r, world_size).step(1, 0, duration) for r in (present or tuple(range(world_size)))]


def matched(job: JobAttribution) -> list[dict[int, tuple[float, float]]]:
    """For each match of several kernels the span of its kernel on each rank, in microseconds."""
    timelines = {t.rank: t for t in job.timelines}

    def span(rank: int, kernel: int) -> tuple[float, float]:
        kernels = timelines[rank].communication
        return float(kernels.start_ns[kernel]) / 1e3, float(kernels.end_ns[kernel]) / 1e3

    spans = [{r: span(r, k) for r, k in match.kernels.items()} for match in job.matches if len(match.kernels) > 1]
    return sorted(spans, key=lambda by_rank: sorted(by_rank.items()))


def problems(job: JobAttribution) -> list[str]:
    return [note.problem for note in job.quality]


# --- by sequence number


def test_collectives_are_matched_by_sequence_number_where_each_call_has_its_own() -> None:
    """The recorder lost the second call of rank 1: its third is still the third."""
    a, b = ranks()
    for sequence, start in ((1, 10), (2, 110), (3, 210)):
        a.collective("allreduce", start - 2, start, 50, sequence=sequence)
    b.collective("allreduce", 8, 20, 40, sequence=1).collective("allreduce", 208, 240, 20, sequence=3)
    job = attributed(a, b)
    assert matched(job) == [{0: (10, 60), 1: (20, 60)}, {0: (210, 260), 1: (240, 260)}]
    assert parts_us(job, 0)["communication_unsplit"] == 50, "what its partner lost stays unknown"
    assert any("different numbers of collectives" in problem and "2 to 3" in problem for problem in problems(job))


@pytest.mark.parametrize("numbers", [(4, None), (4, 4)], ids=["missing", "repeated"])
def test_a_sequence_number_that_is_missing_or_repeated_on_one_rank_is_not_used(numbers: tuple[int, int | None]) -> None:
    a, b = ranks()
    a.collective("allreduce", 8, 10, 50, sequence=3).collective("allreduce", 108, 110, 50, sequence=4)
    b.collective("allreduce", 8, 20, 40, sequence=numbers[0]).collective("allreduce", 108, 130, 30, sequence=numbers[1])
    assert matched(attributed(a, b)) == [{0: (10, 60), 1: (20, 60)}, {0: (110, 160), 1: (130, 160)}]


# --- by order


def test_without_sequence_numbers_the_order_of_the_launches_counts_and_not_that_of_the_starts() -> None:
    a, b = ranks()
    a.collective("allreduce", 5, 300, 100).collective("allreduce", 10, 30, 90, stream=27)
    b.collective("allreduce", 5, 60, 340).collective("allreduce", 10, 80, 40, stream=27)
    assert matched(attributed(a, b)) == [{0: (30, 120), 1: (80, 120)}, {0: (300, 400), 1: (60, 400)}]


def test_external_ids_play_no_part() -> None:
    """Operators on one rank only shift all of its ids."""
    a, b = ranks()
    for at in (2, 4, 6):
        b.op("aten::view", at, 1)
    for trace, late in ((a, 0), (b, 15)):
        trace.collective("allreduce", 8, 10 + late, 50 - late).collective("allreduce", 108, 110 + late, 50 - late)
    assert matched(attributed(a, b)) == [{0: (10, 60), 1: (25, 60)}, {0: (110, 160), 1: (125, 160)}]


def test_collectives_launched_before_the_recording_are_matched_from_the_back() -> None:
    """Rank 0 began to record one collective earlier: its last from before is rank 1's only one."""
    a, b = ranks()
    a.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", -400, 300, stream=19)
    for trace, late in ((a, 0), (b, 30)):
        trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", late, 60 - late, stream=19)
        trace.collective("allreduce", 90, 100 + late, 100 - late)
    job = attributed(a, b)
    assert matched(job) == [{0: (0, 60), 1: (30, 60)}, {0: (100, 200), 1: (130, 200)}]
    assert problems(job) == [], "equal numbers were launched within the recording"


def test_what_ranks_launched_beyond_the_common_number_stays_unsplit() -> None:
    a, b = ranks()
    a.collective("allreduce", 8, 10, 50).collective("allreduce", 108, 110, 50)
    b.collective("allreduce", 8, 30, 30)
    job = attributed(a, b)
    assert matched(job) == [{0: (10, 60), 1: (30, 60)}]
    assert [parts_us(job, 0)[part] for part in ("wait", "transfer", "communication_unsplit")] == [20, 30, 50]
    assert any("1 to 2" in problem for problem in problems(job))


# --- what does not belong together


@pytest.mark.parametrize("operation", ["allreduce", "_allgather_base", "_reduce_scatter_base"])
def test_collectives_of_different_sizes_are_not_matched(operation: str) -> None:
    a, b = ranks()
    a.collective(operation, 8, 10, 50, num_elements=1024)
    b.collective(operation, 8, 30, 30, num_elements=2048)
    job = attributed(a, b)
    assert matched(job) == []
    for rank, exposed in ((0, 50), (1, 30)):
        spent = parts_us(job, rank)
        assert spent["communication_unsplit"] == exposed
        assert not spent.keys() & {"wait", "transfer"}
    assert any("differ in kind or size" in problem for problem in problems(job))


def test_collectives_of_different_kinds_are_not_matched() -> None:
    a, b = ranks()
    a.collective("allreduce", 8, 10, 50)
    b.collective("broadcast", 8, 30, 30, root=0)
    job = attributed(a, b)
    assert matched(job) == []
    assert [parts_us(job, rank)["communication_unsplit"] for rank in (0, 1)] == [50, 30]
    assert any("differ in kind or size" in problem for problem in problems(job))


def test_ranks_may_give_different_amounts_to_an_all_to_all() -> None:
    a, b = ranks()
    a.collective("all_to_all", 8, 10, 50, num_elements=1024)
    b.collective("all_to_all", 8, 30, 30, num_elements=2048)
    assert matched(attributed(a, b)) == [{0: (10, 60), 1: (30, 60)}]


def test_a_collective_of_unknown_kind_is_matched_by_its_place() -> None:
    """ROCm's kernels do not say what they do."""
    a, b = ranks()
    a.launch("ncclDevKernel_Generic_1", 8, 1, 10, 50, stream=19)
    b.launch("ncclDevKernel_Generic_1", 8, 1, 30, 30, stream=19)
    job = attributed(a, b)
    assert matched(job) == [{0: (10, 60), 1: (30, 60)}]
    assert parts_us(job, 0)["wait"] == 20


# --- groups


def test_disjoint_groups_of_one_name_are_told_apart_by_their_ranks() -> None:
    """Rank 3 is late, but ranks 0 and 1 are not in its group."""
    job = attributed(
        *(
            trace.collective("allreduce", 8, start, 500 - start, group="mesh_dp", group_ranks=members)
            for trace, members, start in zip(ranks(4), ((0, 1), (0, 1), (2, 3), (2, 3)), (10, 20, 10, 400), strict=True)
        )
    )
    assert [parts_us(job, rank).get("wait", 0) for rank in range(4)] == [10, 0, 390, 0]
    assert {(waiting, blamed) for waiting, blamed, _ in blame_us(job)} == {(0, 1), (2, 3)}


def test_a_group_of_some_ranks_waits_for_these_only() -> None:
    traces = ranks(4)
    for trace, start in zip(traces, (10, 40, 20, 300), strict=True):
        if trace.rank in (0, 2):
            trace.collective("allreduce", 8, start, 60 - start, group="2", group_ranks=(0, 2))
        trace.collective("allreduce", 280, 300 + start, 400 - start)
    job = attributed(*traces)
    assert parts_us(job, 0)["wait"] == 10 + 290
    assert parts_us(job, 2)["wait"] == 280


def test_a_kernel_without_arguments_belongs_to_the_group_of_its_stream() -> None:
    """As symmetric-memory all-reduces, which say nothing, run between two recorded ones."""
    a, b = ranks()
    for trace, late in ((a, 0), (b, 20)):
        trace.collective("allreduce", 5, 10 + late, 50 - late)
        trace.launch("multimem_all_reduce_kernel", 70, 1, 100 + late, 50 - late, stream=19)
        trace.collective("allreduce", 180, 200 + late, 50 - late)
    job = attributed(a, b)
    assert len(matched(job)) == 3
    assert parts_us(job, 0)["wait"] == 60


def attributed_without_group_ranks(*traces: TraceBuilder) -> JobAttribution:
    """As recorded where the list of a group's ranks was too long and cut short; its size is known."""
    tables = [trace.to_table() for trace in traces]
    unlisted = [tuple(msgspec.structs.replace(c, group_ranks=None) for c in table.collectives) for table in tables]
    return attribute_job(
        [
            attribute_rank(msgspec.structs.replace(table, collectives=collectives))
            for table, collectives in zip(tables, unlisted, strict=True)
        ]
    )


def test_a_group_as_large_as_the_world_has_all_ranks_where_none_are_recorded() -> None:
    traces = [t.collective("allreduce", 8, 10 + 20 * t.rank, 90 - 20 * t.rank) for t in ranks(3)]
    job = attributed_without_group_ranks(*traces)
    assert [parts_us(job, rank).get("wait", 0) for rank in range(3)] == [40, 20, 0]
    job = attributed_without_group_ranks(*traces[:2])
    assert [match.is_complete for match in job.matches] == [False], "the third rank is not here"
    assert "wait" not in parts_us(job, 0)


def test_a_group_of_unknown_ranks_is_those_that_recorded_it_where_they_are_as_many() -> None:
    traces = ranks(4)
    for trace, start in ((traces[1], 10), (traces[3], 30)):
        trace.collective("allreduce", 8, start, 60 - start, group="2", group_ranks=(1, 3))
    assert parts_us(attributed_without_group_ranks(*traces), 1)["wait"] == 20
    assert parts_us(attributed_without_group_ranks(*traces[:3]), 1)["communication_unsplit"] == 50


# --- sends and receives


def test_sends_and_receives_are_matched_by_source_and_target_in_their_order() -> None:
    """Between two stages each direction has its own order: the ranks need not mix them alike."""
    a, b = ranks()
    a.collective("send", 5, 10, 30, root=1, num_elements=111)
    a.collective("recv", 50, 60, 60, root=1, num_elements=222)
    a.collective("send", 130, 140, 80, root=1, num_elements=333)
    b.collective("send", 5, 100, 20, root=0, num_elements=222)
    b.collective("recv", 6, 20, 20, root=0, num_elements=111, stream=27)
    b.collective("recv", 150, 200, 20, root=0, num_elements=333, stream=27)
    assert matched(attributed(a, b)) == [
        {0: (10, 40), 1: (20, 40)},
        {0: (60, 120), 1: (100, 120)},
        {0: (140, 220), 1: (200, 220)},
    ]


def test_a_receive_from_one_rank_is_not_matched_with_the_send_of_another() -> None:
    traces = ranks(3)
    traces[0].collective("send", 5, 10, 90, root=2)
    traces[1].collective("send", 5, 40, 20, root=2)
    traces[2].collective("recv", 5, 40, 20, root=1).collective("recv", 70, 80, 20, root=0)
    assert matched(attributed(*traces)) == [{0: (10, 100), 2: (80, 100)}, {1: (40, 60), 2: (40, 60)}]


# --- ranks that are not here


def test_a_collective_with_a_missing_rank_is_matched_but_not_complete() -> None:
    job = attributed(*(t.collective("allreduce", 8, 10, 50) for t in ranks(4, present=(0, 2))))
    assert [(sorted(match.kernels), match.is_complete) for match in job.matches] == [([0, 2], False)]
    assert job.missing_ranks == (1, 3)


def test_a_lone_rank_matches_nothing() -> None:
    (trace,) = ranks(2, present=(1,))
    job = attributed(trace.collective("allreduce", 8, 10, 50))
    assert [(match.kernels, match.is_complete) for match in job.matches] == [({1: 0}, False)]
    assert parts_us(job, 1)["communication_unsplit"] == 50


def test_a_group_of_one_needs_nobody() -> None:
    """Also in a trace of one rank, and beside a group with missing ranks."""
    (trace,) = ranks(2, present=(0,))
    trace.collective("allreduce", 8, 10, 50, group="1", group_ranks=(0,))
    trace.collective("allreduce", 108, 110, 30)
    job = attributed(trace)
    assert parts_us(job, 0)["transfer"] == 50
    assert parts_us(job, 0)["communication_unsplit"] == 30


def test_ranks_without_communication_have_no_matches() -> None:
    job = attributed(*(t.launch("gemm", 0, 1, 5, 50) for t in ranks()))
    assert job.matches == ()
    assert problems(job) == []


def test_no_rank_at_all_is_an_empty_job() -> None:
    job = attribute_job([])
    assert job.matches == ()
    assert job.segments == {}


def test_on_the_cpu_collective_annotations_are_matched() -> None:
    """gloo has no kernels: the annotations stand for them."""
    a, b = ranks()
    a.op("aten::mm", 5, 95).annotation("gloo:all_reduce", 100, 200)
    b.op("aten::mm", 5, 245).annotation("gloo:all_reduce", 250, 50)
    job = attribute_job([attribute_rank(trace.to_table()) for trace in (a, b)])
    assert parts_us(job, 0)["wait"] == 150
    assert parts_us(job, 0)["transfer"] == parts_us(job, 1)["transfer"] == 50
    assert blame_us(job) == {(0, 1, "compute"): 150}


# --- groups that no trace names


def nameless(*late: float, num_steps: int = 10) -> list[TraceBuilder]:
    """Ranks with an all-reduce a step and no arguments; a rank's is `late` microseconds after the step's start."""
    traces = [TraceBuilder(rank, len(late)) for rank in range(len(late))]
    for number in range(num_steps):
        at = 2000.0 * number
        for pair in range(0, len(late), 2):
            end = at + max(late[pair : pair + 2]) + 100 + 37 * number * pair  # the pairs go apart
            for trace in traces[pair : pair + 2]:
                start = at + late[trace.rank] + 37 * number * pair
                trace.step(number + 1, at, 2000)
                trace.launch("ncclKernel_AllReduce_RING_LL", at, 1, start, end - start, stream=19)
    return traces


def test_nameless_collectives_are_matched_among_the_ranks_that_end_together() -> None:
    job = attributed(*nameless(0, 100, 0, 300))
    assert {tuple(match.kernels) for match in job.matches} == {(0, 1), (2, 3)}
    assert {pair[:2] for pair in blame_us(job)} == {(0, 1), (2, 3)}, "nobody waits for the other pair"
    assert [note.problem for note in job.quality] == ["the traces do not say which ranks take part in a collective"]
    assert job.quality[0].effect.endswith("taken for one group: 0, 1; 2, 3")


def test_nameless_collectives_without_clear_groups_are_of_all_ranks_and_that_is_told() -> None:
    job = attributed(*nameless(0, 100, 0, 300, num_steps=4))
    assert {tuple(match.kernels) for match in job.matches} == {(0, 1, 2, 3)}
    assert "all ranks were taken for one group" in job.quality[0].effect
