"""The details of a plan's best layout for its page: each stage's time and memory, the pipeline, and the Pareto front.

In: the search context and the plan. Out: a `PlanDetails`. Nothing is predicted separately: the model's predictions for
the complete step and for the stage that uses the most memory are distributed over the stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flatout.plan import sizes
from flatout.plan.constants import from_logs
from flatout.plan.fits import out_of_memory_probability
from flatout.plan.inputs import RECOMPUTE, SCHEDULES, CostModelInputs
from flatout.plan.layouts import all_layouts
from flatout.plan.memory import MemoryConstants, MemoryEstimate, logits_bytes, memory, micro_batches_held
from flatout.plan.pipeline import most_in_flight, simulate
from flatout.plan.search_context import SearchContext
from flatout.plan.stages import StageLoads
from flatout.plan.step_time import towers_s
from flatout.records.plan import Layout, Plan, PlannedLayout, layers_of_chunks
from flatout.records.plan_details import PipelineInterval, PlanDetails, StageMemory

_BY_INDEX = {"recompute": RECOMPUTE, "schedule": SCHEDULES}
Pipeline = tuple[tuple[PipelineInterval, ...], ...]  # by stage
_STATES = ("weights", "gradients", "optimizer")
# The forward is one third of a layer's compute; with full recomputation, a quarter.
FORWARD_SHARE, FORWARD_SHARE_RECOMPUTED = 1 / 3, 0.25


def details(context: SearchContext, plan: Plan) -> PlanDetails:
    """Return the details of the plan's best layout."""
    best = plan.layouts[0]
    cluster = context.spec.cluster
    loads = context.stage_loads(inputs_of(context, best.layout))
    times = None if loads is None else loads.time[:, 0].tolist()
    pipeline = drawn_pipeline(best, context.spec.workload.num_layers, _towers_s(context, best), times)
    return PlanDetails(
        gpu=cluster.gpu,
        gpu_memory_bytes=cluster.memory_bytes,
        stages=stage_memory(context, best.layout, pipeline),
        pipeline=pipeline,
        front=plan.pareto,
    )


def layers_of_stages(num_layers: int, pp: int, vpp: int = 1) -> list[int]:
    """Return the number of layers of each stage: of its chunks, of which stage s has number s and every pp-th after."""
    of_chunks = layers_of_chunks(num_layers, pp, vpp)
    return [sum(of_chunks[stage::pp]) for stage in range(pp)]


def _towers_s(context: SearchContext, planned: PlannedLayout) -> float:
    """Return the seconds of one micro-batch's images on the first stage."""
    inputs = inputs_of(context, planned.layout)
    factor = float(np.exp(context.calibration.offset(inputs)[0]))
    return _scalar(towers_s(inputs, from_logs(context.calibration.logs))) * factor


def stage_seconds(
    planned: PlannedLayout, num_layers: int, first_s: float = 0.0, mean_layers: Sequence[float] | None = None
) -> list[float]:
    """Return the seconds that one micro-batch takes on each stage, forward and backward together.

    All layers take the same time, or those of a stage as long as `mean_layers` of them; the first stage also has
    `first_s` of towers, and the last one the logits. The two unknowns follow from the predicted times of the mean and
    the slowest stage.
    """
    layout, parts = planned.layout, planned.parts_s
    busy_s = sum(parts.get(name, 0.0) for name in ("compute", "tensor_parallel", "context_parallel", "expert_parallel"))
    mean_s = busy_s / layout.num_micro_batches
    if layout.pp == 1:
        return [mean_s]
    slowest_s = mean_s + parts.get("imbalance", 0.0) / layout.num_micro_batches
    counts = mean_layers or [float(count) for count in layers_of_stages(num_layers, layout.pp, layout.vpp)]
    all_stages_s = mean_s * layout.pp
    # Assume that one of the first stages is the slowest; if that contradicts the prediction, the last stage is.
    layer_s = (slowest_s - first_s) / max(counts[:-1])
    logits_s = all_stages_s - first_s - num_layers * layer_s
    last_s = counts[-1] * layer_s + logits_s
    if logits_s < 0 or last_s > slowest_s * (1 + 1e-9):
        layer_s = (all_stages_s - first_s - slowest_s) / (num_layers - counts[-1])
        logits_s = slowest_s - counts[-1] * layer_s
    seconds = [count * layer_s for count in counts]
    seconds[0] += first_s
    seconds[-1] += max(logits_s, 0.0)
    return seconds


def drawn_pipeline(
    planned: PlannedLayout, num_layers: int, first_s: float = 0.0, mean_layers: Sequence[float] | None = None
) -> Pipeline:
    """Simulate the layout's schedule with the predicted seconds of its stages.

    The backward has twice the operations of the forward, or with full recomputation three times as many.
    """
    layout = planned.layout
    stages_s = stage_seconds(planned, num_layers, first_s, mean_layers)
    is_recomputed = layout.recompute == "full"
    forward_share = FORWARD_SHARE_RECOMPUTED if is_recomputed else FORWARD_SHARE
    return simulate(
        layout.pp,
        layout.num_micro_batches,
        layout.vpp,
        [stage_s * forward_share for stage_s in stages_s],
        [stage_s * (1.0 - forward_share) for stage_s in stages_s],
        schedule=layout.schedule if layout.pp > 1 else "1f1b",
        # Half of the backward without recomputation: F + (B + W), or F + (F + B + W).
        weights_share=1 / 3 if is_recomputed else 0.5,
    )


