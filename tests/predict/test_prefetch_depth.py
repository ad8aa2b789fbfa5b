"""FSDP2: how many units are gathered ahead, by the time of a gather and of a unit's compute; copies on each host."""

from __future__ import annotations

import msgspec
import pytest
from tests.change.jobs import diagnosis, facts
from tests.predict.jobs import FACTS, predicted, situation

from flatout.change.candidates import candidates
from flatout.change.fsdp2 import changes
from flatout.predict.prefetch_depth import best_prefetch_depth
from flatout.testing import TraceBuilder


def gathering(gather_us: float, compute_us: float = 100.0, units: int = 6) -> list[TraceBuilder]:
    """Two ranks that gather a unit, compute it, and gather the next."""
    traces = [TraceBuilder(rank=rank, world_size=2) for rank in (0, 1)]
    step_us = units * (gather_us + compute_us) + 100
    for trace in traces:
        for number in range(3):
            begin = at = number * step_us
            trace.step(number + 1, begin, step_us)
            for unit in range(units):
                trace.collective("_allgather_base", launch_at=begin + 2 * unit, launch_duration=1, start=at + 20,
                                 duration=gather_us, num_elements=1 << 20)  # fmt: skip
                at += gather_us
                trace.launch("gemm", launch_at=begin + 2 * unit + 1, launch_duration=1, start=at + 20,
                             duration=compute_us)  # fmt: skip
                at += compute_us
            trace.runtime("cudaDeviceSynchronize", begin + 30, at - begin)
    return traces


@pytest.mark.parametrize(("gather_us", "depth"), [(50, 1), (95, 1), (150, 2), (290, 3), (390, 4), (450, 1)])
def test_a_gather_is_hidden_behind_as_many_units_as_it_takes(gather_us: float, depth: int) -> None:
    assert best_prefetch_depth(situation(*gathering(gather_us))) == depth


def test_a_trace_without_gathers_gives_no_depth() -> None:
    trace = TraceBuilder(rank=0, world_size=1)
    for number in range(3):
        trace.step(number + 1, number * 1000, 1000).launch("gemm", number * 1000, 1, number * 1000 + 1, 500)
    assert best_prefetch_depth(situation(trace)) is None


def test_the_predicted_depth_alone_is_offered() -> None:
    known = msgspec.structs.replace(FACTS, best_prefetch_depth=3)
    assert [change.value for change in changes(known) if change.knob.name == "fsdp2-prefetch"] == ["3"]
    assert len([change for change in changes(FACTS) if change.knob.name == "fsdp2-prefetch"]) == 3


@pytest.mark.parametrize(("num_hosts", "copies"), [(1, []), (2, ["8"])])
def test_several_hosts_may_each_hold_a_copy(num_hosts: int, copies: list[str]) -> None:
    known = facts(wrapper="fsdp2", num_hosts=num_hosts, ranks_per_host=8, num_ranks=8 * num_hosts)
    offered = candidates(diagnosis({"exposed-all-gather": 0.05}), known)
    assert [change.value for change in offered if change.knob.name == "fsdp2-hybrid"] == copies


def test_copies_leave_the_bytes_of_two_shards_between_hosts() -> None:
    """Two hosts of two ranks: 2 x 1/2 of a half of all weights for 3 x 3/4 of all, so 2/9 of the bytes are left.

    At best, 2/9 of the time, too: the links within a host may be no faster than those between them.
    """
    two_hosts = facts(wrapper="fsdp2", num_hosts=2, ranks_per_host=2, num_ranks=4)
    found = predicted(situation(*gathering(400.0), facts=two_hosts), "fsdp2-hybrid=2")
    step_us, gathers_us = 6 * 500 + 100, 6 * 400
    assert found.high > step_us / (step_us - gathers_us * 7 / 9)
    assert found.speedup == pytest.approx(step_us / (step_us - gathers_us * 7 / 18), rel=0.05)
    assert found.low < 1.0
