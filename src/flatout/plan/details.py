"""What a page shows of a plan's first layout: each stage's time and memory, its pipeline, and the Pareto front.

In: the setting and the plan. Out: a `PlanDetails`. Nothing here predicts anew: stages share out what the model says of
the fullest one and of the whole step.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from flatout.plan import search, sizes
from flatout.plan.case import RECOMPUTE, SCHEDULES, Case
from flatout.plan.fits import out_of_memory_probability
from flatout.plan.layouts import all_layouts
from flatout.plan.memory import MemoryConstants, logits_bytes, memory, micro_batches_held
from flatout.plan.pipeline import most_in_flight, simulate
from flatout.records.plan import Layout, Plan, PlannedLayout
from flatout.records.plan_details import PipelineInterval, PlanDetails, StageMemory

_BY_INDEX = {"recompute": RECOMPUTE, "schedule": SCHEDULES}
Array = npt.NDArray[np.float64]


def details(setting: search.Setting, plan: Plan) -> PlanDetails:
    """Of the plan's first layout."""
    best = plan.layouts[0]
    pipeline = drawn_pipeline(best, setting.job.workload.num_layers)
    return PlanDetails(
        gpu=setting.job.cluster.gpu,
        gpu_memory_bytes=setting.job.cluster.memory_bytes,
        stages=stage_memory(setting, best.layout, pipeline),
        pipeline=pipeline,
        front=plan.pareto,
    )


def layers_of_stages(num_layers: int, pp: int) -> list[int]:
    """Layers that do not divide: the last stage, which has the logits too, has fewer."""
    most = -(-num_layers // pp)
    return [most] * (pp - 1) + [num_layers - most * (pp - 1)]


def stage_seconds(planned: PlannedLayout, num_layers: int) -> list[float]:
    """One micro-batch, forward and backward, on each stage: layers take alike, the last stage has the logits.

    From the mean stage and the slowest one of the prediction follow the two unknowns, a layer and the logits.
    """
    layout, parts = planned.layout, planned.parts_s
    busy = sum(parts.get(name, 0.0) for name in ("compute", "tensor_parallel", "context_parallel", "expert_parallel"))
    mean_s = busy / layout.num_micro_batches
    if layout.pp == 1:
        return [mean_s]
    slowest_s = mean_s + parts.get("imbalance", 0.0) / layout.num_micro_batches
    counts = layers_of_stages(num_layers, layout.pp)
    layer_s = slowest_s / counts[0]
    logits_s = mean_s * layout.pp - num_layers * layer_s
    if logits_s < 0 or counts[-1] * layer_s + logits_s > slowest_s * (1 + 1e-9):
        layer_s = (mean_s * layout.pp - slowest_s) / (num_layers - counts[-1])
        logits_s = slowest_s - counts[-1] * layer_s
    return [count * layer_s for count in counts[:-1]] + [counts[-1] * layer_s + max(logits_s, 0.0)]


def drawn_pipeline(planned: PlannedLayout, num_layers: int) -> tuple[tuple[PipelineInterval, ...], ...]:
    """The layout's schedule, in the predicted seconds of its stages. Backward has twice forward's operations, and with
    full recomputation forward's once more.
    """
    layout = planned.layout
    each_s = stage_seconds(planned, num_layers)
    share = 0.25 if layout.recompute == "full" else 1 / 3
    return simulate(
        layout.pp,
        layout.num_micro_batches,
        layout.vpp,
        [value * share for value in each_s],
        [value * (1.0 - share) for value in each_s],
        schedule=layout.schedule if layout.pp > 1 else "1f1b",
        # Half of the backward without what is recomputed: F + (B + W), or F + (F + B + W).
        weights_share=1 / 3 if layout.recompute == "full" else 0.5,
    )


def stage_memory(
    setting: search.Setting, layout: Layout, pipeline: tuple[tuple[PipelineInterval, ...], ...]
) -> tuple[StageMemory, ...]:
    """Bytes by stage. Activations follow the micro-batches that a stage holds in its schedule; the embedding is the
    first stage's, the logits the last one's.
    """
    case = _one_case(setting, layout)
    constants = MemoryConstants()
    whole = {name: float(np.ravel(part)[0]) for name, part in memory(case, constants).parts.items()}
    counts = layers_of_stages(setting.job.workload.num_layers, layout.pp)
    if layout.pp == 1:
        states, activations, logits = [1.0], [whole["activations"]], [whole["logits"]]
    else:
        states = _state_shares(case, counts)
        activations = _activations(case, layout, pipeline, counts)
        logits = [0.0] * (layout.pp - 1) + [float(np.ravel(logits_bytes(case))[0])]
    outside = whole["overhead"] - (constants.allocator - 1.0) * sum(
        part for name, part in whole.items() if name != "overhead"
    )
    parts = [
        {
            **{name: whole[name] * states[stage] for name in ("weights", "gradients", "optimizer")},
            "activations": activations[stage],
            "logits": logits[stage],
        }
        for stage in range(layout.pp)
    ]
    for each in parts:
        each["overhead"] = outside + (constants.allocator - 1.0) * sum(each.values())
    totals = np.array([sum(each.values()) for each in parts])
    probability = out_of_memory_probability(case, constants, totals)
    return tuple(
        StageMemory(
            stage=stage,
            num_layers=counts[stage],
            parts_bytes=each,
            out_of_memory_probability=float(probability[stage]),
        )
        for stage, each in enumerate(parts)
    )


def _one_case(setting: search.Setting, layout: Layout) -> Case:
    """The layout as the one row of a search."""
    values = {
        **{name: float(getattr(layout, name)) for name in layout.__struct_fields__ if name not in _BY_INDEX},
        "sp": float(layout.sequence_parallel),
        "num_micro": float(layout.num_micro_batches),
        **{name: float(names.index(getattr(layout, name))) for name, names in _BY_INDEX.items()},
    }
    job = replace(setting.job, offloads=layout.offload)
    columns = {name: np.array([values[name]]) for name in all_layouts(job)}
    return replace(setting, job=job).case(columns, slice(None))


def _state_shares(case: Case, counts: list[int]) -> list[float]:
    """Of the fullest rank's parameters, which has a vocabulary's table: middle stages have none."""
    fullest = float(np.ravel(sizes.layers_of_fullest_stage(case))[0])
    everything = float(np.ravel(sizes.dense_parameters(case) + sizes.expert_parameters(case))[0])
    table = float(np.ravel(case.vocab * case.hidden / case.tp)[0])
    layer = (everything - table) / fullest
    ends = (0, len(counts) - 1)
    return [(count * layer + (table if stage in ends else 0.0)) / everything for stage, count in enumerate(counts)]


def _activations(
    case: Case, layout: Layout, pipeline: tuple[tuple[PipelineInterval, ...], ...], counts: list[int]
) -> list[float]:
    """They grow by the same for each micro-batch in flight: the two terms follow from the model at one and at many."""
    constants = MemoryConstants()

    def held(one: Case) -> float:
        return float(np.ravel(memory(one, constants).parts["activations"])[0])

    in_flight = [most_in_flight(stage) / layout.vpp for stage in pipeline]
    many = held(case)
    one = held(replace(case, num_micro=np.ones(1), gpipe=np.zeros(1)))
    first = float(np.ravel(micro_batches_held(case)[0])[0])
    each = (many - one) / (first - 1.0) if first > 1 else one
    always = one - each
    return [
        max(always, 0.0) + each * number * count / counts[0] for number, count in zip(in_flight, counts, strict=True)
    ]
