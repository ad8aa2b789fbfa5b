"""What the stages of a pipeline hold if a model's layers differ: hybrids, dense layers before those with experts.

In: the cost model's inputs of layouts, and the kind of each layer in the order of the model. Out: what each stage's own
layers take in time, parameters and activations, in mean layers. Each kind's own time and bytes are those that the cost
model has for a model of this kind alone, so nothing is assumed about what a recurrence or an expert costs.

Frameworks give each stage the same number of layers, whatever these are; stages are not balanced here either. Time is
that of the slowest stage, memory that of the one that needs the most, which need not be the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from flatout.plan import sizes
from flatout.plan.constants import Constants
from flatout.plan.inputs import ALIKE, CostModelInputs, workload_columns
from flatout.plan.memory import MemoryConstants, kept_bytes_per_token, memory, micro_batches_held
from flatout.plan.step_time import layer_s
from flatout.records.layers import LayerKind
from flatout.records.plan import Workload, layers_of_chunks

Array = npt.NDArray[np.float64]
MOST_CHUNKS = 4096  # of a stage: more than any layout has
# What differs between kinds of layers.
_OF_A_LAYER = (
    *("qkv_width", "out_width", "score_width", "windowed", "recurrence", "kv_width"),
    *("ffn", "shared_ffn", "expert_ffn", "moe_layers", "other_parameters"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLoads:
    """By stage, and by layout in the second axis: how many mean layers its own layers are worth."""

    time: Array
    parameters: Array  # without routed experts
    experts: Array
    kept: Array  # activations of one micro-batch


def has_different_layers(workload: Workload) -> bool:
    """Whether the layers are of several kinds in a known order."""
    return len(set(workload.kind_of_layer)) > 1


def with_stages(
    inputs: CostModelInputs, workload: Workload, seq: int, document: int, constants: Constants
) -> CostModelInputs:
    """Return the inputs with the heaviest stage of each layout.

    If all layers are alike, that is the first or the last one, which the cost model knows without this, unless the
    first one has fewer layers than the next.
    """
    pp, vpp = np.atleast_1d(inputs.pp), np.atleast_1d(inputs.vpp)
    splits = [divmod(int(code), MOST_CHUNKS) for code in np.unique(pp * MOST_CHUNKS + vpp)]
    uneven = [split for split in splits if _has_own_stages(workload, *split)]
    if not uneven:
        return inputs
    ratios = {name: np.ones(len(pp)) for name in ALIKE}
    of_kinds = _of_kinds(inputs, workload, seq, document, constants)
    for num_stages, num_chunks in uneven:
        counts = _layers_by_kind(_kinds_in_order(workload), num_stages, num_chunks)
        if counts is None:
            continue
        rows = np.flatnonzero((pp == num_stages) & (vpp == num_chunks))
        loads = _loads(counts, {name: values[:, rows] for name, values in of_kinds.items()})
        own = _rows_of(inputs, rows)
        slowest = _slowest(loads, own) if has_different_layers(workload) else {}
        for name, ratio in (slowest | _largest(loads, own)).items():
            ratios[name][rows] = ratio
    return replace(inputs, **ratios)


def _has_own_stages(workload: Workload, num_stages: int, num_chunks: int) -> bool:
    """Whether a stage in the middle may hold the most, or be the slowest."""
    if num_stages == 1 or workload.num_layers % (num_stages * num_chunks) == 0:
        return num_stages > 1 and has_different_layers(workload)
    layers = layers_of_chunks(workload.num_layers, num_stages, num_chunks)
    return has_different_layers(workload) or layers[0] < max(layers)


def stage_loads(
    inputs: CostModelInputs, workload: Workload, seq: int, document: int, constants: Constants
) -> StageLoads | None:
    """Return the loads of the stages of one layout; None if it has one stage, or cannot split the layers."""
    num_stages, num_chunks = int(np.ravel(inputs.pp)[0]), int(np.ravel(inputs.vpp)[0])
    counts = _layers_by_kind(_kinds_in_order(workload), num_stages, num_chunks)
    if num_stages == 1 or counts is None:
        return None
    return _loads(counts, _of_kinds(inputs, workload, seq, document, constants))


def _of_kinds(
    inputs: CostModelInputs, workload: Workload, seq: int, document: int, constants: Constants
) -> dict[str, Array]:
    """Return what a layer of each kind takes: one row for each kind, one column for each layout."""
    num_layouts = len(np.atleast_1d(inputs.pp))
    if not has_different_layers(workload):
        return {field.name: np.ones((1, num_layouts)) for field in fields(StageLoads)}
    kinds = [replace(inputs, **_columns_of(kind, workload, seq, document), **ALIKE) for kind in workload.layers]

    def column(value: Any) -> Array:
        return np.broadcast_to(np.asarray(value, dtype=np.float64), (num_layouts,))

    return {
        "time": np.stack([column(layer_s(kind, constants)) for kind in kinds]),
        "parameters": np.stack([column(sizes.layer_parameters(kind)) for kind in kinds]),
        "experts": np.stack([column(sizes.expert_parameters(kind)) for kind in kinds]),
        "kept": np.stack([column(kept_bytes_per_token(kind)) for kind in kinds]),
    }


def _loads(counts: Array, of_kinds: dict[str, Array]) -> StageLoads:
    return StageLoads(**{name: _in_mean_layers(counts, values) for name, values in of_kinds.items()})


def _kinds_in_order(workload: Workload) -> Sequence[int]:
    """Return the kind of each layer in the order of the model; all are of one kind if the order is unknown."""
    return workload.kind_of_layer if has_different_layers(workload) else (0,) * workload.num_layers


def _slowest(loads: StageLoads, inputs: CostModelInputs) -> dict[str, Any]:
    """Return the slowest stage but the last and the last one, relative to the largest stage of mean layers."""
    most = sizes.layers_of_largest_stage(inputs)
    in_last = sizes.layers_of_last_stage(inputs)
    return {
        "stage_time": loads.time[:-1].max(axis=0) / most,
        "last_stage_time": np.where(in_last > 0, loads.time[-1] / np.maximum(in_last, 1.0), 1.0),
    }


def of_stage(loads: StageLoads, inputs: CostModelInputs, stage: int) -> dict[str, Any]:
    """Return the columns with which `memory` counts one stage: what it holds, relative to mean layers.

    A stage's activations are relative to as many micro-batches as the first stage holds.
    """
    most = sizes.layers_of_largest_stage(inputs)
    held = micro_batches_held(inputs, float(stage)) / micro_batches_held(inputs, 0.0)
    is_last = float(stage == len(loads.kept) - 1)
    return {
        "stage_parameters": loads.parameters[stage] / most,
        "stage_experts": loads.experts[stage] / most,
        "stage_kept": loads.kept[stage] * held / most,
        "last_stage_kept": loads.kept[stage] * is_last / most,
        "is_first_stage": float(stage == 0),
        "is_last_stage": is_last,
    }


def _largest(loads: StageLoads, inputs: CostModelInputs) -> dict[str, Any]:
    """Return what the stage that needs the most memory holds."""
    largest: dict[str, Any] = {}
    num_stages, num_layouts = loads.kept.shape
    largest_bytes = np.full(num_layouts, -1.0)
    evaluated: list[dict[str, Any]] = []
    for stage in range(num_stages):
        own = of_stage(loads, inputs, stage)
        if any(_holds_as_much(other, own) for other in evaluated):
            continue
        evaluated.append(own)
        total = memory(replace(inputs, **own), MemoryConstants()).total
        is_larger = total > largest_bytes
        largest = {name: np.where(is_larger, value, largest.get(name, value)) for name, value in own.items()}
        largest_bytes = np.maximum(largest_bytes, total)
    return largest


def _holds_as_much(stage: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether a stage holds at least as much of everything as another, in all layouts."""
    return all(bool(np.all(stage[name] >= other[name])) for name in other)


