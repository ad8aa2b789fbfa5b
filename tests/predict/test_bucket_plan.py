"""The bucket size that a trace's layers prefer: times worked out by hand, brute force, and a traced job."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from tests.predict.jobs import FACTS, change, predicted, situation

from flatout.predict.bucket_plan import MIB, SIZES_MIB, Readiness, best_bucket_mib, best_first_bucket_mib, end_ns
from flatout.predict.collective_cost import CollectiveCost
from flatout.testing import TraceBuilder


def evenly(total_mib: float, backward_ns: float) -> Readiness:
    return Readiness(at_ns=np.array([0.0, backward_ns]), num_bytes=np.array([0.0, total_mib * MIB]))


def cost(alpha_ns: float, ns_per_mib: float) -> CollectiveCost:
    return CollectiveCost(alpha_ns=alpha_ns, beta_ns_per_byte=ns_per_mib / MIB, num_seen=1)


def test_what_the_link_can_hide_leaves_the_last_bucket() -> None:
    """100 MiB in 1,000 ns of backward, 2 ns a MiB: buckets of 25 take 50 each, and the last begins at the end."""
    assert end_ns(evenly(100, 1000), 25 * MIB, cost(0, 2)) == pytest.approx(1050)
    assert end_ns(evenly(100, 1000), 5 * MIB, cost(0, 2)) == pytest.approx(1010)


def test_what_the_link_cannot_hide_leaves_the_first_bucket_and_all_bytes() -> None:
    """At 20 ns a MiB all take 2,000: the link is busy from the first bucket on, which is ready at 250 or 50."""
    assert end_ns(evenly(100, 1000), 25 * MIB, cost(0, 20)) == pytest.approx(250 + 2000)
    assert end_ns(evenly(100, 1000), 5 * MIB, cost(0, 20)) == pytest.approx(50 + 2000)


def test_a_first_bucket_that_ends_when_the_second_is_ready_leaves_the_link_no_pause() -> None:
    """The second bucket is ready at 250: by then 8 MiB are sent, which are ready at 80 and take 160."""
    plan, link = evenly(100, 1000), cost(0, 20)
    assert end_ns(plan, 25 * MIB, link, 1 * MIB) == pytest.approx(250 + 24 * 20 + 1500)
    assert end_ns(plan, 25 * MIB, link, 8 * MIB) == pytest.approx(250 + 17 * 20 + 1500)
    assert end_ns(plan, 25 * MIB, link, 12 * MIB) == pytest.approx(3 * 120 + 13 * 20 + 1500)
    assert end_ns(plan, 25 * MIB, link, 25 * MIB) == end_ns(plan, 25 * MIB, link)


def test_the_first_bucket_is_chosen_from_the_trace_and_its_gain_is_predicted() -> None:
    """Buckets of 1, 25 and 24 MiB, ready at 1 ms a MiB and sent at 2: with 8 MiB first, 14 ms less follow at 25 ms."""
    job = situation(*buckets_job(backward_us=50_000, ns_per_mib=2_000_000, alpha_us=0))
    job.facts = msgspec.structs.replace(FACTS, best_first_bucket_mib=best_first_bucket_mib(job))
    assert job.facts.best_first_bucket_mib == 8
    prediction = predicted(job, "ddp-first-bucket=8")
    assert prediction.speedup == pytest.approx(job.step_s / (job.step_s - 14e-3), rel=0.02)


def test_each_message_costs_its_latency() -> None:
    assert end_ns(evenly(100, 1000), 25 * MIB, cost(300, 20)) == pytest.approx(250 + 4 * 300 + 2000)
    assert end_ns(evenly(100, 1000), 100 * MIB, cost(300, 20)) == pytest.approx(1000 + 300 + 2000)


def buckets_job(backward_us: float, ns_per_mib: float, alpha_us: float) -> list[TraceBuilder]:
    """Two ranks with buckets of 1, 25 and 24 MiB that become ready at an even pace and wait for each other."""
    traces = [TraceBuilder(rank=rank, world_size=2) for rank in (0, 1)]
    sizes = (1, 25, 24)
    per_mib_us = backward_us / sum(sizes)
    step_us = 3 * backward_us + 50 * ns_per_mib / 1e3 + 3 * alpha_us + 1000
    for trace in traces:
        for number in range(3):
            at = number * step_us
            trace.step(number + 1, at, step_us)
            trace.annotation("DistributedDataParallel.forward", at, 5)
            free = at + 10
            at += 10
            for size in sizes:
                trace.launch("gemm", launch_at=at, launch_duration=1, start=at + 1, duration=size * per_mib_us - 4)
                at += size * per_mib_us
                start = max(at + 5, free)
                length = alpha_us + size * ns_per_mib / 1e3
                trace.collective("allreduce", launch_at=at, launch_duration=1, start=start, duration=length,
                                 num_elements=size << 18)  # fmt: skip
                free = start + length + 1
            trace.runtime("cudaDeviceSynchronize", at + 10, free - at)
    return traces


def test_distant_links_prefer_large_buckets_and_hidden_exchanges_small_ones() -> None:
    distant = situation(*buckets_job(backward_us=5_000, ns_per_mib=20_000, alpha_us=20_000))
    near = situation(*buckets_job(backward_us=50_000, ns_per_mib=200_000, alpha_us=20))
    far, close = best_bucket_mib(distant), best_bucket_mib(near)
    assert far is not None and close is not None
    assert far >= 50
    assert close <= 3


def test_the_choice_is_the_best_of_all_sizes_by_brute_force() -> None:
    job = situation(*buckets_job(backward_us=50_000, ns_per_mib=500_000, alpha_us=1_000))
    chosen = best_bucket_mib(job)
    ends = {}
    for size in SIZES_MIB:
        free = 0.0
        limits = sorted(range(50, 0, -size))
        for before, limit in zip([0, *limits], limits, strict=False):
            free = max(free, limit / 50 * 50_000) + 1_000 + (limit - before) * 500
        ends[size] = free
    assert chosen is not None
    assert ends[chosen] <= 1.03 * min(ends.values())


def test_a_trace_with_one_bucket_does_not_show_the_layers() -> None:
    one = TraceBuilder(rank=0, world_size=1)
    for number in range(3):
        at = number * 1000
        one.step(number + 1, at, 1000)
        one.launch("gemm", launch_at=at, launch_duration=1, start=at + 1, duration=400)
        one.collective("allreduce", launch_at=at + 2, launch_duration=1, start=at + 401, duration=100, num_elements=9)
        one.runtime("cudaDeviceSynchronize", at + 4, 500)
    assert best_bucket_mib(situation(one)) is None
    assert best_first_bucket_mib(situation(one)) is None


def test_smaller_buckets_are_offered_and_their_gain_is_predicted() -> None:
    """The last bucket of 24 MiB is exposed for 4.82 ms, one of 3 MiB for 0.62 ms."""
    job = situation(*buckets_job(backward_us=50_000, ns_per_mib=200_000, alpha_us=20))
    facts = msgspec.structs.replace(FACTS, best_bucket_mib=best_bucket_mib(job))
    job.facts = facts
    name = f"ddp-bucket={facts.best_bucket_mib}"
    assert change(name, facts).patch is not None
    prediction = predicted(job, name)
    step_s = job.step_s
    assert prediction.speedup == pytest.approx(step_s / (step_s - 4.2e-3), rel=0.02)
