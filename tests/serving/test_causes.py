"""Each cause on both sides of its thresholds, and what the windows that they are found in are made of."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.serving.simulated import table

from flatout.records.serving import Answered, ServingWindow
from flatout.serving.causes import batch_limit, find_causes
from flatout.serving.engine import Engine, Metrics
from flatout.serving.exposition import Reading, read_metrics
from flatout.serving.window import ServerUse, most_at_once, stall_s, window

TABLE = table()
WAITING = ServingWindow(
    took_s=10.0,
    queue_s=0.4,
    prefill_s=0.1,
    decode_s=0.5,
    preemptions=0.0,
    most_kv_share=0.3,
    most_running=20.0,
    mean_waiting=3.0,
    prefix_hit_share=0.0,
    shared_prompt_share=0.0,
    stall_s=0.0,
    latency_s=1.0,
    busiest_thread_cores=0.2,
    gpu_busy_share=0.9,
    is_from_metrics=True,
)


def names(words: tuple[str, ...] = (), engine: Engine = TABLE, **changes: Any) -> list[str]:
    return [cause.name for cause in find_causes(msgspec.structs.replace(WAITING, **changes), engine, words)]


def test_requests_that_wait_for_no_other_reason_are_queueing() -> None:
    (cause,) = find_causes(WAITING, TABLE, ())
    assert (cause.name, cause.share) == ("queueing", pytest.approx(0.4))


@pytest.mark.parametrize(
    ("words", "changes", "expected"),
    [
        ((), {"mean_waiting": 0.49}, []),
        ((), {"mean_waiting": 0.5}, ["queueing"]),
        ((), {"mean_waiting": None}, []),
        ((), {"queue_s": 0.049}, []),
        ((), {"queue_s": 0.05}, ["queueing"]),
        # the table's default limit is 64
        ((), {"most_running": 60.0}, ["queueing"]),
        ((), {"most_running": 61.0}, ["under-batched"]),
        (("--max-num-seqs", "21"), {}, ["under-batched"]),
        (("--max-num-seqs=22",), {}, ["queueing"]),
        ((), {"most_running": 64.0, "most_kv_share": 0.94}, ["under-batched"]),
        ((), {"most_running": 64.0, "most_kv_share": 0.95}, ["kv-cache-full"]),
        ((), {"mean_waiting": 0.1, "most_kv_share": 0.99}, []),
        ((), {"mean_waiting": 0.1, "preemptions": 1.0}, ["kv-cache-full"]),
        ((), {"queue_s": 0.0, "stall_s": 0.049}, []),
        ((), {"queue_s": 0.0, "stall_s": 0.05}, ["prefill-stalls-decode"]),
        ((), {"queue_s": 0.0, "shared_prompt_share": 0.19}, []),
        ((), {"queue_s": 0.0, "shared_prompt_share": 0.2}, ["no-prefix-reuse"]),
        ((), {"queue_s": 0.0, "shared_prompt_share": 0.4, "prefix_hit_share": 0.2}, []),
        ((), {"queue_s": 0.0, "shared_prompt_share": 0.4, "prefix_hit_share": 0.19}, ["no-prefix-reuse"]),
        ((), {"queue_s": 0.0, "shared_prompt_share": 0.4, "prefix_hit_share": None}, []),
        (
            ("--no-enable-prefix-caching",),
            {"queue_s": 0.0, "shared_prompt_share": 0.4, "prefix_hit_share": None},
            ["no-prefix-reuse"],
        ),
        (("--enforce-eager",), {"queue_s": 0.0}, ["eager-mode"]),
        (("--enforce-eager",), {}, ["eager-mode", "queueing"]),
        # 0.3 of the latency is outside queue, prefill and decode
        ((), {"queue_s": 0.1, "mean_waiting": 0.0, "busiest_thread_cores": 0.9}, ["host-bound"]),
        ((), {"queue_s": 0.1, "mean_waiting": 0.0, "busiest_thread_cores": 0.89}, []),
        ((), {"queue_s": 0.301, "mean_waiting": 0.0, "busiest_thread_cores": 0.95}, []),
        ((), {"queue_s": 0.299, "mean_waiting": 0.0, "busiest_thread_cores": 0.95}, ["host-bound"]),
        ((), {"mean_waiting": 0.0, "busiest_thread_cores": 0.95, "gpu_busy_share": 0.69}, ["host-bound"]),
        ((), {"mean_waiting": 0.0, "busiest_thread_cores": 0.95, "gpu_busy_share": 0.7}, []),
        ((), {"mean_waiting": 0.0, "gpu_busy_share": None, "cores_busy": 3.6, "cores_allowed": 4.0}, ["host-bound"]),
        ((), {"mean_waiting": 0.0, "gpu_busy_share": None, "cores_busy": 3.5, "cores_allowed": 4.0}, []),
        ((), {"mean_waiting": 0.0, "cores_busy": 4.0, "cores_allowed": 4.0}, []),
        ((), {"latency_s": None}, []),
    ],
)
def test_a_cause_on_both_sides_of_its_thresholds(
    words: tuple[str, ...], changes: dict[str, Any], expected: list[str]
) -> None:
    assert names(words, **changes) == expected


def test_without_the_option_that_batches_the_limit_is_one() -> None:
    engine = msgspec.structs.replace(TABLE, batch_of_one_without="--continuous-batching")
    assert batch_limit(engine, ()) == 1
    assert batch_limit(engine, ("--continuous-batching",)) == 64
    assert names(engine=engine, most_running=1.0) == ["under-batched"]


def test_a_server_is_eager_without_the_options_that_capture() -> None:
    engine = msgspec.structs.replace(TABLE, eager_without=("--compile", "--graphs"))
    assert names(engine=engine, queue_s=0.0) == ["eager-mode"]
    assert names(("--graphs",), engine, queue_s=0.0) == []


def test_metrics_are_summed_over_labels_and_other_lines_are_skipped() -> None:
    text = (
        '# HELP a b\n# TYPE a counter\na{x="1"} 2.0\na{x="}"} nan\na{x="2"} 3 1700000000\nb 7\na_bucket{le="1"} 9\n'
        "a x\n\n{ 3\n"
    )
    assert read_metrics(text, {"a"}) == {"a": Reading(total=5.0, largest=3.0)}


def test_a_window_is_the_difference_of_counters_and_the_mean_of_gauges() -> None:
    metrics = Metrics(
        queue_s=("old_queue_us", "queue_us"), requests=("n",), running=("running",), kv_share=("kv",), s_per_unit=1e-6
    )

    def at(queue: float, num: float, running: float, kv: float) -> dict[str, Reading]:
        values = {"queue_us": queue, "n": num, "running": running, "kv": kv}
        return {name: Reading(total=value, largest=value) for name, value in values.items()}

    readings = [at(1e6, 10, 99, 0.9), at(2e6, 12, 2, 0.1), at(5e6, 14, 4, 0.3)]
    inside = window(metrics, readings, ServerUse(), [], took_s=1.0, unloaded_ttft_s=None, shared_prompt_share=0.0)
    assert inside.queue_s == pytest.approx(1.0)
    assert (inside.mean_running, inside.most_running, inside.most_kv_share) == (3.0, 4.0, 0.3)
    assert (inside.decode_s, inside.preemptions, inside.latency_s) == (None, None, None)


def answered(index: int, due_s: float, *piece_s: float) -> Answered:
    return Answered(
        index=index,
        due_s=due_s,
        sent_s=due_s,
        end_s=piece_s[-1],
        outcome="completed",
        first_s=piece_s[0],
        piece_s=piece_s,
        pieces=("x",) * len(piece_s),
    )


def test_without_metrics_queue_and_batch_come_from_the_answers() -> None:
    answers = [answered(0, 0.0, 0.1, 1.1), answered(1, 0.0, 1.2, 2.2), answered(2, 0.0, 2.3, 3.3)]
    inside = window(Metrics(), [], ServerUse(), answers, took_s=3.3, unloaded_ttft_s=0.1, shared_prompt_share=0.0)
    assert inside.queue_s == pytest.approx((0.0 + 1.1 + 2.2) / 3)
    assert inside.most_running == 1
    assert inside.mean_waiting == pytest.approx((1.1 + 2.2) / 3.3)
    assert not inside.is_from_metrics


def test_spans_that_touch_do_not_overlap() -> None:
    assert most_at_once([(0, 1), (1, 2), (0.5, 1.5)]) == 2
    assert most_at_once([]) == 0


def test_a_long_gap_is_a_stall_only_if_a_first_piece_of_another_request_ends_it() -> None:
    steady = answered(0, 0.0, *(0.1 * step for step in range(20)))
    stalled = answered(1, 0.0, 0.0, 0.1, 0.2, 1.2, 1.3)
    newcomer = answered(2, 0.3, 1.2, 1.3)
    assert stall_s([steady, stalled, newcomer]) == pytest.approx(0.9 / 3)
    assert stall_s([steady, stalled]) == 0.0
    just_long = answered(1, 0.0, 0.0, 0.1, 0.2, 0.399, 0.5)
    assert stall_s([steady, just_long, answered(2, 0.3, 0.399, 0.5)]) == 0.0
    assert stall_s([answered(0, 0.0, 0.1)]) is None
