"""The rules of a GPU that waits for its host: `host-sync`, `allocator-churn`, `small-kernels` and `host-bound`."""

from __future__ import annotations

import numpy as np
import pytest
from tests.diagnose.jobs import GEMM, STEP, attributed, costs_us, diagnosed, found, free_of_recorder_cost, names, times

from flatout.diagnose.find import diagnose
from flatout.diagnose.recorder import Untraced, recorder_cost
from flatout.records.change import JobFacts
from flatout.report.evidence import evidence_texts
from flatout.testing import TraceBuilder
from flatout.units import seconds

HOST = {"host-bound", "host-sync", "allocator-churn", "small-kernels"}


def host_bound(idle: float, *, rank: int = 0, world_size: int = 1, num_steps: int = 2) -> TraceBuilder:
    """The host launches nothing for `idle` us of each step, and the GPU computes in the rest."""
    trace = TraceBuilder(rank, world_size)
    for number, at in times(num_steps):
        trace.step(number, at, STEP).launch(GEMM, at + idle - 5, 5, at + idle, STEP - idle)
    return trace


def synchronising(
    calls: int, idle: float, *, host: float = 0, rank: int = 0, world_size: int = 1, name: str = "aten::item"
) -> TraceBuilder:
    """Each step has some rounds of a kernel, a call that waits for it, and `idle` us until the next is launched.

    After them the host is slow for `host` us without having waited for the GPU.
    """
    trace = TraceBuilder(rank, world_size)
    for number, at in times(2):
        trace.step(number, at, STEP)
        length = (STEP - host) / (calls + 1) - idle
        time = at + 5.0
        for i in range(calls):
            trace.launch(GEMM, time - 5, 5, time, length)
            trace.op(name, time + 2, length)
            trace.sync("cudaStreamSynchronize", time + 3, length - 2)
            time += length + idle
            assert time < at + STEP, i
        trace.launch(GEMM, time - 5, 5, time, 100)
        trace.launch(GEMM, time + 100 + host - 5, 5, time + 100 + host, at + STEP - time - 100 - host)
    return trace


# --- host-bound


def test_idle_time_of_the_gpu_while_the_host_works_is_the_cost_of_a_slow_host() -> None:
    diagnosis = free_of_recorder_cost(host_bound(4000))
    assert costs_us(diagnosis) == pytest.approx({"host-bound": 4000})
    finding = found(diagnosis, "host-bound")
    assert finding.ranks == (0,)
    assert finding.evidence["traced_idle_s"] == {"0": pytest.approx(4000e-6)}
    assert finding.evidence["launches_per_step"] == 1
    assert finding.confidence == "high", "the untraced step is known"


@pytest.mark.parametrize(("only_infers", "speaks_of_optimizers"), [(None, True), (False, True), (True, False)])
def test_a_job_that_only_infers_is_not_told_of_optimizers(only_infers: bool | None, speaks_of_optimizers: bool) -> None:
    facts = JobFacts(only_infers=only_infers)
    finding = found(diagnose(attributed(host_bound(4000)), facts=facts), "host-bound")
    assert any("optimizer" in change for change in finding.changes) is speaks_of_optimizers
    assert any("torch.compile" in change for change in finding.changes)


def test_waiting_for_a_rank_with_a_slow_host_belongs_to_it_too() -> None:
    """Rank 1 launches 2000 us later than rank 0: idle of 1000 and 3000 us, and a wait of 2000."""
    traces = [TraceBuilder(rank) for rank in (0, 1)]
    for trace, idle in zip(traces, (1000, 3000), strict=True):
        for number, at in times(2):
            trace.step(number, at, STEP).launch(GEMM, at + idle - 5, 5, at + idle, 2000)
            trace.collective("allreduce", at + idle, at + idle + 2000, 3020 - idle)
            trace.launch(GEMM, at + idle + 2, 1, at + 5020, STEP - 5020)
    diagnosis = free_of_recorder_cost(*traces)
    assert costs_us(diagnosis) == pytest.approx({"host-bound": 3000}, rel=0.001)
    finding = found(diagnosis, "host-bound")
    assert finding.ranks == (1,)
    assert finding.evidence["slowest_rank"] == 1
    assert finding.evidence["others_wait_s"] == {"0": pytest.approx(2000e-6)}
    assert "other ranks wait up to 2.00 ms per step for rank 1" in finding.title


