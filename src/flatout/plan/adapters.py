"""Count the parameters that are trained where a model is not trained as a whole: adapters (LoRA) or what is not frozen.

An adapter of rank r on a matrix from m to n elements has r * (m + n) parameters (Hu et al., arXiv 2106.09685). Each
projection has its own, also where a model's code joins queries, keys and values in one matrix.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from flatout.errors import UsageError
from flatout.plan.counts import num_parameters, table_parameters
from flatout.plan.models.uniform import layer_kinds
from flatout.records.layers import Matrix
from flatout.records.plan import Training, Workload

# Names for several matrices at once, and the parts of a layer that they stand for.
GROUPS = {"attention": ("in", "out"), "linear": ("in", "out", "ffn", "shared", "experts")}
PARTS = ("vision", "audio", "embedding", "experts")  # what can be frozen


class Parameters(NamedTuple):
    """Numbers of parameters outside and inside the routed experts."""

    dense: int
    experts: int


def all_parameters(workload: Workload) -> Parameters:
    """Return the parameters of the model."""
    in_experts = sum(
        kind.num_stored * matrix.parameters
        for kind in layer_kinds(workload)
        for matrix in kind.matrices
        if matrix.part == "experts"
    )
    return Parameters(num_parameters(workload) - in_experts, in_experts)


def trained_parameters(workload: Workload, training: Training) -> Parameters:
    """Return the parameters that are trained. Raise UsageError for a matrix or a part that the model does not have."""
    if training.lora_rank:
        return _adapters(workload, training)
    parameters = all_parameters(workload)
    dense = parameters.dense - sum(_frozen_in(workload, part) for part in training.frozen if part != "experts")
    if "experts" in training.frozen:
        if not parameters.experts:
            raise UsageError(f"--freeze experts needs a model with experts, but {workload.name} has none")
        return Parameters(dense, 0)
    return Parameters(dense, parameters.experts)


def linear_weights(workload: Workload) -> Parameters:
    """Return the weights of the layers' matrices, which a quantized base holds in fewer bits."""
    matrices = [
        (matrix.part, kind.num_stored * matrix.copies * matrix.weights)
        for kind in layer_kinds(workload)
        for matrix in kind.matrices
        if matrix.part != "router"
    ]
    in_experts = sum(weights for part, weights in matrices if part == "experts")
    return Parameters(sum(weights for _, weights in matrices) - in_experts, in_experts)


def _adapters(workload: Workload, training: Training) -> Parameters:
    kinds = layer_kinds(workload)
    names = {matrix.name for kind in kinds for matrix in kind.matrices if matrix.part != "router"}
    for target in training.lora_targets:
        if target not in GROUPS and target not in names:
            raise UsageError(
                f"--lora-targets must be matrices of {workload.name}, but got `{target}`",
                hint=f"it has: {', '.join(sorted(names))}; or {' or '.join(GROUPS)}",
            )
    dense = experts = 0
    for kind in kinds:
        for matrix in _targeted(kind.matrices, training.lora_targets):
            number = kind.num_stored * matrix.copies * training.lora_rank * (matrix.inputs + matrix.outputs)
            if matrix.part == "experts":
                experts += number
            else:
                dense += number
    return Parameters(dense, experts)


def _targeted(matrices: Iterable[Matrix], targets: tuple[str, ...]) -> list[Matrix]:
    parts = {part for target in targets for part in GROUPS.get(target, ())}
    return [matrix for matrix in matrices if matrix.part in parts or matrix.name in targets]


def _frozen_in(workload: Workload, part: str) -> int:
    """Return the parameters of a part. Raise UsageError if the model does not have it."""
    if part == "embedding":
        return table_parameters(workload)
    towers = [tower.parameters for tower in workload.towers if tower.name == part]
    if part not in PARTS or not towers:
        has = [*(tower.name for tower in workload.towers), "embedding"]
        raise UsageError(
            f"--freeze must be a part of {workload.name}, but got `{part}`", hint=f"it has: {', '.join(has)}"
        )
    return sum(towers)
