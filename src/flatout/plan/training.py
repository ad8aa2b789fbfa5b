"""The training's part of the cost model's inputs: the share of the parameters that is trained, and the optimizer."""

from __future__ import annotations

from flatout.plan.adapters import Parameters, all_parameters, linear_weights, trained_parameters
from flatout.plan.models.uniform import layer_kinds
from flatout.plan.optimizers import ADAM, OPTIMIZERS, Optimizer
from flatout.records.plan import FULL_TRAINING, Training, Workload

# Bytes of a weight with its scales. 4 bits: NF4 with a byte per 64 weights, whose scales have 4 bytes per 256 of them
# (Dettmers et al., arXiv 2305.14314); 8 bits: one scale per row, which is next to nothing.
BASE_BYTES = {8: 1.0, 4: (4.0 + 8.0 / 64 + 32.0 / (64 * 256)) / 8.0}
NEWTON_SCHULZ_STEPS = 5


def training_columns(workload: Workload, training: Training = FULL_TRAINING) -> dict[str, float]:
    """Return the training's part of the cost model's inputs."""
    parameters, trained = all_parameters(workload), trained_parameters(workload, training)
    optimizer = OPTIMIZERS[training.optimizer]
    state, adam_state = optimizer.state_bytes, ADAM.state_bytes
    moved, adam_moved = optimizer.moved_bytes, ADAM.moved_bytes
    if training.is_pure_bf16:
        state, adam_state = optimizer.pure_state_bytes, ADAM.pure_state_bytes
        moved, adam_moved = optimizer.pure_moved_bytes, ADAM.pure_moved_bytes
    return {
        "trained": _share(trained.dense, parameters.dense),
        "trained_experts": _share(trained.experts, parameters.experts),
        "adapters": float(training.lora_rank > 0),
        "frozen_bytes": _frozen_bytes(workload, training, parameters),
        "has_master_weights": float(not training.is_pure_bf16),
        "optimizer_bytes": _mean_bytes(workload, optimizer, state, adam_state),
        "update_bytes": _mean_bytes(workload, optimizer, moved, adam_moved),
        "update_operations": _update_operations(workload, optimizer, training),
    }


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def _frozen_bytes(workload: Workload, training: Training, parameters: Parameters) -> float:
    """Return the mean bytes of a frozen weight; 0 if it is stored as it is computed with."""
    if training.base_bits not in BASE_BYTES:
        return 0.0
    linear, everything = sum(linear_weights(workload)), sum(parameters)
    quantized = min(linear / everything, 1.0)
    return quantized * BASE_BYTES[training.base_bits] + (1.0 - quantized) * 2.0


def _mean_bytes(workload: Workload, optimizer: Optimizer, for_matrices: float, for_others: float) -> float:
    """Return the mean over all parameters: Muon updates the layers' matrices, and Adam everything else."""
    if not optimizer.is_orthogonalized:
        return for_matrices
    in_matrices = sum(linear_weights(workload)) / sum(all_parameters(workload))
    return in_matrices * for_matrices + (1.0 - in_matrices) * for_others


def _update_operations(workload: Workload, optimizer: Optimizer, training: Training) -> float:
    """Return Muon's operations per parameter.

    One step of Newton-Schulz on a matrix of m x n elements, n the smaller, multiplies n x m by m x n, two n x n, and
    n x n by n x m. An adapter's smaller side is its rank: next to nothing.
    """
    if not optimizer.is_orthogonalized or training.lora_rank:
        return 0.0
    operations = 0.0
    for kind in layer_kinds(workload):
        for matrix in kind.matrices:
            if matrix.part == "router":
                continue
            small, large = sorted((matrix.inputs, matrix.outputs))
            one_step = 2.0 * (2.0 * small**2 * large + small**3)
            operations += kind.num_stored * matrix.copies * NEWTON_SCHULZ_STEPS * one_step
    return operations / sum(all_parameters(workload))