@pytest.mark.parametrize(("later", "is_told"), [(150, False), (300, True)])
def test_waiting_for_the_slowest_host_is_told_from_two_percent_of_the_step_on(later: float, is_told: bool) -> None:
    traces = [TraceBuilder(rank) for rank in (0, 1)]
    for trace, idle in zip(traces, (1000, 1000 + later), strict=True):
        for number, at in times(2):
            trace.step(number, at, STEP).launch(GEMM, at + idle - 5, 5, at + idle, 2000)
            trace.collective("allreduce", at + idle, at + idle + 2000, 2020 - idle + later)
            trace.launch(GEMM, at + idle + 2, 1, at + 4020 + later, STEP - 4020 - later)
    finding = found(free_of_recorder_cost(*traces), "host-bound")
    assert finding.evidence["others_wait_s"] == {"0": pytest.approx(later * 1e-6)}
    assert ("for rank 1" in finding.title) == is_told


@pytest.mark.parametrize(("idle", "is_told"), [(190, False), (210, True)])
def test_a_slow_host_below_two_percent_of_the_step_is_not_told(idle: float, is_told: bool) -> None:
    assert ("host-bound" in names(free_of_recorder_cost(host_bound(idle)))) == is_told


def test_a_busy_gpu_is_not_host_bound_however_slow_its_host() -> None:
    """A full launch queue holds the host: back-pressure, no work."""
    trace = TraceBuilder(0, 1)
    for number, at in times(2):
        trace.step(number, at, STEP).launch(GEMM, at, 5, at + 5, STEP - 5)
        trace.runtime("cudaLaunchKernel", at + 10, 9000).overhead(at + 10, 9000)
    assert costs_us(free_of_recorder_cost(trace)) == {}


# --- what the recorder cost


def test_a_known_untraced_step_is_the_measure_of_the_recorder() -> None:
    """Traced 10,000, untraced 9000: of 4000 us idle 3000 are the host's own."""
    finding = found(diagnosed(host_bound(4000), untraced_step_us=9000), "host-bound")
    assert finding.cost_s_per_step == pytest.approx(3000e-6)
    assert finding.evidence["recorder_cost_s"] == pytest.approx(1000e-6)
    assert finding.evidence["recorder_cost_source"] == "measured"
    assert "without the recorder" in finding.title


def test_an_unknown_one_is_assumed_by_the_events_that_were_recorded() -> None:
    """500 operators and a launch, a step mark and a launch call a step, 4 us each: of 4000 us some 2000 are its."""
    trace = host_bound(4000)
    for _, at in times(2):
        for i in range(500):
            trace.op("aten::view", at + 7 * i, 5)
    finding = found(diagnosed(trace), "host-bound")
    recorder_s = finding.evidence["recorder_cost_s"]
    assert recorder_s == pytest.approx(502 * 4e-6, rel=0.01)
    assert finding.cost_s_per_step == pytest.approx(4000e-6 - recorder_s)
    assert finding.evidence["recorder_cost_source"] == "assumed"
    assert finding.confidence == "medium"
    assert finding.evidence["traced_idle_s"] == {"0": pytest.approx(4000e-6)}, "what was traced is told as well"


def test_the_recorder_is_never_assumed_to_cost_more_than_three_quarters_of_the_idle_time() -> None:
    trace = host_bound(4000)
    for _, at in times(2):
        for i in range(3000):
            trace.op("aten::view", at + 3 * i, 1)
    assert found(diagnosed(trace), "host-bound").cost_s_per_step == pytest.approx(1000e-6)


@pytest.mark.parametrize(("untraced", "told_us"), [(9900, None), (10_100, None), (8000, 2000)])
def test_a_recorder_cost_below_the_noise_of_the_steps_is_a_bound(untraced: float, told_us: float | None) -> None:
    """Steps of 10 ms that differ by 300 us: the mean of the two traced ones is known to 2 * 300 us / sqrt(2)."""
    known = Untraced(step_s=untraced * 1e-6, spread_s=300e-6, num_steps=10_000)
    finding = found(diagnose(attributed(host_bound(4000)), untraced=known), "host-bound")
    evidence = finding.evidence
    if told_us is not None:
        assert evidence["recorder_cost_s"] == pytest.approx(told_us * 1e-6)
        assert evidence["recorder_cost_source"] == "measured" and "without the recorder" in finding.title
    else:
        assert evidence["recorder_cost_s"] is None and "without the recorder" not in finding.title
        assert evidence["recorder_cost_source"] == "below the noise of the steps"
        seen = max(10_000 - untraced, 0)
        assert evidence["recorder_cost_below_s"] == pytest.approx((seen + 2 * 300 / 2**0.5) * 1e-6, rel=0.01)
        assert ("recorder cost below", seconds(evidence["recorder_cost_below_s"])) in evidence_texts(evidence)