def stage_memory(context: SearchContext, layout: Layout, pipeline: Pipeline) -> tuple[StageMemory, ...]:
    """Return the bytes of each stage.

    Activations depend on the micro-batches that the stage holds in its schedule; the first stage has the embedding, and
    the last stage has the logits.
    """
    inputs = inputs_of(context, layout)
    constants = context.memory.constants
    of_rank = {name: _scalar(part) for name, part in memory(inputs, constants).parts.items()}
    counts = layers_of_stages(context.spec.workload.num_layers, layout.pp, layout.vpp)
    loads = context.stage_loads(inputs)
    if layout.pp == 1:
        state_shares, activations, logits = [1.0], [of_rank["activations"]], [of_rank["logits"]]
    else:
        state_shares = _state_shares(inputs, counts, loads)
        activations = _activations(inputs, layout, pipeline, _kept_shares(inputs, counts, loads), constants)
        logits = [0.0] * (layout.pp - 1) + [sum(map(_scalar, logits_bytes(inputs)))]
    allocator_loss = constants.allocator - 1.0
    allocated = sum(part for name, part in of_rank.items() if name != "overhead")
    outside = of_rank["overhead"] - allocator_loss * allocated
    stages: list[dict[str, float]] = []
    for share, activation_bytes, logit_bytes in zip(state_shares, activations, logits, strict=True):
        parts = {name: of_rank[name] * share for name in _STATES}
        parts |= {"activations": activation_bytes, "logits": logit_bytes}
        parts["overhead"] = outside + allocator_loss * sum(parts.values())
        stages.append(parts)
    parts_of_stages = {name: np.array([parts[name] for parts in stages]) for name in stages[0]}
    totals = np.sum(list(parts_of_stages.values()), axis=0)
    probability = out_of_memory_probability(inputs, context.memory, MemoryEstimate(totals, parts_of_stages))
    return tuple(
        StageMemory(
            stage=stage,
            num_layers=counts[stage],
            parts_bytes=parts,
            out_of_memory_probability=float(probability[stage]),
        )
        for stage, parts in enumerate(stages)
    )


def _scalar(column: Any) -> float:
    """Return the scalar value of a column of single-row inputs."""
    return float(np.ravel(column)[0])


def inputs_of(context: SearchContext, layout: Layout) -> CostModelInputs:
    """Return the cost model's inputs for this layout alone."""
    values = {name: float(getattr(layout, name)) for name in layout.__struct_fields__ if name not in _BY_INDEX}
    values |= {name: float(names.index(getattr(layout, name))) for name, names in _BY_INDEX.items()}
    values |= {"sp": float(layout.sequence_parallel), "num_micro": float(layout.num_micro_batches)}
    spec = replace(context.spec, offloads=layout.offload)
    columns = {name: np.array([values[name]]) for name in all_layouts(spec)}
    return replace(context, spec=spec).inputs(columns, slice(None))


def _state_shares(inputs: CostModelInputs, counts: list[int], loads: StageLoads | None) -> list[float]:
    """Return each stage's parameters relative to the largest rank's; middle stages have no vocabulary."""
    dense, expert = _scalar(sizes.dense_parameters(inputs)), _scalar(sizes.expert_parameters(inputs))
    everything = dense + expert
    table = _scalar(inputs.vocab * inputs.hidden / inputs.tp)
    if loads is None:
        layer = (everything - table) / _scalar(sizes.layers_of_largest_stage(inputs))
        parameters = [count * layer for count in counts]
    else:
        most = _scalar(sizes.layers_of_largest_stage(inputs))
        in_layers = (dense - table) * loads.parameters / (_scalar(inputs.stage_parameters) * most)
        in_experts = expert * loads.experts / (_scalar(inputs.stage_experts) * most)
        parameters = (in_layers + in_experts)[:, 0].tolist()
    parameters[0] += table
    parameters[-1] += table
    return [number / everything for number in parameters]


def _kept_shares(inputs: CostModelInputs, counts: list[int], loads: StageLoads | None) -> list[float]:
    """Return the activations of one micro-batch on each stage, relative to those that memory counts."""
    if loads is None:
        return [count / counts[0] for count in counts]
    counted = _scalar(inputs.stage_kept) * _scalar(sizes.layers_of_largest_stage(inputs))
    shares: list[float] = (loads.kept / counted)[:, 0].tolist()
    return shares


def _activations(
    inputs: CostModelInputs, layout: Layout, pipeline: Pipeline, shares: list[float], constants: MemoryConstants
) -> list[float]:
    """Return the bytes of each stage's activations.

    They grow linearly with the micro-batches in flight; both terms follow from the model at one and at many of them.
    """

    def held_bytes(case: CostModelInputs) -> float:
        return _scalar(memory(case, constants).parts["activations"])

    with_many = held_bytes(inputs)
    with_one = held_bytes(replace(inputs, num_micro=np.ones(1), gpipe=np.zeros(1)))
    num_held = _scalar(micro_batches_held(inputs)[0])
    per_micro_batch = (with_many - with_one) / (num_held - 1.0) if num_held > 1 else with_one
    always = max(with_one - per_micro_batch, 0.0)
    in_flight = [most_in_flight(stage) / layout.vpp for stage in pipeline]
    return [always + per_micro_batch * number * share for number, share in zip(in_flight, shares, strict=True)]