def _layers_by_kind(kind_of_layer: Sequence[int], num_stages: int, num_chunks: int) -> Array | None:
    """Return how many layers of each kind (second axis) each stage has; None if they cannot be split so."""
    chunks = layers_of_chunks(len(kind_of_layer), num_stages, num_chunks)
    if min(chunks) < 0:
        return None
    num_kinds = max(kind_of_layer) + 1
    counts = np.zeros((num_stages, num_kinds))
    first = 0
    for chunk, num_layers in enumerate(chunks):
        own = kind_of_layer[first : first + num_layers]
        counts[chunk % num_stages] += np.bincount(np.array(own, dtype=np.intp), minlength=num_kinds)
        first += num_layers
    return counts


def _in_mean_layers(counts: Array, values: Array) -> Array:
    """Return the sums over each stage's layers, relative to the mean layer; as many layers as it has if all are 0."""
    mean = counts.sum(axis=0) @ values / counts.sum()
    num_layers = counts.sum(axis=1, keepdims=True)
    return np.where(mean > 0, counts @ values / np.where(mean > 0, mean, 1.0), num_layers)


def _columns_of(kind: LayerKind, workload: Workload, seq: int, document: int) -> dict[str, float]:
    """Return the columns of a model that has layers of this kind alone."""
    num_layers = workload.num_layers
    has_experts = any(matrix.part == "experts" for matrix in kind.matrices)
    alone = msgspec.structs.replace(
        workload,
        layers=(msgspec.structs.replace(kind, num_layers=num_layers, num_distinct=0),),
        num_moe_layers=num_layers if has_experts else 0,
    )
    columns = workload_columns(alone, seq, document)
    return {name: float(columns[name]) for name in _OF_A_LAYER}


def _rows_of(inputs: CostModelInputs, rows: npt.NDArray[np.intp]) -> CostModelInputs:
    """Return some rows of the inputs; scalars apply to all rows."""
    columns = {name: getattr(inputs, name) for name in inputs.__slots__}
    return replace(inputs, **{name: value[rows] for name, value in columns.items() if np.ndim(value)})