def test_the_bound_of_the_recorders_cost_holds_for_nineteen_of_twenty_recordings() -> None:
    """The recorder costs 1 % of a step that varies by 3 %; the reported bound must contain that cost."""
    random = np.random.default_rng(7)
    num_right = num_bounds = 0
    facts = attributed(host_bound(4000)).timelines[0].facts
    assert facts is not None
    for _ in range(2000):
        untraced, traced = random.normal(1.0, 0.03, 20), random.normal(1.01, 0.03, 3)
        known = Untraced(step_s=float(np.median(untraced)), spread_s=0.03, num_steps=20)
        cost = recorder_cost(facts, 3, 1.0, float(traced.mean()), known)
        num_bounds += cost.source != "measured"
        num_right += cost.below_s is not None and cost.below_s > 0.01
    assert num_bounds > 1800, "most of these say that it cannot be told"
    assert num_right / num_bounds > 0.95


@pytest.mark.parametrize(("spike_share", "is_attributed"), [(0.0, True), (0.025, True), (0.026, False), (0.3, False)])
def test_nothing_is_attributed_to_the_recorder_while_untraced_steps_spike(
    spike_share: float, is_attributed: bool
) -> None:
    """Two traced steps: at 2.53 % of spikes, one of them is a spike in one of twenty recordings."""
    known = Untraced(step_s=8000e-6, spread_s=30e-6, num_steps=100, spike_share=spike_share)
    finding = found(diagnose(attributed(host_bound(4000)), untraced=known), "host-bound")
    if is_attributed:
        assert finding.evidence["recorder_cost_source"] == "measured"
        assert finding.cost_s_per_step == pytest.approx(2000e-6)
    else:
        assert finding.evidence["recorder_cost_source"] == "untraced steps spike too"
        assert finding.evidence["recorder_cost_s"] is None
        assert finding.cost_s_per_step == pytest.approx(4000e-6)
        assert "without the recorder" not in finding.title


@pytest.mark.parametrize(("spike_share", "is_attributed"), [(0.02, True), (0.039, True), (0.04, False)])
def test_one_spike_in_fifty_steps_hides_nothing_of_the_recorder(spike_share: float, is_attributed: bool) -> None:
    """With five traced steps, their median is no spike; steps that spike more often than one in 25 hide the cost."""
    known = Untraced(step_s=8000e-6, spread_s=30e-6, num_steps=100, spike_share=spike_share)
    finding = found(diagnose(attributed(host_bound(4000, num_steps=5)), untraced=known), "host-bound")
    cost_us = 2000 if is_attributed else 4000
    assert finding.cost_s_per_step == pytest.approx(cost_us * 1e-6)


def test_a_spike_among_the_traced_steps_is_not_charged_to_the_recorder() -> None:
    """The recorder adds 2 ms to each of three traced steps, one of which is a spike of 40 ms more."""
    trace = TraceBuilder(0)
    at = 0
    for number, idle in enumerate((4000, 44_000, 4000)):
        step = idle + 6000
        trace.step(number, at, step).launch(GEMM, at + idle - 5, 5, at + idle, 6000)
        at += step
    known = Untraced(step_s=8000e-6, spread_s=30e-6, num_steps=100, spike_share=0.02)
    finding = found(diagnose(attributed(trace), untraced=known), "host-bound")
    assert finding.evidence["recorder_cost_s"] == pytest.approx(2000e-6, rel=0.01)


@pytest.mark.parametrize(("spike_share", "probability"), [(0.1, 0.1), (0.5, 0.5)])
def test_the_median_of_few_steps_is_a_spike_as_often_as_half_of_them_are(
    spike_share: float, probability: float
) -> None:
    untraced = Untraced(step_s=1.0, spike_share=spike_share)
    assert untraced.spike_probability(1) == pytest.approx(probability)
    assert untraced.spike_probability(2) == pytest.approx(1 - (1 - spike_share) ** 2)
    assert untraced.spike_probability(3) == pytest.approx(3 * spike_share**2 * (1 - spike_share) + spike_share**3)


