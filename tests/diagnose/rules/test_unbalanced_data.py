"""The rule `unbalanced-data`."""

from __future__ import annotations

import pytest
from tests.diagnose.jobs import GEMM, STEP, costs_us, found, free_of_recorder_cost, names, times

from flatout.testing import TraceBuilder

REDUCE = 20


def with_lengths(
    *lengths: tuple[int, ...], us_per_token: tuple[float, ...] = (1.0,) * 4, shapes: bool = True
) -> list[TraceBuilder]:
    """Each rank's sequence length by step; it computes 1 us a token, then all meet, then all compute the rest alike."""
    traces = [TraceBuilder(rank, len(lengths)) for rank in range(len(lengths))]
    for trace, mine, pace in zip(traces, lengths, us_per_token, strict=False):
        for (number, at), length, others in zip(times(len(mine)), mine, zip(*lengths, strict=True), strict=True):
            compute, longest = pace * length, max(p * n for p, n in zip(us_per_token, others, strict=False))
            trace.step(number, at, STEP)
            trace.op("aten::embedding", at, 1, shapes=[[50304, 1024], [1, length], []] if shapes else None)
            trace.launch(GEMM, at + 1, 4, at + 5, compute)
            trace.collective("allreduce", at + 6, at + 5 + compute, longest - compute + REDUCE)
            begin = at + 5 + longest + REDUCE
            trace.launch(GEMM, at + 8, 1, begin, at + STEP - begin)
    return traces


def test_the_cost_is_the_longest_compute_over_the_mean() -> None:
    """Differences of 3000 and 2000 us between two ranks: half of each, over two steps 1250 us a step."""
    diagnosis = free_of_recorder_cost(*with_lengths((1000, 4000), (4000, 2000)))
    finding = found(diagnosis, "unbalanced-data")
    assert finding.cost_s_per_step == pytest.approx((3000 + 2000) / 2 / 2 * 1e-6)
    assert finding.ranks == (0, 1)
    assert finding.evidence["heaviest_rank_by_step"] == [1, 0]
    assert finding.evidence["input_elements"] == {"0": [1000, 4000], "1": [4000, 2000]}
    assert finding.evidence["heavier_is_slower_share"] == 1
    assert finding.confidence == "high"
    assert finding.safety == "semantic"


def test_lateness_that_it_explains_is_no_straggler() -> None:
    assert names(free_of_recorder_cost(*with_lengths((1000, 1000), (4000, 4000)))) == ["unbalanced-data"]


def test_ranks_that_get_more_in_some_step_are_named() -> None:
    finding = found(free_of_recorder_cost(*with_lengths((1000, 1000), (3000, 1000), (1000, 3000))), "unbalanced-data")
    assert finding.ranks == (1, 2)


def test_equal_lengths_are_balanced() -> None:
    assert costs_us(free_of_recorder_cost(*with_lengths((3000, 1000), (3000, 1000)))) == {}


def test_a_rank_that_computes_longer_for_equal_input_is_a_straggler() -> None:
    traces = with_lengths((2000, 2000), (2000, 2000), us_per_token=(1, 2))
    assert names(free_of_recorder_cost(*traces)) == ["straggler"]


def test_three_percent_more_input_do_not_explain_fifteen_percent_more_compute() -> None:
    traces = with_lengths((4000, 4000), (4120, 4120), us_per_token=(1, 1.12))
    assert names(free_of_recorder_cost(*traces)) == ["straggler"]


def test_a_ninth_more_input_is_unequal_work() -> None:
    assert names(free_of_recorder_cost(*with_lengths((4000, 4000), (4450, 4450)))) == ["unbalanced-data"]


def test_a_rank_that_is_slowest_also_where_it_has_less_to_do_is_a_straggler() -> None:
    """It needs three times as long for a token, so it is the last one also in the three of five steps with half."""
    traces = with_lengths((1000, 1000, 1000, 2000, 2000), (2000, 2000, 2000, 1000, 1000), us_per_token=(3, 1))
    assert names(free_of_recorder_cost(*traces)) == ["straggler"]


def test_a_rank_that_computes_longer_for_less_input_is_a_straggler() -> None:
    """Rank 1 has a tenth less to do and takes longer: its data is not what makes it late."""
    diagnosis = free_of_recorder_cost(*with_lengths((2000, 2000), (1800, 1800), us_per_token=(1, 2)))
    assert names(diagnosis) == ["straggler"]
    assert diagnosis.findings[0].ranks == (1,)


def test_without_recorded_shapes_nothing_is_claimed_about_the_data() -> None:
    diagnosis = free_of_recorder_cost(*with_lengths((1000, 1000), (4000, 4000), shapes=False))
    assert names(diagnosis) == ["straggler"]


@pytest.mark.parametrize(("more", "is_told"), [(380, False), (420, True)])
def test_below_two_percent_of_the_step_it_is_not_told(more: int, is_told: bool) -> None:
    """Two ranks: half of the difference."""
    diagnosis = free_of_recorder_cost(*with_lengths((1000, 1000), (1000 + more, 1000 + more)))
    assert ("unbalanced-data" in names(diagnosis)) == is_told
