"""The details of a plan's best layout for its page: each stage's time and memory, the pipeline, and the Pareto front.

In: the search context and the plan. Out: a `PlanDetails`. Nothing is predicted separately: the model's prediction for
the complete step is distributed over the stages, and each stage's memory is counted as a plan counts the largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from flatout.plan.constants import from_logs
from flatout.plan.fits import out_of_memory_probability
from flatout.plan.inputs import RECOMPUTE, SCHEDULES, CostModelInputs
from flatout.plan.layouts import COLUMNS
from flatout.plan.memory import PARTS, MemoryEstimate, memory
from flatout.plan.pipeline import simulate
from flatout.plan.search_context import SearchContext
from flatout.plan.stages import of_stage
from flatout.plan.step_time import towers_s
from flatout.records.plan import Layout, Plan, PlannedLayout, layers_of_chunks
from flatout.records.plan_details import PipelineInterval, PlanDetails, StageMemory

_BY_INDEX = {"recompute": RECOMPUTE, "schedule": SCHEDULES}
Pipeline = tuple[tuple[PipelineInterval, ...], ...]  # by stage
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
        stages=stage_memory(context, best.layout),
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


def stage_memory(context: SearchContext, layout: Layout) -> tuple[StageMemory, ...]:
    """Return the bytes of each stage: those of its layers, and of as many micro-batches as its schedule holds."""
    inputs = inputs_of(context, layout)
    loads = context.stage_loads(inputs)
    counts = layers_of_stages(context.spec.workload.num_layers, layout.pp, layout.vpp)
    stages = [memory(inputs, context.memory.constants)]
    if loads is not None:
        of_stages = [replace(inputs, **of_stage(loads, inputs, stage)) for stage in range(layout.pp)]
        stages = [memory(own, context.memory.constants) for own in of_stages]
    parts_of_stages = {name: np.array([_scalar(stage.parts[name]) for stage in stages]) for name in PARTS}
    totals = np.array([_scalar(stage.total) for stage in stages])
    probability = out_of_memory_probability(inputs, context.memory, MemoryEstimate(totals, parts_of_stages))
    return tuple(
        StageMemory(
            stage=stage,
            num_layers=counts[stage],
            parts_bytes={name: float(parts_of_stages[name][stage]) for name in PARTS},
            out_of_memory_probability=float(probability[stage]),
        )
        for stage in range(layout.pp)
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
    columns = {name: np.array([values[name]]) for name in COLUMNS}
    return replace(context, spec=spec).inputs(columns, slice(None))