def test_the_cost_without_the_recorder_is_never_above_the_cost_with_it() -> None:
    """Each rank pauses 4000 us in another step, and the other waits for it: the waiting is part of both costs.

    With 2 us until the first launch, both ranks have (2 + 4002) / 2 us of idle time a step, and 2000 us of waiting.
    """
    traces = [TraceBuilder(rank) for rank in (0, 1)]
    for rank, trace in enumerate(traces):
        for number, at in times(2):
            idle = 4002 if number % 2 == rank else 2
            trace.step(number, at, STEP).launch(GEMM, at + idle - 1, 1, at + idle, 1000)
            trace.collective("allreduce", at + idle, at + idle + 1000, 5010 - idle - 1000)
            trace.launch(GEMM, at + idle + 2, 1, at + 5010, STEP - 5010)
    finding = found(diagnosed(*traces, untraced_step_us=STEP - 500), "host-bound")
    assert finding.evidence["recorder_cost_s"] == pytest.approx(500e-6)
    assert finding.cost_s_per_step == pytest.approx(3502e-6, rel=0.01)
    assert "4.00 ms per step as traced, about 3.50 ms (35 % of the step) without the recorder" in finding.title


def test_an_untraced_step_longer_than_the_traced_one_adds_nothing() -> None:
    finding = found(diagnosed(host_bound(4000), untraced_step_us=11_000), "host-bound")
    assert finding.cost_s_per_step == pytest.approx(4000e-6)
    assert finding.evidence["recorder_cost_s"] is None, "a cost below what steps differ by is not 0"


# --- host-sync


def test_idle_time_after_synchronising_calls_is_their_cost() -> None:
    """4 calls a step, 400 us each until the next launch reaches the GPU."""
    diagnosis = free_of_recorder_cost(synchronising(4, 400))
    finding = diagnosis.findings[0]
    assert (finding.name, finding.ranks) == ("host-sync", (0,))
    assert finding.cost_s_per_step == pytest.approx(1600e-6, rel=0.01)
    assert finding.evidence["calls_per_step"] == {"aten::item": 4}
    assert "4 synchronising calls per step on rank 0 (aten::item)" in finding.title
    assert not (HOST - {"host-sync"}) & set(names(diagnosis))


def test_the_lead_lost_by_them_is_theirs_where_the_host_is_else_fast_enough() -> None:
    """1200 us more of idle time: a host that is busy for less than the GPU would be ahead without the calls."""
    for calls in (2, 4):
        costs = costs_us(free_of_recorder_cost(synchronising(calls, 400, host=1200)))
        assert costs == pytest.approx({"host-sync": 400 * calls + 1200}, rel=0.01)


def test_one_call_a_step_has_not_lost_the_rest_of_the_lead() -> None:
    """A step that ends by waiting for its loss begins with an empty queue anyway: 1200 us are the host's own."""
    costs = costs_us(free_of_recorder_cost(synchronising(1, 400, host=1200)))
    assert costs == pytest.approx({"host-sync": 400, "host-bound": 1200}, rel=0.01)


def test_of_a_host_that_is_slower_than_the_gpu_the_rest_is_not_theirs() -> None:
    """The GPU works for 3000 us; the host works for 6950 besides its two calls of 20 us."""
    trace = TraceBuilder(0, 1)
    for number, at in times(2):
        trace.step(number, at, STEP)
        for i in range(2):
            time = at + 5 + 520 * i
            trace.launch(GEMM, time - 5, 5, time, 20).sync("cudaStreamSynchronize", time, 20)
        trace.launch(GEMM, at + 7000, 5, at + 7005, STEP - 7005)
    costs = costs_us(free_of_recorder_cost(trace))
    assert costs["host-sync"] == pytest.approx(500 + 6440, rel=0.01), "all of it follows a call that drained the GPU"
    trace = TraceBuilder(0, 1)
    for number, at in times(2):
        trace.step(number, at, STEP)
        for i in range(2):
            time = at + 5 + 520 * i
            trace.launch(GEMM, time - 5, 5, time, 20).sync("cudaStreamSynchronize", time, 20)
        trace.launch(GEMM, at + 1050, 5, at + 1055, 10).launch(GEMM, at + 7000, 5, at + 7005, STEP - 7005)
    costs = costs_us(free_of_recorder_cost(trace))
    assert costs["host-sync"] == pytest.approx(500 + 490 + 40, rel=0.02), "and the 40 us that they held up the host"
    assert costs["host-bound"] == pytest.approx(7005 - 1065 - 40, rel=0.01)


