"""The advice of `exposed-communication` to exchange gradients for more samples at once, and its predicted gain."""

from __future__ import annotations

import pytest
from tests.diagnose.jobs import GEMM, STEP, found, free_of_recorder_cost, times

from flatout.testing import TraceBuilder


def reducing(share: float) -> list[TraceBuilder]:
    """Two ranks with two buckets after the compute, which take this share of the step together."""
    traces = [TraceBuilder(rank) for rank in (0, 1)]
    compute = (1 - share) * STEP
    for trace in traces:
        for number, at in times(3):
            trace.step(number, at, STEP)
            trace.annotation("DistributedDataParallel.forward", at, 2)
            trace.launch(GEMM, at, 4, at, compute)
            for place in range(2):
                begin = at + compute + place * share * STEP / 2
                trace.collective("allreduce", at + 6 + place, begin, share * STEP / 2, num_elements=1000,
                                 launch_duration=0)  # fmt: skip
    return traces


@pytest.mark.parametrize(("share", "gain"), [(0.5, 2 / 1.5), (0.31, 2 / 1.69), (0.29, None)])
def test_more_samples_for_each_exchange_are_advised_where_it_dominates(share: float, gain: float | None) -> None:
    """Half of the step is exchange: two steps' compute and one exchange take 3/4 of the time of two steps."""
    finding = found(free_of_recorder_cost(*reducing(share)), "exposed-communication")
    assert finding.evidence.get("doubled_batch_ratio") == (pytest.approx(gain, rel=0.02) if gain else None)
    assert any("a batch twice as large" in line for line in finding.changes) == (gain is not None)
