"""A played-through pipeline against the closed forms of the papers, and against what no schedule may break."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.plan.pipeline import BACKWARD, FORWARD, WEIGHTS, bubble_share, most_in_flight, simulate
from flatout.records.plan_details import PipelineInterval

F, B = 1.0, 2.0
Pipeline = tuple[tuple[PipelineInterval, ...], ...]


def even(p: int, m: int, v: int = 1, schedule: str = "1f1b") -> Pipeline:
    return simulate(p, m, v, [F] * p, [B] * p, schedule=schedule)


def end_s(pipeline: Pipeline) -> float:
    return max(stage[-1].end_s for stage in pipeline)


@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 2), (4, 8), (8, 8), (8, 64), (16, 20)])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_the_bubble_is_that_of_the_paper(schedule: str, p: int, m: int) -> None:
    """(p - 1) / (m + p - 1) of the time (Narayanan et al., 2104.04473, 2.2)."""
    pipeline = even(p, m, schedule=schedule)
    assert end_s(pipeline) == pytest.approx((m + p - 1) * (F + B))
    assert bubble_share(pipeline) == pytest.approx((p - 1) / (m + p - 1))


@pytest.mark.parametrize(("p", "m", "v"), [(2, 2, 2), (4, 8, 2), (4, 8, 5), (8, 16, 3), (8, 8, 10)])
def test_interleaving_divides_the_bubble_by_the_chunks(p: int, m: int, v: int) -> None:
    assert end_s(even(p, m, v)) == pytest.approx(m * (F + B) + (p - 1) * (F + B) / v)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (8, 20), (8, 8)])
def test_deferred_weights_leave_a_third_of_the_bubble(p: int, m: int) -> None:
    """ZB-H1: (p - 1)(F + B - W) with backward of inputs B = F and of weights W = F (Qi et al., 2401.10241, table 2)."""
    pipeline = even(p, m, schedule="zero-bubble")
    assert end_s(pipeline) == pytest.approx(m * (F + B) + (p - 1) * F)


def test_memory_in_flight_is_that_of_each_schedule() -> None:
    assert [most_in_flight(stage) for stage in even(4, 8)] == [4, 3, 2, 1]
    assert [most_in_flight(stage) for stage in even(4, 8, schedule="gpipe")] == [8, 8, 8, 8]
    assert [most_in_flight(stage) for stage in even(4, 8, schedule="zero-bubble")] == [4, 3, 2, 1]
    # Interleaved: p (1 + (p - 1) / (p v)) micro-batches' worth on the first stage (Korthikanti et al., 2205.05198).
    assert most_in_flight(even(4, 8, 2)[0]) / 2 == pytest.approx(4 * (1 + 3 / (4 * 2)))


SHAPES = st.one_of(
    st.tuples(st.integers(1, 6), st.integers(1, 9), st.just(1), st.sampled_from(["gpipe", "1f1b", "zero-bubble"])),
    st.tuples(st.integers(2, 4), st.integers(1, 3), st.integers(2, 4), st.just("interleaved")),
)


@settings(max_examples=60, deadline=None)
@given(shape=SHAPES, lengths=st.lists(st.floats(0.1, 5.0), min_size=12, max_size=12))
def test_no_schedule_breaks_what_depends_on_what(shape: tuple[int, int, int, str], lengths: list[float]) -> None:
    p, m, v, schedule = shape
    if schedule == "interleaved":
        m, schedule = m * p, "1f1b"
    pipeline = simulate(p, m, v, lengths[:p], lengths[6 : 6 + p], schedule=schedule)
    ends = {
        (each.kind, each.chunk * p + stage, each.micro_batch): each
        for stage, operations in enumerate(pipeline)
        for each in operations
    }
    kinds = (FORWARD, BACKWARD, WEIGHTS) if schedule == "zero-bubble" else (FORWARD, BACKWARD)
    assert len(ends) == len(kinds) * p * m * v, "each operation is done once"
    for stage in pipeline:
        for one, other in itertools.pairwise(stage):
            assert one.end_s <= other.start_s + 1e-9, "no stage does two things at once"
    for (kind, part, micro), each in ends.items():
        if kind == FORWARD and part > 0:
            assert each.start_s >= ends[FORWARD, part - 1, micro].end_s - 1e-9
        if kind == BACKWARD:
            assert each.start_s >= ends[FORWARD, part, micro].end_s - 1e-9
            if part < p * v - 1:
                assert each.start_s >= ends[BACKWARD, part + 1, micro].end_s - 1e-9
        if kind == WEIGHTS:
            assert each.start_s >= ends[BACKWARD, part, micro].end_s - 1e-9