@pytest.mark.parametrize(("idle", "is_told"), [(46, False), (54, True)])
def test_synchronisations_below_two_percent_of_the_step_are_not_told(idle: float, is_told: bool) -> None:
    """4 calls: 184 or 216 us."""
    assert ("host-sync" in names(free_of_recorder_cost(synchronising(4, idle)))) == is_told


def test_the_calls_told_are_those_of_a_rank_that_makes_them() -> None:
    """Rank 1 has no call at all and is host-bound for longer than rank 0 stands still after its calls."""
    traces = [synchronising(4, 400, world_size=2), host_bound(4000, rank=1, world_size=2)]
    finding = found(free_of_recorder_cost(*traces), "host-sync")
    assert finding.ranks == (0,)
    assert finding.evidence["calls_per_step"] == {"aten::item": 4}
    assert "4 synchronising calls per step on rank 0 (aten::item)" in finding.title


# --- allocator-churn


def allocating(duration: float, *, host: float = 0, rank: int = 0, world_size: int = 1) -> TraceBuilder:
    """Device memory is freed and allocated at the begin of each step; `host` more is idle for other host work.

    After that the host only waits for the GPU.
    """
    trace = TraceBuilder(rank, world_size)
    for number, at in times(2):
        begin = at + duration + 5
        trace.step(number, at, STEP).free(at, duration / 2).malloc(at + duration / 2, duration / 2)
        trace.launch(GEMM, begin - 5, 5, begin, 1000)
        time = begin + 1000 + host
        trace.launch(GEMM, time - 5, 5, time, at + STEP - time)
        trace.sync("cudaStreamSynchronize", time + 5, at + STEP - time - 10)
    return trace


def test_idle_time_inside_allocations_is_their_cost() -> None:
    diagnosis = free_of_recorder_cost(allocating(2000))
    finding = diagnosis.findings[0]
    assert (finding.name, finding.ranks) == ("allocator-churn", (0,))
    assert finding.cost_s_per_step == pytest.approx(2000e-6, rel=0.01)
    assert finding.evidence["calls_per_step"] == {"cudaFree": 1, "cudaMalloc": 1}
    assert finding.evidence["call_s"] == pytest.approx(2000e-6)
    assert "2 calls" in finding.title
    assert not (HOST - {"allocator-churn"}) & set(names(diagnosis))


def test_the_lead_lost_by_allocations_is_theirs_where_the_host_is_else_fast_enough() -> None:
    costs = costs_us(free_of_recorder_cost(allocating(2000, host=1500)))
    assert costs == pytest.approx({"allocator-churn": 3500}, rel=0.01)


def test_allocations_of_pinned_host_memory_are_no_churn() -> None:
    trace = host_bound(2000)
    for _, at in times(2):
        trace.runtime("cudaHostAlloc", at, 900).runtime("cudaFreeHost", at + 900, 900)
    assert costs_us(free_of_recorder_cost(trace)).keys() == {"host-bound"}


@pytest.mark.parametrize(("duration", "is_told"), [(185, False), (215, True)])
def test_allocations_below_two_percent_of_the_step_are_not_told(duration: float, is_told: bool) -> None:
    assert ("allocator-churn" in names(free_of_recorder_cost(allocating(duration)))) == is_told


def test_the_allocations_told_are_those_of_a_rank_that_makes_them() -> None:
    traces = [allocating(2000, world_size=2), host_bound(4000, rank=1, world_size=2)]
    finding = found(free_of_recorder_cost(*traces), "allocator-churn")
    assert finding.ranks == (0,)
    assert finding.evidence["calls_per_step"] == {"cudaFree": 1, "cudaMalloc": 1}
    assert "2 calls" in finding.title


# --- small-kernels


def optimizing(num_kernels: int, *, kernel: float, launch: float, begin: float = 0) -> TraceBuilder:
    """An optimizer step that launches some kernels of `kernel` us, `launch` us apart, and compute for the rest.

    With `begin` the compute comes first, so that the host is ahead by as much when the optimizer begins.
    """
    trace = TraceBuilder(0, 1)
    for number, at in times(2):
        trace.step(number, at, STEP)
        trace.annotation("Optimizer.step#AdamW.step", at + 5, num_kernels * launch)
        time = at + 5 + begin
        if begin:
            trace.launch(GEMM, at, 5, at + 5, begin)
        for i in range(num_kernels):
            launched = at + 5 + i * launch
            time = max(time, launched + launch)
            trace.launch("multi_tensor_apply_kernel", launched, launch, time, kernel)
            time += kernel
        trace.launch(GEMM, at + 5 + num_kernels * launch, 1, time, at + STEP - time)
    return trace


