"""Stages share out what the model says of the whole: nothing is gained or lost."""

from __future__ import annotations

import itertools

import pytest
from tests.plan.test_search import setting_of

from flatout.plan import search
from flatout.plan.details import details, drawn_pipeline, layers_of_stages, stage_seconds
from flatout.plan.search_context import SearchContext
from flatout.records.plan import Plan
from flatout.records.plan_details import PlanDetails

CASES = {
    "interleaved": ("llama3-70b", "h100x64", 256, 4096, ("pp=8", "vpp=5")),
    "zero-bubble": ("llama3-70b", "h100x64", 256, 4096, ("pp=8", "schedule=zero-bubble")),
    "gpipe": ("llama3-70b", "h100x256", 256, 4096, ("pp=8", "schedule=gpipe")),
    "1f1b, full": ("gpt3-175b", "a100x256", 256, 2048, ("pp=8", "vpp=1", "schedule=1f1b", "recompute=full")),
    "layers that do not divide": ("deepseek-v3", "h200x512", 1024, 4096, ("pp=8", "schedule=1f1b")),
    "fewer micro-batches than stages": ("llama3-70b", "h100x64", 4, 4096, ("pp=8", "tp=8", "schedule=1f1b", "vpp=1")),
    "offloaded": ("gpt3-175b", "a100x64", 64, 2048, ("offload=1", "pp=8", "schedule=1f1b", "vpp=1")),
    "sharded in groups": ("llama3-8b", "h100x16", 64, 2048, ("pp=1", "shard=8")),
    "one stage": ("llama3-8b", "h100x16", 64, 2048, ("pp=1",)),
}


@pytest.fixture(params=CASES, scope="module")
def made(request: pytest.FixtureRequest) -> tuple[SearchContext, Plan, PlanDetails]:
    model, machine, batch, seq, fixed = CASES[request.param]
    context = setting_of(model, machine, batch, seq)
    plan = search.plan(context, fixed=fixed)
    return context, plan, details(context, plan)


def test_the_drawn_pipeline_takes_as_long_as_the_predicted_parts(
    made: tuple[SearchContext, Plan, PlanDetails],
) -> None:
    _, plan, found = made
    parts = plan.layouts[0].parts_s
    inside = ("compute", "tensor_parallel", "context_parallel", "expert_parallel", "bubble", "imbalance")
    drawn = max(stage[-1].end_s for stage in found.pipeline)
    assert drawn == pytest.approx(sum(parts[name] for name in inside), rel=0.005)


def test_stages_take_the_layers_that_there_are(made: tuple[SearchContext, Plan, PlanDetails]) -> None:
    context, plan, found = made
    best = plan.layouts[0]
    assert sum(one.num_layers for one in found.stages) == context.spec.workload.num_layers
    seconds = stage_seconds(best, context.spec.workload.num_layers)
    parts = best.parts_s
    busy = sum(parts[name] for name in ("compute", "tensor_parallel", "context_parallel", "expert_parallel"))
    assert sum(seconds) * best.layout.num_micro_batches == pytest.approx(busy * best.layout.pp)
    slowest = (busy + parts["imbalance"]) / best.layout.num_micro_batches
    assert max(seconds) == pytest.approx(slowest)


def test_the_fullest_stage_is_the_rank_that_the_model_counts(
    made: tuple[SearchContext, Plan, PlanDetails],
) -> None:
    _, plan, found = made
    best = plan.layouts[0]
    fullest = max(found.stages, key=lambda one: sum(one.parts_bytes.values()))
    assert sum(fullest.parts_bytes.values()) == pytest.approx(best.memory_bytes)
    assert fullest.out_of_memory_probability == pytest.approx(best.out_of_memory_probability, abs=0.02)
    for one in found.stages:
        assert all(value >= 0 for value in one.parts_bytes.values())
        assert 0 <= one.out_of_memory_probability <= 1


def test_later_stages_of_1f1b_hold_fewer_activations() -> None:
    context = setting_of("llama3-70b", "h100x64", 256, 4096)
    fixed = ("pp=8", "vpp=1", "schedule=1f1b", "recompute=none")
    found = details(context, search.plan(context, fixed=fixed))
    activations = [one.parts_bytes["activations"] for one in found.stages]
    assert activations == sorted(activations, reverse=True)
    assert activations[0] / activations[-1] == pytest.approx(8, rel=0.15)


def test_no_layout_of_the_front_is_beaten(made: tuple[SearchContext, Plan, PlanDetails]) -> None:
    _, plan, found = made
    assert found.front[0].step_time_s == pytest.approx(plan.layouts[0].step_time_s)
    for one, other in itertools.pairwise(found.front):
        assert one.step_time_s < other.step_time_s
        assert one.memory_bytes > other.memory_bytes


def test_layers_that_do_not_divide_leave_the_last_stage_fewer() -> None:
    assert layers_of_stages(61, 8) == [8] * 7 + [5]
    assert layers_of_stages(80, 8) == [10] * 8
    assert layers_of_stages(61, 4, 4) == [16, 16, 16, 13]
    assert layers_of_stages(61, 8, 4) == [7, *[8] * 6, 6]


def test_one_stage_is_drawn_as_its_micro_batches() -> None:
    context = setting_of("llama3-8b", "h100x16")
    best = search.plan(context, fixed=("pp=1",)).layouts[0]
    (stage,) = drawn_pipeline(best, 32)
    assert len(stage) == 2 * best.layout.num_micro_batches
