"""The compute time of one GPU: matrix multiplications by shape, attention, and memory-bound operations.

An M x K by K x N matrix multiplication takes the time of its operations at the reachable rate, times
`1 + balance * (1/M + 1/N + 1/K)`: the second term is the time to move the three matrices, since operations / traffic =
1 / (1/M + 1/N + 1/K) and `balance` is the GPU's operations per byte (a roofline that adds both times, which fits medium
sizes better than their maximum). The last wave of 128 x 128 tiles, which does not fill all SMs, adds to this.
"""

from __future__ import annotations

import numpy as np

from flatout.plan import sizes
from flatout.plan.constants import Constants
from flatout.plan.inputs import Column, CostModelInputs

TILE = 128


def matmul_s(
    inputs: CostModelInputs, constants: Constants, m: Column, n: Column, k: Column, *, in_half: bool = False
) -> Column:
    """Return the seconds of one matrix multiplication, 0 if a dimension is 0.

    `in_half`: multiply in 16 bits, regardless of the precision.
    """
    peak = inputs.half_peak if in_half else inputs.matmul_peak
    balance = inputs.half_balance if in_half else inputs.balance
    low_precision = 1.0 if in_half else 1.0 - inputs.is_low * (1.0 - constants.low)
    waves = np.ceil(m / TILE) * np.ceil(n / TILE) / inputs.sms
    lost = constants.waves * (np.ceil(waves) / np.maximum(waves, 1e-9) - 1.0)
    lost = np.minimum(lost, 2.0)  # small multiplications split K over the idle SMs
    inverse_sides = 1.0 / m + 1.0 / np.maximum(n, 1e-9) + 1.0 / np.maximum(k, 1e-9)
    traffic = constants.balance * balance * inverse_sides
    rate = peak * constants.matmul * low_precision
    seconds = 2.0 * m * n * k / rate * (1.0 + traffic + lost)
    return np.where(n * k > 0, seconds, 0.0)


def attention_s(inputs: CostModelInputs, constants: Constants, tokens: Column) -> tuple[Column, Column]:
    """Return the forward and backward seconds of one layer's attention without its projections.

    Fused attention (Dao, arXiv 2307.08691) skips the masked half, and its backward has 2.5 times the operations of the
    forward. Unfused attention computes all scores, and its two multiplications, mask, softmax and dropout write and
    read them as fp16: 11 bytes per score (Korthikanti et al., arXiv 2205.05198, 4.1, count the same tensors), and about
    twice as much in the backward. Only fused attention skips the scores outside of a window.
    """
    operations = 4.0 * tokens * inputs.attended * inputs.score_width / inputs.tp
    rate = inputs.half_peak * constants.matmul
    small_heads = np.maximum(128.0 / inputs.head_dim, 1.0) ** (inputs.head_power * inputs.late_attention)
    unmasked = 1.0 - 0.5 * inputs.causal
    fused_rate = rate * _fused_share(inputs, constants)
    fused = operations * small_heads * unmasked * inputs.windowed / fused_rate
    recurrence = 2.0 * tokens * inputs.recurrence / inputs.tp / fused_rate
    misaligned = np.where(np.asarray(inputs.head_dim) % 8 > 0, constants.alignment, 1.0)
    matmuls = operations / (rate * constants.scores) * misaligned
    per_score_byte = tokens * inputs.attended * inputs.heads / inputs.tp / inputs.memory_rate
    unfused_forward = matmuls + 11.0 * per_score_byte * constants.elementwise
    unfused_backward = 2.0 * matmuls + 19.0 * per_score_byte * constants.elementwise
    is_fused = inputs.fused > 0
    forward = np.where(is_fused, fused, unfused_forward) + recurrence
    return forward, np.where(is_fused, 2.5 * fused, unfused_backward) + 2.0 * recurrence


def _fused_share(inputs: CostModelInputs, constants: Constants) -> Column:
    """Return the share of the rate that fused attention reaches, from its generation and the GPU's."""
    ported = np.where(inputs.after_ampere > 0, constants.flash_ported, 1.0)
    first = np.where(inputs.first_flash > 0, constants.flash_first, 1.0)
    return np.where(inputs.late_attention > 0, constants.flash, constants.flash_early * ported * first)


def elementwise_bytes(inputs: CostModelInputs, tokens: Column) -> tuple[Column, Column]:
    """Return the bytes that one layer's forward moves for norms and residuals, and between its matmuls.

    Two norms (read, write) and two residuals with dropout (read twice, write) over `hidden` move 2 * 4 + 2 * 6 bytes
    per token and element. Rotary embeddings or biases move 4 bytes per element of the projections, and the activation
    reads one or two widths of the feed-forward network and writes one.
    """
    norms = 20.0 * tokens * inputs.hidden
    moe_share = sizes.moe_share(inputs)
    dense_share = (inputs.layers - inputs.moe_layers) / inputs.layers
    moe_width = inputs.shared_ffn + inputs.topk * inputs.expert_ffn
    ffn_width = dense_share * inputs.ffn + moe_share * moe_width
    inner = tokens / inputs.tp * (4.0 * inputs.qkv_width + 2.0 * inputs.ffn_matrices * ffn_width)
    permutations = moe_share * tokens / inputs.tp * inputs.topk * inputs.hidden * 8.0
    return norms, inner + permutations


def cast_bytes(inputs: CostModelInputs, tokens: Column) -> Column:
    """Return the bytes that one layer's forward moves to quantise the inputs of its matmuls.

    For each of two memory orders, 2 bytes per element are read and 1 is written.
    """
    ffn_width = inputs.ffn + inputs.shared_ffn + inputs.topk * inputs.expert_ffn
    widths = 2.0 * inputs.hidden + (inputs.out_width + ffn_width) / inputs.tp
    return inputs.is_low * tokens * 4.0 * widths
