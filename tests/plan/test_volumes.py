"""The bytes that a rank sends: published formulas with small numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flatout.plan.counts import num_parameters
from flatout.plan.details import inputs_of
from flatout.plan.search_context import SearchContext
from flatout.plan.volumes import bytes_to_neighbour
from flatout.plan_pipeline import PlanRequest, search_context
from flatout.records.plan import Layout

SEQ, HIDDEN, LAYERS = 2048, 4096, 32


def context(model: str = "llama3-8b", cluster: str = "h100x8") -> SearchContext:
    return search_context(PlanRequest(model=model, cluster=cluster, global_batch=64, seq=SEQ), lambda _: None)


def volumes(layout: Layout, given: SearchContext | None = None) -> dict[str, float]:
    chosen = given or context()
    return bytes_to_neighbour(inputs_of(chosen, layout))


def test_data_parallelism_sends_two_n_minus_one_over_n_of_the_fp32_gradients() -> None:
    found = volumes(Layout(dp=8, num_micro_batches=8))
    assert set(found) == {"data"}
    parameters = num_parameters(context().spec.workload)
    assert found["data"] == pytest.approx(2 * 7 / 8 * 4 * parameters, rel=0.001)


def test_zero_1_sends_the_gradients_once_and_the_weights_in_16_bits_once() -> None:
    found = volumes(Layout(dp=8, zero=1, num_micro_batches=8))
    parameters = num_parameters(context().spec.workload)
    assert found["data"] == pytest.approx(7 / 8 * (4 + 2) * parameters, rel=0.001)


def test_zero_3_gathers_twice_and_reduces_once_in_each_micro_batch() -> None:
    found = volumes(Layout(dp=8, zero=3, num_micro_batches=8))
    parameters = num_parameters(context().spec.workload)
    assert found["data"] == pytest.approx(8 * 7 / 8 * (4 + 2 * 2) * parameters, rel=0.001)


def test_tensor_parallelism_sums_activations_four_times_per_layer_and_six_times_if_all_is_recomputed() -> None:
    # Megatron-LM (arXiv 1909.08053): two all-reduces in the forward pass of a layer, two in the backward pass.
    activations = 2 * SEQ * HIDDEN
    found = volumes(Layout(tp=4, dp=2, num_micro_batches=32))
    assert found["tensor"] == pytest.approx(32 * LAYERS * 4 * 2 * 3 / 4 * activations)
    recomputed = volumes(Layout(tp=4, dp=2, num_micro_batches=32, recompute="full"))
    assert recomputed["tensor"] == pytest.approx(found["tensor"] * 6 / 4)


def test_a_pipeline_sends_each_micro_batch_once_for_each_chunk() -> None:
    activations = 2 * SEQ * HIDDEN
    assert volumes(Layout(pp=4, dp=2, num_micro_batches=32))["pipeline"] == pytest.approx(32 * activations)
    interleaved = volumes(Layout(pp=4, vpp=2, dp=2, num_micro_batches=32))
    assert interleaved["pipeline"] == pytest.approx(2 * 32 * activations)
    # A tensor-parallel group sends each value once (arXiv 2104.04473, 4.1).
    assert volumes(Layout(tp=2, pp=4, num_micro_batches=64))["pipeline"] == pytest.approx(64 * activations / 2)


def test_context_parallelism_sends_keys_and_values_around_the_ring_three_times() -> None:
    # Llama 3 8B: 8 heads of 128 for keys and for values.
    around = 2 * SEQ * 2 * 8 * 128 * 3 / 4
    found = volumes(Layout(cp=4, dp=2, num_micro_batches=32))
    assert found["context"] == pytest.approx(32 * LAYERS * 3 * around)


def test_experts_get_each_token_once_for_each_of_its_experts_there_and_back_in_both_passes() -> None:
    mixtral = context("mixtral-8x7b")
    tokens = 2 * SEQ * 4096 * 2  # bytes of 2 experts for each token
    found = volumes(Layout(dp=8, ep=8, num_micro_batches=8), mixtral)
    assert found["expert"] == pytest.approx(8 * 32 * 2 * 2 * tokens / 8)


def test_hybrid_sharding_gathers_within_shard_groups_and_sums_across_them() -> None:
    sixteen = context(cluster="h100x16")
    found = volumes(Layout(dp=16, zero=3, shard=8, num_micro_batches=4), sixteen)
    parameters = num_parameters(sixteen.spec.workload)
    assert set(found) == {"data_shards", "data_copies"}
    assert found["data_shards"] == pytest.approx(4 * 7 / 8 * 8 * parameters, rel=0.001)
    assert found["data_copies"] == pytest.approx(2 * 1 / 2 * 4 * parameters / 8, rel=0.001)


def test_bf16_gradients_halve_what_data_parallelism_sends() -> None:
    given = context()
    half = replace(given, software=given.software.__class__(gradient_bytes=2.0))
    layout = Layout(dp=8, num_micro_batches=8)
    assert volumes(layout, half)["data"] == pytest.approx(volumes(layout, given)["data"] / 2)
