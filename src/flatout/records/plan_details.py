"""Details of a planned layout for the page, beyond the plan itself, and the input for files of other tools."""

from __future__ import annotations

import msgspec

from flatout.records.plan import FULL_TRAINING, ClusterSpec, Layout, PlannedLayout, Training, Workload


class PipelineInterval(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of a stage. `weights` are the gradients of weights, if the schedule defers them."""

    kind: str  # forward, backward, weights
    chunk: int
    micro_batch: int
    start_s: float
    end_s: float


class StageMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The memory use of one rank of a pipeline stage."""

    stage: int
    num_layers: int
    parts_bytes: dict[str, float]
    out_of_memory_probability: float


class PlanDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Details of the best layout of a plan."""

    gpu: str
    gpu_memory_bytes: int
    stages: tuple[StageMemory, ...]
    pipeline: tuple[tuple[PipelineInterval, ...], ...]  # by stage; ends with the pipeline's part of the step
    front: tuple[PlannedLayout, ...]  # no other layout is both faster and smaller; fastest first


class PlannedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A chosen layout with its training job and machines: the input of `emit`."""

    workload: Workload
    cluster: ClusterSpec
    layout: Layout
    global_batch: int
    seq: int
    precision: str
    step_time_s: float
    step_time_interval_s: tuple[float, float]
    memory_bytes: float
    out_of_memory_probability: float
    training: Training = FULL_TRAINING
