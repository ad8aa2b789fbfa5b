"""Count a workload's parameters and floating-point operations, layer by layer.

Parameters follow the published model definitions exactly (tests compare them with the published numbers). Operations:
2 for each multiply-add of a matrix multiplication, forward; a training step has three times as many (the gradients of
inputs and of weights), without recomputation. Same terms as Megatron-LM's `num_floating_point_operations`. Attention
counts the tokens that a layer's window leaves; a recurrence costs the same for each token of any sequence.
"""

from __future__ import annotations

from flatout.plan.models.uniform import layer_kinds
from flatout.records.layers import LayerKind
from flatout.records.plan import Workload


def query_key_dim(workload: Workload) -> int:
    """Return the elements of one head's query; with latent attention, with and without rotary positions."""
    return workload.head_dim + workload.rope_dim


def value_dim(workload: Workload) -> int:
    """Return the elements of one head's value."""
    return workload.value_dim or workload.head_dim


def matrices_per_ffn(workload: Workload) -> int:
    """Return the number of matrices in one feed-forward network: up and down, and a gate if it has one."""
    return 3 if workload.is_gated else 2


def norm_parameters(workload: Workload) -> int:
    """Return the parameters of one norm of a workload that is given by its widths."""
    return workload.hidden * (2 if workload.has_bias else 1)


def table_parameters(workload: Workload) -> int:
    """Return the parameters of the vocabulary's tables: the embedding, and the logits unless they are tied to it."""
    w = workload
    return w.vocab * (w.table_width or w.hidden) * (1 if w.is_tied else 2)


def outside_parameters(workload: Workload) -> int:
    """Return the parameters of what is in no layer and no table of the vocabulary: norms, positions and towers."""
    w = workload
    if w.layers:
        return w.outside_parameters + sum(tower.parameters for tower in w.towers)
    positions = w.max_positions * w.hidden
    patches = (w.patch_inputs + 2) * w.hidden if w.patch_inputs else 0  # with its bias and the class token
    token_types = w.num_token_types * w.hidden
    classes = w.hidden * w.num_classes + w.num_classes
    return positions + patches + token_types + classes + norm_parameters(w)  # BERT's norm comes after the embedding


def num_parameters(workload: Workload) -> int:
    """Return the number of all parameters."""
    in_layers = sum(kind.num_stored * kind.parameters for kind in layer_kinds(workload))
    return in_layers + table_parameters(workload) + outside_parameters(workload)


def num_active_parameters(workload: Workload) -> int:
    """Return the number of parameters that one token uses, with `experts_per_token` of the routed experts."""
    idle = sum(kind.num_stored * matrix.idle_parameters for kind in layer_kinds(workload) for matrix in kind.matrices)
    return num_parameters(workload) - idle


def mean_attended(kind: LayerKind, seq: int, *, is_causal: bool) -> float:
    """Return the tokens of its sequence that a token attends to in one layer, as a mean over the sequence."""
    window = min(kind.window or seq, seq)
    if kind.is_bidirectional or not is_causal:
        return float(window)
    if kind.mixing == "chunk":
        num_chunks, rest = divmod(seq, window)
        return (num_chunks * window**2 + rest**2) / (2.0 * seq)
    # The first `window` tokens attend to half of it in the mean, and the others to all of it.
    return window - window**2 / (2.0 * seq)


def score_multiply_adds(kind: LayerKind, seq: int, *, is_causal: bool) -> float:
    """Return the multiply-adds per token of one layer's attention: to its own sequence, and to another."""
    own = kind.score_width * mean_attended(kind, seq, is_causal=is_causal)
    return own + kind.cross_width * (kind.cross_attended or seq)


def training_flops_per_token(
    workload: Workload, seq: int, *, is_causal: bool | None = None, trains_weights: bool = True
) -> float:
    """Return the operations of forward and backward for one token in a sequence of `seq`, without recomputation.

    `is_causal=False` counts the masked half of attention too, as Narayanan et al. (arXiv 2104.04473, eq. 3) do. Towers
    are not counted: the number of images per sequence is unknown. Without `trains_weights`, the model is frozen under
    adapters: its matrices have no gradients, and adapters of usual ranks cost next to nothing.
    """
    w = workload
    if is_causal is None:
        is_causal = w.is_causal
    in_matrices, in_mixing = float(w.hidden * w.vocab), 0.0
    for kind in layer_kinds(w):
        scores = score_multiply_adds(kind, seq, is_causal=is_causal)
        in_matrices += kind.num_layers * kind.active_weights
        in_mixing += kind.num_layers * (scores + kind.recurrence)
    per_weight = 6.0 if trains_weights else 4.0
    return per_weight * in_matrices + 6.0 * in_mixing
