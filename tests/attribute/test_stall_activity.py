"""What ran in a stalled step: times by hand, in traces whose middle step stalls."""

from __future__ import annotations

import pytest

from flatout.attribute.stall_activity import stalled_rank
from flatout.records.stall_trace import StalledRank
from flatout.testing import TraceBuilder

OTHER_THREAD = 4711


def steps(*lengths_us: float) -> tuple[TraceBuilder, list[float]]:
    """Steps with 500 us of `aten::mm` at their ends, and their starts."""
    trace, at, starts = TraceBuilder(0, 2), 0.0, []
    for number, length in enumerate(lengths_us, 10):
        trace.step(number, at, length).op("aten::mm", at + length - 500, 500)
        starts.append(at)
        at += length
    return trace, starts


def stalled(trace: TraceBuilder) -> StalledRank:
    found = stalled_rank(trace.to_table(), 3)
    assert found is not None
    return found


def test_an_annotated_checkpoint_is_named_with_its_time() -> None:
    trace, starts = steps(1000, 9000, 1000)
    trace.annotation("flatout:checkpoint", starts[1], 7000)
    trace.op("aten::copy_", starts[1] + 100, 3000)  # inside it
    found = stalled(trace)
    assert (found.rank, found.step, found.step_s, found.excess_s) == (3, 11, 0.009, pytest.approx(0.008))
    (activity,) = found.activities
    assert (activity.name, activity.seconds) == ("flatout:checkpoint", pytest.approx(0.007))
    assert found.idle_s == pytest.approx(0.001)  # 1.5 ms, of which a regular step has 0.5 ms
    assert not found.waits


@pytest.mark.parametrize(("wait_us", "waits"), [(4010, True), (3990, False)])
def test_a_rank_waits_if_half_of_the_excess_is_a_collective(wait_us: float, waits: bool) -> None:
    """On another thread, as gloo's collectives are."""
    trace, starts = steps(1000, 9000, 1000)
    trace.annotation("gloo:barrier", starts[1], wait_us, thread=OTHER_THREAD)
    found = stalled(trace)
    assert found.activities[0].is_communication
    assert found.waits is waits


def test_a_rank_in_python_has_no_event() -> None:
    found = stalled(steps(1000, 9000, 1000)[0])
    assert (found.activities, found.idle_s) == ((), pytest.approx(0.008))


@pytest.mark.parametrize(("duration_us", "is_named"), [(410, True), (390, False)])
def test_an_activity_of_less_than_a_twentieth_is_not_named(duration_us: float, is_named: bool) -> None:
    trace, starts = steps(1000, 9000, 1000)
    trace.op("aten::topk", starts[1], duration_us)
    assert bool(stalled(trace).activities) is is_named


def test_many_short_operators_of_an_evaluation_add_up() -> None:
    trace, starts = steps(1000, 9000, 1000)
    for number in range(70):
        trace.op("aten::linear", starts[1] + 100 * number, 90)
    (activity,) = stalled(trace).activities
    assert (activity.name, activity.seconds) == ("aten::linear", pytest.approx(0.0063))


def test_one_step_shows_nothing_regular_to_compare_with() -> None:
    assert stalled_rank(steps(9000)[0].to_table(), 0) is None
