"""The latencies of a model's calls by the size of the batch, against numpy's quantiles of the planted times."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from tests.step_log.recorded_ranks import rank_of, steps_of

from flatout.attribute.call_latency import MOST_SIZES, call_latencies, uncounted_calls
from flatout.records.recorded_time import CallLatency
from flatout.records.recording import RankRecording
from flatout.report.recorded_text import latency_sentence, uncounted_sentence
from flatout.step_log.job_log import job_log

SETTLED = 10


def rank(seconds: list[float], sizes: list[float], *, steps_from: str = "forward") -> RankRecording:
    steps = msgspec.structs.replace(steps_of(seconds), num_samples=np.array(sizes))
    return msgspec.structs.replace(rank_of(0, steps, 1), steps_from=steps_from, settled_step=SETTLED)


def latencies(*ranks: RankRecording) -> tuple[CallLatency, ...]:
    log = job_log(ranks)
    assert log is not None
    return call_latencies(ranks, log)


def test_each_size_has_its_quantiles_after_the_warm_up() -> None:
    random = np.random.default_rng(0)
    small, large = random.uniform(0.01, 0.02, 300), random.uniform(0.05, 0.06, 100)
    seconds = [9.0] * SETTLED + list(small) + list(large)
    often, rare = latencies(rank(seconds, [1.0] * SETTLED + [8.0] * 300 + [64.0] * 100))
    assert (often.num_samples, often.num_calls, rare.num_samples, rare.num_calls) == (8.0, 300, 64.0, 100)
    assert [often.p50_s, often.p90_s, often.p99_s] == pytest.approx(np.quantile(small, [0.5, 0.9, 0.99]))
    assert [rare.p50_s, rare.p90_s, rare.p99_s] == pytest.approx(np.quantile(large, [0.5, 0.9, 0.99]))
    assert rare.samples_per_s == pytest.approx(64 / large.mean())


@pytest.mark.parametrize(
    ("num_calls", "knows_p90", "knows_p99"),
    [(9, False, False), (10, True, False), (99, True, False), (100, True, True)],
)
def test_a_quantile_that_no_call_is_beyond_is_unknown(num_calls: int, knows_p90: bool, knows_p99: bool) -> None:
    (only,) = latencies(rank([0.01] * (SETTLED + num_calls), [4.0] * (SETTLED + num_calls)))
    assert (only.p90_s is not None, only.p99_s is not None) == (knows_p90, knows_p99)


def test_calls_of_several_threads_have_their_own_times_and_the_rate_of_all() -> None:
    """Four threads: a call takes 40 ms, and one of them ends every 10 ms."""
    num = SETTLED + 100
    one = rank([0.010] * num, [2.0] * num)
    pooled = msgspec.structs.replace(
        one, is_pooled=True, steps=msgspec.structs.replace(one.steps, model_s=np.full(num, 0.040))
    )
    (latency,) = latencies(pooled)
    assert (latency.p50_s, latency.p99_s) == pytest.approx((0.040, 0.040))
    assert latency.samples_per_s == pytest.approx(200)
    assert "4.0 at once on several threads, each in the model" in latency_sentence(latency)


def test_batches_of_unknown_size_come_last_and_have_no_rate() -> None:
    sizes = [float("nan")] * (SETTLED + 50) + [4.0] * 10
    known, unknown = latencies(rank([0.01] * len(sizes), sizes))
    assert (known.num_calls, unknown.num_calls, unknown.samples_per_s) == (10, 50, None)
    assert latency_sentence(unknown) == (
        "50 calls of unknown size, from one call to the next: p50 10.0 ms, p90 10.0 ms, p99 unknown"
    )
    assert latency_sentence(known).endswith("400 samples/s on each rank")


def test_only_the_most_frequent_sizes_are_listed() -> None:
    sizes = [0.0] * SETTLED + [float(size) for size in range(1, MOST_SIZES + 3) for _ in range(size)]
    listed = latencies(rank([0.01] * len(sizes), sizes))
    assert [latency.num_samples for latency in listed] == [float(size) for size in range(MOST_SIZES + 2, 2, -1)]


def test_a_job_that_trains_has_none() -> None:
    assert latencies(rank([0.01] * 60, [4.0] * 60, steps_from="optimizer")) == ()


def test_the_calls_that_do_not_count_are_said_with_the_reason() -> None:
    """Ten calls are the warm-up, three are the recorder's, and the rest has a latency: no call goes missing."""
    kinds = [""] * 100
    kinds[40:43] = ["flops", "prepare", "recovery"]
    steps = msgspec.structs.replace(steps_of([0.01] * 100, kinds), num_samples=np.full(100, 4.0))
    of_rank = msgspec.structs.replace(rank_of(0, steps, 1), steps_from="forward", settled_step=SETTLED)
    log = job_log([of_rank])
    assert log is not None
    uncounted = uncounted_calls([of_rank], log)
    assert uncounted is not None
    assert uncounted_sentence(uncounted) == (
        "not counted: 13 calls, 10 of the warm-up, until their times were stable and 3 that the recorder prolonged"
    )
    (latency,) = call_latencies([of_rank], log)
    assert latency.num_calls + uncounted.num_warm_up + uncounted.num_disturbed == 100
    training = msgspec.structs.replace(of_rank, steps_from="optimizer")
    assert uncounted_calls([training], log) is None
