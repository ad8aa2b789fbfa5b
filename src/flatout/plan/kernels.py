"""How long one GPU computes: matrix products by their shape, attention, and what memory bounds.

A product of M x K by K x N takes its operations at the reachable rate, times `1 + balance * (1/M + 1/N + 1/K)`: the
second term is the time to move the three matrices, since operations / traffic = 1 / (1/M + 1/N + 1/K) and `balance` is
the GPU's operations to a byte (roofline with both times added, which products of medium size obey better than their
maximum). On top comes the last wave of 128 x 128 tiles that does not fill all SMs.
"""

from __future__ import annotations

import numpy as np

from flatout.plan.case import Case, Column
from flatout.plan.constants import Constants

TILE = 128


def matmul_s(case: Case, constants: Constants, m: Column, n: Column, k: Column, *, in_half: bool = False) -> Column:
    """Seconds of one product; 0 where a side is 0."""
    peak = case.half_peak if in_half else case.matmul_peak
    balance = case.half_balance if in_half else case.balance
    low = 1.0 if in_half else 1.0 - case.is_low * (1.0 - constants.low)
    tiles = np.ceil(m / TILE) * np.ceil(n / TILE)
    waves = tiles / case.sms
    lost = constants.waves * (np.ceil(waves) / np.maximum(waves, 1e-9) - 1.0)
    lost = np.minimum(lost, 2.0)  # small products split K over the idle SMs
    traffic = constants.balance * balance * (1.0 / m + 1.0 / np.maximum(n, 1e-9) + 1.0 / np.maximum(k, 1e-9))
    seconds = 2.0 * m * n * k / (peak * constants.matmul * low) * (1.0 + traffic + lost)
    return np.where(n * k > 0, seconds, 0.0)


def attention_s(case: Case, constants: Constants, tokens: Column) -> tuple[Column, Column]:
    """Forward and backward seconds of the scores' part of one layer, without its projections.

    Fused (Dao, arXiv 2307.08691): the masked half is skipped, and backward has 2.5 times the operations of forward.
    Unfused: all scores, written and read as fp16 by two products, mask, softmax and dropout: 11 bytes each (Korthikanti
    et al., arXiv 2205.05198, 4.1, count the same tensors), and about twice that backward.
    """
    operations = 4.0 * tokens * case.attended * case.score_width / case.tp
    rate = case.half_peak * constants.matmul
    small = np.maximum(128.0 / case.head_dim, 1.0) ** (case.head_power * case.late_attention)
    fused = (
        operations
        * small
        * (1.0 - 0.5 * case.causal)
        / (
            rate
            * np.where(
                case.late_attention > 0,
                constants.flash,
                constants.flash_early
                * np.where(case.after_ampere > 0, constants.flash_ported, 1.0)
                * np.where(case.first_flash > 0, constants.flash_first, 1.0),
            )
        )
    )
    slow = np.where(np.asarray(case.head_dim) % 8 > 0, constants.alignment, 1.0)
    products = operations / (rate * constants.scores) * slow
    score_bytes = tokens * case.attended * case.heads / case.tp / case.memory_rate
    unfused_forward = products + 11.0 * score_bytes * constants.elementwise
    unfused_backward = 2.0 * products + 19.0 * score_bytes * constants.elementwise
    is_fused = case.fused > 0
    return np.where(is_fused, fused, unfused_forward), np.where(is_fused, 2.5 * fused, unfused_backward)


def elementwise_bytes(case: Case, tokens: Column) -> tuple[Column, Column]:
    """Bytes that one layer moves, forward: on all tokens or this rank's share of them, and between its products.

    Two norms (read, write) and two residuals with dropout (read twice, write) of `hidden`: 2 * 4 + 2 * 6 bytes a token;
    rotary or bias on the projections 4; the activation reads one or two widths of the feed-forward network and writes
    one.
    """
    norms = 20.0 * tokens * case.hidden
    num_dense = (case.layers - case.moe_layers) / case.layers
    share_moe = case.moe_layers / case.layers
    ffn = num_dense * case.ffn + share_moe * (case.shared_ffn + case.topk * case.expert_ffn)
    inner = tokens / case.tp * (4.0 * case.qkv_width + 2.0 * case.ffn_matrices * ffn)
    permutations = share_moe * tokens / case.tp * case.topk * case.hidden * 8.0
    return norms, inner + permutations


def cast_bytes(case: Case, tokens: Column) -> Column:
    """Bytes moved to quantise the inputs of one layer's products, forward: 2 read, 1 written in each of two orders."""
    ffn = case.ffn + case.shared_ffn + case.topk * case.expert_ffn
    return case.is_low * tokens * 4.0 * (2.0 * case.hidden + (case.out_width + ffn) / case.tp)