def test_an_unfused_optimizer_of_a_fast_host_costs_gpu_time() -> None:
    """200 kernels of 6 us, launched well ahead: fusing saves 0.6 of 1200 us of GPU time."""
    diagnosis = free_of_recorder_cost(optimizing(200, kernel=6, launch=5, begin=3000))
    finding = found(diagnosis, "small-kernels")
    assert finding.cost_s_per_step == pytest.approx(0.6 * 1200e-6)
    assert finding.evidence["num_optimizer_launches_per_step"] == 200
    assert finding.evidence["num_kernels_per_step"] == 202
    assert finding.evidence["num_short_kernels_per_step"] == 200
    assert finding.evidence["optimizer_gpu_s"] == pytest.approx(1200e-6)
    assert "fused=True" in finding.changes[0]


def test_an_unfused_optimizer_of_a_slow_host_costs_launch_work() -> None:
    """200 launches of 20 us in the open: 0.9 of 4000 us of host time would be saved, but only 2805 of it are idle."""
    diagnosis = free_of_recorder_cost(optimizing(200, kernel=6, launch=20))
    costs = costs_us(diagnosis)
    assert costs["small-kernels"] == pytest.approx(200 * 14 + 6, rel=0.01)
    assert "host-bound" not in costs, "its seconds are taken"


def test_what_fusing_does_not_save_of_a_slow_host_is_host_bound() -> None:
    """Idle are 2786 us of the optimizer and 4020 of other host work; the optimizer's 4000 of host time explain 3600."""
    trace = TraceBuilder(0, 1)
    for number, at in times(2):
        trace.step(number, at, STEP)
        trace.annotation("Optimizer.step#AdamW.step", at + 4000, 4000)
        for i in range(200):
            launched = at + 4000 + 20 * i
            trace.launch("multi_tensor_apply_kernel", launched, 20, launched + 20, 6)
        trace.launch(GEMM, at + 8000, 1, at + 8006, STEP - 8006)
    costs = costs_us(free_of_recorder_cost(trace))
    assert costs["small-kernels"] == pytest.approx(0.9 * 4000, rel=0.01)
    assert costs["small-kernels"] + costs["host-bound"] == pytest.approx(4020 + 199 * 14, rel=0.01)


def test_dense_short_kernels_outside_an_optimizer_cost_their_fixed_time() -> None:
    """500 kernels of 4 us back to back: 1.5 us of each are start and end."""
    trace = TraceBuilder(0, 1)
    for number, at in times(2):
        trace.step(number, at, STEP).launch(GEMM, at, 5, at + 5, 5000)
        for i in range(500):
            trace.launch("vectorized_elementwise_kernel", at + 5 + 4 * i, 1, at + 5005 + 4 * i, 4)
        trace.launch(GEMM, at + 4000, 1, at + 7005, STEP - 7005)
    assert costs_us(free_of_recorder_cost(trace)) == pytest.approx({"small-kernels": 750})


@pytest.mark.parametrize("num_kernels", [10, 60], ids=["fused", "foreach"])
def test_a_fused_optimizer_is_not_told(num_kernels: int) -> None:
    """AdamW with foreach=True launches some 50 kernels, which each take many parameters."""
    assert costs_us(free_of_recorder_cost(optimizing(num_kernels, kernel=40, launch=5, begin=3000))) == {}


@pytest.mark.parametrize(("kernel", "is_told"), [(1.5, False), (1.8, True)])
def test_an_optimizer_below_two_percent_of_the_step_is_not_told(kernel: float, is_told: bool) -> None:
    """200 kernels: 0.6 of 300 us are 180, of 360 us 216. They lie apart, so that they are no dense run."""
    trace = TraceBuilder(0, 1)
    for number, at in times(2):
        trace.step(number, at, STEP).annotation("Optimizer.step#AdamW.step", at, 1000)
        for i in range(200):
            begin = at + 45.0 * i
            trace.launch("multi_tensor_apply_kernel", at + 5 * i, 1, begin + 2, kernel)
            trace.launch(GEMM, at + 1001 + i / 10, 0, begin + 2 + kernel, 45 - kernel)
        trace.launch(GEMM, at + 1100, 1, at + 9002, 998)
    assert ("small-kernels" in names(free_of_recorder_cost(trace))) == is_told
