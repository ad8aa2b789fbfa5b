"""Stages of models whose layers differ, against models of one kind of layer alone and counts by hand."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest

from flatout.plan import search
from flatout.plan.clusters import cluster
from flatout.plan.details import details, inputs_of, stage_seconds
from flatout.plan.huggingface import from_values
from flatout.plan.layouts import TrainingSpec
from flatout.plan.models.uniform import layer_kinds
from flatout.plan.pipeline import most_in_flight
from flatout.plan.search_context import SearchContext
from flatout.plan.shipped import shipped
from flatout.plan.stages import StageLoads
from flatout.records.plan import Layout, Plan, Software, Workload

NEMOTRON = {
    "model_type": "nemotron_h",
    "hidden_size": 2048,
    "vocab_size": 32768,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 10752,
    "mamba_num_heads": 64,
    "mamba_head_dim": 64,
    "ssm_state_size": 128,
    "n_groups": 8,
    "conv_kernel": 4,
    "expand": 2,
    "chunk_size": 128,
    "use_conv_bias": True,
}
ALL_BUT_THE_LAST = ("compute", "tensor_parallel", "context_parallel", "expert_parallel")


def model_of(pattern: str) -> Workload:
    """Return a model whose layers are Mamba-2 (M), attention (*) or a network (-)."""
    config = {**NEMOTRON, "num_hidden_layers": len(pattern), "hybrid_override_pattern": pattern}
    return from_values(Path("config.json"), config)


def context_of(workload: Workload) -> SearchContext:
    machine, shares = cluster("h100x16")
    spec = TrainingSpec(workload=workload, cluster=machine, global_batch=256, seq=2048)
    return SearchContext(spec=spec, precision="bf16", matmul_share=shares, software=Software(), calibration=shipped())


def _recompute(fixed: tuple[str, ...]) -> tuple[str, ...]:
    """Return that nothing is recomputed, unless something else is fixed."""
    return () if any(each.startswith("recompute=") for each in fixed) else ("recompute=none",)


@cache
def planned(pattern: str, *fixed: str, is_in_order: bool = True) -> tuple[SearchContext, Plan]:
    workload = model_of(pattern)
    if not is_in_order:
        workload = msgspec.structs.replace(workload, kind_of_layer=())
    context = context_of(workload)
    return context, search.plan(context, fixed=("micro_batch=1", *_recompute(fixed), *fixed), num_layouts=1)


def loads_of(pattern: str, pp: int, vpp: int = 1) -> StageLoads:
    context = context_of(model_of(pattern))
    layout = Layout(tp=1, pp=pp, vpp=vpp, dp=16 // pp, micro_batch=1, num_micro_batches=256 * pp // 16)
    loads = context.stage_loads(inputs_of(context, layout))
    assert loads is not None
    return loads


def test_each_stage_has_the_parameters_of_its_own_layers() -> None:
    mamba, network = (kind.parameters for kind in layer_kinds(model_of("MMMM----")))
    mean = (mamba + network) / 2
    expected = np.array([2 * mamba, 2 * mamba, 2 * network, 2 * network]) / mean
    assert loads_of("MMMM----", 4).parameters[:, 0] == pytest.approx(expected, rel=1e-3)


def test_each_stage_has_the_layers_of_all_of_its_chunks() -> None:
    """With two chunks, the first stage has the first and the third quarter of the model, which are alike."""
    assert loads_of("MMMM----", 2, 2).parameters[:, 0] == pytest.approx([4.0, 4.0])
    assert loads_of("MM--MM--", 2, 2).parameters[0, 0] != pytest.approx(4.0, rel=0.1)


def seconds_per_layer(pattern: str) -> float:
    """Return the seconds of a layer for one micro-batch, from models of 8 and 16 such layers on one stage."""
    fixed = ("pp=1", "tp=1", "cp=1")
    plans = [planned(pattern * count, *fixed)[1].layouts[0] for count in (8, 16)]
    busy = [sum(best.parts_s[name] for name in ALL_BUT_THE_LAST) / best.layout.num_micro_batches for best in plans]
    return (busy[1] - busy[0]) / 8


def test_the_slowest_stage_takes_as_long_as_its_layers_take_in_models_of_their_own() -> None:
    fixed = ("pp=2", "vpp=1", "tp=1", "cp=1", "schedule=1f1b")
    context, plan = planned("--------MMMMMMMM", *fixed)
    best = plan.layouts[0]
    loads = context.stage_loads(inputs_of(context, best.layout))
    assert loads is not None
    mamba_s, network_s = seconds_per_layer("M"), seconds_per_layer("-")
    assert loads.time[0, 0] / loads.time[1, 0] == pytest.approx(network_s / mamba_s, rel=0.01)
    seconds = stage_seconds(best, 16, 0.0, loads.time[:, 0].tolist())
    assert seconds[0] == pytest.approx(8 * network_s, rel=0.05)
    assert seconds[1] > 8 * mamba_s  # with the logits


def test_stages_that_are_alike_cost_what_mean_layers_cost() -> None:
    fixed = ("pp=2", "vpp=1", "tp=1", "cp=1", "schedule=1f1b")
    with_order, without = (planned("M-M-M-M-M-M-M-M-", *fixed, is_in_order=known)[1] for known in (True, False))
    assert with_order.layouts[0].step_time_s == pytest.approx(without.layouts[0].step_time_s)
    assert with_order.layouts[0].memory_bytes == pytest.approx(without.layouts[0].memory_bytes)


def test_the_order_of_layers_decides_the_time() -> None:
    """The last stage also has the logits, so large layers at the end make it slower, and at the beginning faster."""
    fixed = ("pp=2", "vpp=1", "tp=1", "cp=1", "schedule=1f1b")
    first, mixed, last = (
        planned(pattern, *fixed)[1].layouts[0].step_time_s
        for pattern in ("--------MMMMMMMM", "M-M-M-M-M-M-M-M-", "MMMMMMMM--------")
    )
    assert first < 0.98 * mixed
    assert last > 1.02 * mixed


@pytest.mark.parametrize("pattern", ["--------MMMMMMMM", "MMMMMMMM--------"])
def test_the_page_shows_the_stages_that_the_plan_counts(pattern: str) -> None:
    context, plan = planned(pattern, "pp=2", "vpp=1", "tp=1", "cp=1", "schedule=1f1b")
    best, found = plan.layouts[0], details(context, plan)
    inside = (*ALL_BUT_THE_LAST, "bubble", "imbalance")
    drawn_s = max(stage[-1].end_s for stage in found.pipeline)
    assert drawn_s == pytest.approx(sum(best.parts_s[name] for name in inside), rel=0.005)
    fullest = max(sum(stage.parts_bytes.values()) for stage in found.stages)
    assert fullest == pytest.approx(best.memory_bytes)


@pytest.mark.parametrize(
    ("pattern", "fullest", "fixed"),
    [
        ("MMMMMMMM--------MMMMMMMMMMMMMMMM", 1, ("vpp=1", "schedule=1f1b", "recompute=none")),
        ("MMMMMMMMMMMMMMMM--------MMMMMMMM", 2, ("vpp=1", "schedule=1f1b", "recompute=full")),
        ("MMMMMMMM--------MMMMMMMMMMMMMMMM", 1, ("vpp=1", "schedule=gpipe", "recompute=none")),
        ("MMMMMMMM----MMMMMMMMMMMM----MMMM", 2, ("vpp=2", "schedule=1f1b", "recompute=none")),
        ("-" * 31, 0, ("vpp=1", "schedule=1f1b", "recompute=full")),
    ],
)
def test_the_memory_of_a_plan_is_that_of_the_fullest_stage_of_the_drawn_pipeline(
    pattern: str, fullest: int, fixed: tuple[str, ...]
) -> None:
    """By hand: a stage's activations are its own layers' of the micro-batches that the drawn schedule holds."""
    context, plan = planned(pattern, "pp=4", "tp=1", "cp=1", *fixed)
    best, found = plan.layouts[0], details(context, plan)
    totals = [sum(stage.parts_bytes.values()) for stage in found.stages]
    assert totals.index(max(totals)) == fullest
    assert max(totals) == pytest.approx(best.memory_bytes)
    loads = context.stage_loads(inputs_of(context, best.layout))
    assert loads is not None
    in_flight = [most_in_flight(stage) / best.layout.vpp for stage in found.pipeline]
    kept = np.array([stage.parts_bytes["activations"] for stage in found.stages])
    grows = np.array(in_flight) * loads.kept[:, 0]
    # Beyond what grows with the micro-batches held, all stages need the same for the layer that computes.
    slope, always = np.polyfit(grows, kept, 1)
    assert kept == pytest.approx(slope * grows + always)


def test_a_middle_stage_has_no_vocabulary() -> None:
    """Of 8 attention-free layers on 4 stages, the ends have 32,768 x 2,048 parameters more than the middle."""
    context, plan = planned("M" * 8, "pp=4", "tp=1", "cp=1", "zero=0", "vpp=1", "schedule=1f1b")
    weights = [stage.parts_bytes["weights"] for stage in details(context, plan).stages]
    assert weights[0] - weights[1] == pytest.approx(2 * 32768 * 2048, rel=1e-3)
    assert weights[1] == weights[2]
    assert [stage.parts_bytes["logits"] > 0 for stage in details(context, plan).stages] == [False] * 3 + [True]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_of_four_stages_the_slowest_sets_the_pace_wherever_it_is(place: int) -> None:
    """The drawn pipeline gives each stage its own time. The mean of the first three would be 3 % too fast."""
    stages = ["M" * 8] * 4
    stages[place] = "-" * 8
    context, plan = planned("".join(stages), "pp=4", "vpp=1", "tp=1", "cp=1", "schedule=1f1b")
    best, found = plan.layouts[0], details(context, plan)
    drawn_s = max(stage[-1].end_s for stage in found.pipeline)
    assert drawn_s == pytest.approx(
        sum(best.parts_s[name] for name in (*ALL_BUT_THE_LAST, "bubble", "imbalance")), rel=0.01
    )


def test_the_order_of_layers_is_that_of_the_model() -> None:
    assert model_of("M-*-M").kind_of_layer == (0, 1, 2, 1, 0)
