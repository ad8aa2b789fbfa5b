"""The findings of scripts that only infer: their costs by hand, both sides of each threshold, and jobs without them."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from tests.diagnose.jobs import GEMM, attributed, found, names
from tests.step_log.recorded_ranks import rank_of, steps_of

from flatout.attribute.job import attribute_job
from flatout.diagnose.find import diagnose
from flatout.diagnose.recorder import Untraced
from flatout.diagnose.rules import (
    eager_mode,
    idle_cores,
    no_kv_cache,
    preprocessing,
    repeated_prefill,
    small_batch,
    thread_oversubscription,
)
from flatout.inside.protocol import MODEL_SPAN, MOST_KNOWN_TOKENS, OTHER_MODEL_SPAN
from flatout.records.change import JobFacts
from flatout.records.diagnosis import Diagnosis
from flatout.records.job_log import JobLog
from flatout.records.recording import RankRecording
from flatout.step_log.job_log import job_log
from flatout.testing import TraceBuilder

NUM = 200
STEP = 10_000  # us
Values = float | list[float]


def calls(
    duration_s: Values = 0.010,
    model_s: Values = 0.010,
    *,
    samples: Values = 1.0,
    tokens: Values = np.nan,
    known: Values = np.nan,
    steps_from: str = "forward",
    is_pooled: bool = False,
    **columns: Any,
) -> RankRecording:
    """Return a rank whose steps are calls."""

    def column(values: Values) -> np.ndarray[Any, Any]:
        return np.array(values if isinstance(values, list) else [values] * NUM, dtype=np.float64)

    steps = msgspec.structs.replace(
        steps_of(column(duration_s).tolist(), **columns),
        model_s=column(model_s),
        num_samples=column(samples),
        num_tokens=column(tokens),
        num_known_tokens=column(known),
        num_backward=np.zeros(NUM, dtype=np.int64),
    )
    return msgspec.structs.replace(rank_of(0, steps, 1), steps_from=steps_from, is_pooled=is_pooled)


def log_of(rank: RankRecording) -> JobLog:
    log = job_log([rank])
    assert log is not None
    return log


def diagnosed(rank: RankRecording, *traces: TraceBuilder, facts: JobFacts | None = None) -> Diagnosis:
    job = attributed(*traces) if traces else attribute_job([])
    return diagnose(job, log=log_of(rank), facts=facts, untraced=Untraced(step_s=1e6))


def trace(
    *,
    operators: int = 40,
    each_us: float = 100.0,
    gap_us: float = 0.0,
    before_us: float = 0.0,
    operator_before_us: float = 0.0,
    other_model_us: float = 0.0,
    longest_us: float | None = None,
) -> TraceBuilder:
    """Return four steps on the CPU: what is before the call, then a call with operators of one kind and shape.

    `longest_us` is the time of every second operator.
    """
    builder = TraceBuilder(0, 1, device_name="")
    at = 0.0
    for number in range(1, 5):
        start = at
        if operator_before_us:
            builder.op("aten::upsample", at, operator_before_us)
        if other_model_us:
            builder.annotation(OTHER_MODEL_SPAN + "Encoder", at, other_model_us)
            builder.op("aten::linear", at, other_model_us)
        at += max(before_us, operator_before_us, other_model_us)
        begun = at
        for place in range(operators):
            length = longest_us if longest_us is not None and place % 2 else each_us
            builder.op("aten::mm", at, length, shapes=[[64, 64], [64, 64]])
            at += length + gap_us
        builder.annotation(MODEL_SPAN, begun, at - begun)
        builder.step(number, start, at - start)
    return builder


def step_s(**settings: Any) -> float:
    """Return the step of `trace` with these settings, in seconds."""
    before = max(settings.get(name, 0.0) for name in ("before_us", "operator_before_us", "other_model_us"))
    operators, each = settings.get("operators", 40), settings.get("each_us", 100.0)
    longest = settings.get("longest_us") or each
    return float(before + operators * ((each + longest) / 2 + settings.get("gap_us", 0.0))) / 1e6


def traced(facts: JobFacts | None = None, **settings: Any) -> Diagnosis:
    """Return the diagnosis of a recording whose calls are those of the trace."""
    duration_s = step_s(**settings)
    before_us = max(settings.get(name, 0.0) for name in ("before_us", "operator_before_us", "other_model_us"))
    return diagnosed(calls(duration_s, duration_s - before_us / 1e6), trace(**settings), facts=facts)


# --- preprocessing


def test_time_between_calls_is_the_cost_of_preparing_inputs() -> None:
    finding = found(traced(operator_before_us=6000.0), "preprocessing")
    assert finding.cost_s_per_step == pytest.approx(0.006, rel=0.01)
    assert finding.share_of_step == pytest.approx(0.6, rel=0.01)
    assert finding.evidence["model_s"] == pytest.approx(0.004)
    assert "mostly torch's own operators (upsample)" in finding.title
    assert finding.evidence["longest_between_s"] == {"aten::upsample": pytest.approx(0.006)}


def test_time_without_operators_is_not_called_torchs() -> None:
    diagnosis = traced(before_us=6000.0)
    finding = found(diagnosis, "preprocessing")
    assert finding.cost_s_per_step == pytest.approx(0.006, rel=0.01)
    assert "mostly Python, other libraries or waiting" in finding.title
    assert "host-bound" not in names(diagnosis), "its seconds are counted once"


@pytest.mark.parametrize(("share", "is_told"), [(-0.005, False), (0.005, True)])
def test_every_loop_does_something_between_calls(share: float, is_told: bool) -> None:
    between_s = (0.1 + share) * 0.010
    assert ("preprocessing" in names(diagnosed(calls(0.010, 0.010 - between_s)))) is is_told


@pytest.mark.parametrize(("share", "names_torch"), [(-0.05, False), (0.05, True)])
def test_operators_are_named_if_they_take_most_of_it(share: float, names_torch: bool) -> None:
    operator_us = (0.5 + share) * 6000
    diagnosis = traced(before_us=6000.0, operator_before_us=operator_us)
    assert ("torch's own operators" in found(diagnosis, "preprocessing").title) is names_torch


def test_another_model_is_no_preparation() -> None:
    assert "preprocessing" not in names(traced(other_model_us=6000.0))


def test_waiting_for_a_loader_has_its_own_finding() -> None:
    waiting = calls(0.010, 0.004, steps_from="batch", loader_s=dict.fromkeys(range(NUM), 0.006))
    assert "preprocessing" not in names(diagnosed(waiting))


@pytest.mark.parametrize(("missing", "is_told"), [(-0.02, True), (0.02, False)])
def test_batches_of_a_loader_are_calls_if_nearly_all_of_them_are(missing: float, is_told: bool) -> None:
    num_missing = int(NUM * (0.1 + missing))
    model_s = [np.nan] * num_missing + [0.004] * (NUM - num_missing)
    assert ("preprocessing" in names(diagnosed(calls(0.010, model_s, steps_from="batch")))) is is_told


# --- no-kv-cache


def growing(
    per_token_s: float = 20e-6, *, fixed_s: float = 0.002, num_growing: int = 19, known: bool = True
) -> RankRecording:
    """Ten texts of 20 calls after a prompt of 11 tokens, without a cache; only so many calls of a text grow."""
    lengths = [11.0 + min(place % 20, num_growing) for place in range(NUM)]
    duration_s = [fixed_s + per_token_s * length for length in lengths]
    before = [0.0, *lengths[:-1]]
    known_tokens = [min(one, other) for one, other in zip(before, lengths, strict=False)]
    return calls(duration_s, duration_s, tokens=lengths, known=known_tokens if known else 0.0)


def test_the_tokens_that_a_cache_would_hold_cost_what_a_call_grows_by() -> None:
    """19 of 20 calls compute 12 to 30 tokens; without the new one that is 20 on average."""
    finding = found(diagnosed(growing()), "no-kv-cache")
    assert finding.cost_s_per_step == pytest.approx(19 / 20 * 20 * 20e-6, rel=0.02)
    assert finding.evidence["each_token_s"] == pytest.approx(20e-6)
    assert "drift" not in names(diagnosed(growing()))


@pytest.mark.parametrize("per_token_s", [0.0, -1e-6])
def test_a_call_that_takes_as_long_for_any_length_needs_no_cache(per_token_s: float) -> None:
    assert "no-kv-cache" not in names(diagnosed(growing(per_token_s)))


def test_other_tokens_of_growing_length_are_no_generation() -> None:
    assert "no-kv-cache" not in names(diagnosed(growing(known=False)))


@pytest.mark.parametrize(("num_growing", "is_told"), [(10, False), (11, True)])
def test_at_least_half_of_the_calls_must_grow(num_growing: int, is_told: bool) -> None:
    """91 and 101 of the 190 measured calls."""
    assert ("no-kv-cache" in names(diagnosed(growing(num_growing=num_growing)))) is is_told


@pytest.mark.parametrize(("num", "is_told"), [(-1, False), (0, True)])
def test_few_lengths_do_not_show_how_the_time_grows(num: int, is_told: bool) -> None:
    period = 8 + 1 + num  # the first call of a text does not grow
    lengths = [11.0 + place % period for place in range(NUM)]
    duration_s = [0.001 + 20e-6 * length for length in lengths]
    rank = calls(duration_s, duration_s, tokens=lengths)
    assert ("no-kv-cache" in names(diagnosed(rank))) is is_told


def test_sequences_longer_than_what_is_compared_count_as_known() -> None:
    lengths = [MOST_KNOWN_TOKENS + 10.0 + place % 20 for place in range(NUM)]
    duration_s = [20e-6 * length for length in lengths]
    rank = calls(duration_s, duration_s, tokens=lengths, known=float(MOST_KNOWN_TOKENS))
    assert "no-kv-cache" in names(diagnosed(rank))


# --- repeated-prefill


def prompts(*, tokens: float = 400.0, known: float = 300.0, every: int = 10, num: int = NUM) -> RankRecording:
    """A prompt of 9 ms at every tenth call, and calls with one token of 1 ms."""
    is_prompt = [place % every == 0 and place < num for place in range(NUM)]
    model_s = [0.009 if prompt else 0.001 for prompt in is_prompt]
    return calls(
        model_s,
        model_s,
        tokens=[tokens if prompt else np.nan for prompt in is_prompt],
        known=[known if prompt else np.nan for prompt in is_prompt],
    )


def test_the_shared_part_of_a_prompt_is_what_a_cache_of_prefixes_saves() -> None:
    """Three quarters of the 8 ms beyond a call with one token, in one of ten calls."""
    finding = found(diagnosed(prompts()), "repeated-prefill")
    assert finding.cost_s_per_step == pytest.approx(0.75 * 0.008 / 10)
    assert (finding.evidence["num_shared_tokens"], finding.evidence["num_prompt_tokens"]) == (300, 400)


@pytest.mark.parametrize(
    ("tokens", "known", "is_told"),
    [
        (40, 31, False),
        (40, 32, True),
        (400, 199, False),
        (400, 200, True),
    ],
)
def test_few_tokens_that_are_alike_are_chance(tokens: float, known: float, is_told: bool) -> None:
    assert ("repeated-prefill" in names(diagnosed(prompts(tokens=tokens, known=known)))) is is_told


@pytest.mark.parametrize(("num", "is_told"), [(-1, False), (0, True)])
def test_prompts_must_repeat(num: int, is_told: bool) -> None:
    wanted = 3 + num
    rank = prompts(every=10, num=10 * (wanted + 1))  # the first is in the warm-up
    assert ("repeated-prefill" in names(diagnosed(rank))) is is_told


def test_the_next_token_of_a_generation_without_a_cache_is_no_prompt() -> None:
    assert "repeated-prefill" not in names(diagnosed(growing()))


# --- small-batch


def sizes(small_s: float, large_s: float, *, num_large: int = 40) -> RankRecording:
    """Calls with 4 samples, and among them some with 32."""
    is_large = [place >= NUM - num_large for place in range(NUM)]
    model_s = [large_s if large else small_s for large in is_large]
    return calls(model_s, model_s, samples=[32.0 if large else 4.0 for large in is_large])


def test_the_rate_of_the_larger_batches_is_what_small_ones_could_have() -> None:
    """4 samples in 4 ms, 32 in 8 ms: at that rate 4 samples take 1 ms. 150 of 190 measured calls are small."""
    finding = found(diagnosed(sizes(0.004, 0.008)), "small-batch")
    assert finding.cost_s_per_step == pytest.approx(150 / 190 * 0.003)
    assert finding.evidence["best_size"] == 32


@pytest.mark.parametrize(("faster", "is_told"), [(-0.02, False), (0.02, True)])
def test_a_larger_batch_must_be_faster(faster: float, is_told: bool) -> None:
    large_s = 8 * 0.004 / (1.2 + faster)
    assert ("small-batch" in names(diagnosed(sizes(0.004, large_s)))) is is_told


@pytest.mark.parametrize(("num", "is_told"), [(-1, False), (0, True)])
def test_a_rate_needs_some_calls(num: int, is_told: bool) -> None:
    rank = sizes(0.004, 0.008, num_large=10 + num)
    assert ("small-batch" in names(diagnosed(rank))) is is_told


def idle_gpu(idle_us: float, samples: float) -> Diagnosis:
    builder = TraceBuilder(0, 1)
    for number in range(1, 5):
        at = (number - 1) * STEP
        builder.step(number, at, STEP).annotation(MODEL_SPAN, at, STEP)
        builder.launch(GEMM, at + idle_us - 5, 5, at + idle_us, STEP - idle_us)
    return diagnosed(calls(samples=samples), builder)


def test_a_gpu_that_waits_for_the_host_has_room_for_more_samples() -> None:
    finding = found(idle_gpu(6000, 1), "small-batch")
    assert finding.cost_s_per_step == pytest.approx(0.5 * 0.006, rel=0.01)


@pytest.mark.parametrize(
    ("idle_share", "samples", "is_told"),
    [
        (0.28, 1, False),
        (0.32, 1, True),
        (0.6, 8, True),
        (0.6, 9, False),
    ],
)
def test_a_busy_gpu_or_a_large_batch_needs_no_larger_one(idle_share: float, samples: float, is_told: bool) -> None:
    assert ("small-batch" in names(idle_gpu(idle_share * STEP, samples))) is is_told


# --- thread-oversubscription


def on_cores(
    threads: int = 8, allowed: float = 2.0, others: float | None = None, *, ranks: int = 1, **more: Any
) -> JobFacts:
    return JobFacts(
        threads_per_rank=threads,
        cores_allowed=allowed,
        cores_busy_by_others=others,
        num_ranks=ranks,
        ranks_per_host=ranks,
        device="cpu",
        only_infers=True,
        **more,
    )


def test_operators_beyond_the_fastest_of_their_kind_are_the_cost_of_too_many_threads() -> None:
    """Half of 40 operators take 300 us in place of 100: 4 ms of 8."""
    finding = found(traced(on_cores(), longest_us=300.0), "thread-oversubscription")
    assert finding.cost_s_per_step == pytest.approx(0.004, rel=0.01)
    assert finding.evidence["beyond_fastest_share"] == pytest.approx(0.5)
    assert "8 compute threads have 2 free cores" in finding.title
    assert finding.changes[0].startswith("OMP_NUM_THREADS=2")


@pytest.mark.parametrize(
    ("facts", "is_told"),
    [
        (on_cores(2, 2.0), False),
        (on_cores(2, 1.5 + 0.01), False),
        (on_cores(2, 1.5 - 0.01), True),
        (on_cores(2, 4.0, others=2.4), False),
        (on_cores(2, 4.0, others=2.6), True),
        (on_cores(2, 4.0, ranks=2), False),
        (on_cores(2, 3.0, ranks=2), True),
        (on_cores(1, 0.2), False),
        (JobFacts(threads_per_rank=8), False),
    ],
)
def test_threads_are_too_many_if_cores_are_not_there_or_not_free(facts: JobFacts, is_told: bool) -> None:
    assert ("thread-oversubscription" in names(traced(facts, longest_us=300.0))) is is_told


@pytest.mark.parametrize(
    ("each_us", "longest_us", "is_told"),
    [
        (30.0, 40.0, True),
        (48.0, 60.0, False),  # too long on average
        (40.0, 48.0, False),  # too even: 4 of 44 us are beyond the fastest
        (38.0, 48.0, True),
    ],
)
def test_threads_are_too_many_for_short_operators_that_take_differently_long(
    each_us: float, longest_us: float, is_told: bool
) -> None:
    diagnosis = traced(on_cores(2, 2.0), each_us=each_us, longest_us=longest_us)
    assert ("thread-oversubscription" in names(diagnosis)) is is_told


def pool(
    at_once: float = 8.0, *, call_s: float = 0.008, fastest_s: float = 0.001, threads: int = 2, allowed: float = 2.0
) -> Diagnosis:
    model_s = [fastest_s if place % 50 == 0 else call_s for place in range(NUM)]
    duration_s = float(np.mean(model_s[10:])) / at_once
    facts = on_cores(threads, allowed)
    return diagnosed(calls(duration_s, model_s, is_pooled=True), facts=facts)


def test_calls_of_a_pool_that_get_in_each_others_way_cost_what_exceeds_the_undisturbed_ones() -> None:
    """A call of 1 ms on each of two cores ends every 0.5 ms, but one ends every 0.98 ms."""
    diagnosis = pool()
    finding = found(diagnosis, "thread-oversubscription")
    model_s = (187 * 0.008 + 3 * 0.001) / 190
    assert finding.cost_s_per_step == pytest.approx(model_s / 8 - 0.001 / 2, rel=0.02)
    assert finding.evidence["calls_at_once"] == pytest.approx(8.0)
    assert "periodic-stall" not in names(diagnosis), "the times between ends of calls that overlap vary"


@pytest.mark.parametrize(
    ("at_once", "threads", "allowed", "is_told"),
    [
        (1.4, 8, 2.0, False),
        (1.6, 8, 2.0, True),
        (8.0, 1, 7.6, False),
        (8.0, 1, 7.4, True),
    ],
)
def test_a_pool_needs_calls_at_once_and_more_threads_than_cores(
    at_once: float, threads: int, allowed: float, is_told: bool
) -> None:
    diagnosis = pool(at_once, threads=threads, allowed=allowed)
    assert ("thread-oversubscription" in names(diagnosis)) is is_told


def sessions(threads: int | None, free: float = 2.0, **more: Any) -> Diagnosis:
    """Half of the calls of a session take 10 ms, half 2 ms, and one is a stray."""
    model_s = [0.010 if place % 2 else 0.002 for place in range(NUM)]
    model_s[20] = 0.0001
    facts = on_cores(2, free, runs_onnx=True, session_threads=threads, **more)
    return diagnosed(calls(0.012, model_s), facts=facts)


def test_calls_of_onnx_runtime_beyond_the_fastest_are_the_cost_of_its_threads() -> None:
    finding = found(sessions(8), "thread-oversubscription")
    assert finding.cost_s_per_step == pytest.approx(0.004, rel=0.02)
    assert finding.changes[0] == "SessionOptions.intra_op_num_threads = 2"


@pytest.mark.parametrize(
    ("threads", "machine", "is_told"), [(2, 64, False), (3, 64, True), (0, 64, True), (0, 2, False), (0, None, False)]
)
def test_onnx_runtime_takes_the_cores_of_the_machine_unless_the_script_says_otherwise(
    threads: int, machine: int | None, is_told: bool
) -> None:
    assert ("thread-oversubscription" in names(sessions(threads, cores_of_machine=machine))) is is_told


# --- idle-cores


def test_cores_without_a_thread_would_save_half_of_a_perfect_division() -> None:
    """12 ms on one of four free cores: three quarters could be saved at best."""
    finding = found(traced(on_cores(1, 4.0), each_us=300.0), "idle-cores")
    assert finding.cost_s_per_step == pytest.approx(0.5 * 0.012 * 0.75, rel=0.01)
    assert finding.changes[0].startswith("torch.set_num_threads(4)")


@pytest.mark.parametrize(
    ("facts", "each_us", "is_told"),
    [
        (on_cores(2, 4.0), 300.0, True),
        (on_cores(2, 3.9), 300.0, False),
        (on_cores(1, 4.0, others=2.1), 300.0, False),
        (on_cores(1, 4.0, ranks=2), 300.0, True),
        (on_cores(1, 4.0, ranks=3), 300.0, False),
        (on_cores(1, 4.0), 199.0, False),
        (on_cores(1, 4.0), 201.0, True),
    ],
)
def test_cores_are_idle_if_half_of_the_free_ones_have_no_thread(facts: JobFacts, each_us: float, is_told: bool) -> None:
    assert ("idle-cores" in names(traced(facts, each_us=each_us))) is is_told


# --- eager-mode


def test_the_time_between_the_operators_of_a_call_is_the_cost_of_running_them_one_by_one() -> None:
    diagnosis = traced(gap_us=50.0)
    finding = found(diagnosis, "eager-mode")
    assert finding.cost_s_per_step == pytest.approx(40 * 50e-6, rel=0.01)
    assert finding.evidence["operators_per_call"] == 40
    assert "host-bound" not in names(diagnosis), "its seconds are counted once"


def test_a_compiled_model_is_not_told_to_be_compiled() -> None:
    assert names(traced(JobFacts(is_compiled=True), gap_us=50.0)) == ["host-bound"]


@pytest.mark.parametrize(("num", "is_told"), [(-1, False), (0, True)])
def test_few_operators_have_little_between_them(num: int, is_told: bool) -> None:
    diagnosis = traced(gap_us=50.0, operators=20 + num)
    assert ("eager-mode" in names(diagnosis)) is is_told


def test_a_job_that_trains_has_none_of_these() -> None:
    every = {
        rule.NAME
        for rule in (
            eager_mode,
            idle_cores,
            no_kv_cache,
            preprocessing,
            repeated_prefill,
            small_batch,
            thread_oversubscription,
        )
    }
    rank = msgspec.structs.replace(growing(), steps_from="optimizer")
    trains = TraceBuilder(0, 1, device_name="")
    for number in range(1, 5):
        at = (number - 1) * STEP
        trains.step(number, at, STEP)
        for place in range(40):
            trains.op("aten::mm", at + 200 * place, 30 + 100 * (place % 2))
    assert every.isdisjoint(names(diagnosed(rank, trains, facts=on_cores())))
