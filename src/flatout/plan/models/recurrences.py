"""How recurrent layers mix tokens: state-space models, linear attention, gated recurrences and short convolutions.

A recurrence costs the same for each token of any sequence. It is counted in multiply-adds per token: 3.5 per state
element for a selective scan, as in Megatron-LM's `mamba_layer_flops`; for linear attention, one each for writing to and
reading from the state, and one more where the state is corrected (the delta rule).
"""

from __future__ import annotations

from flatout.plan.models.parts import Mixing, matrix

_SCAN = 3.5  # multiply-adds per state element


def mamba(
    hidden: int,
    inner: int,
    state: int,
    *,
    kernel: int,
    step_rank: int,
    conv_bias: bool,
    bias: bool,
    other_parameters: int = 0,
) -> Mixing:
    """Return a Mamba layer (Gu and Dao, arXiv 2312.00752)."""
    matrices = (
        matrix("in", "in_proj", hidden, 2 * inner, has_bias=bias),
        matrix("in", "x_proj", inner, step_rank + 2 * state),
        matrix("in", "dt_proj", step_rank, inner, has_bias=True),
        matrix("out", "out_proj", inner, hidden, has_bias=bias),
    )
    convolution = inner * kernel + (inner if conv_bias else 0)
    return Mixing(
        "recurrence",
        matrices,
        other_parameters=convolution + inner * state + inner + other_parameters,
        recurrence=int(_SCAN * inner * state) + inner * kernel,
    )


def mamba2(
    hidden: int,
    inner: int,
    state: int,
    *,
    num_heads: int,
    groups: int,
    kernel: int,
    conv_bias: bool,
    bias: bool,
    out_bias: bool,
    has_norm: bool = True,
) -> Mixing:
    """Return a Mamba-2 layer (Dao and Gu, arXiv 2405.21060)."""
    channels = inner + 2 * groups * state
    matrices = (
        matrix("in", "in_proj", hidden, inner + channels + num_heads, has_bias=bias),
        matrix("out", "out_proj", inner, hidden, has_bias=out_bias),
    )
    convolution = channels * kernel + (channels if conv_bias else 0)
    norm = inner if has_norm else 0
    return Mixing(
        "recurrence",
        matrices,
        other_parameters=convolution + 3 * num_heads + norm,
        recurrence=int(_SCAN * inner * state) + channels * kernel,
    )


def gated_delta(
    hidden: int, *, num_key_heads: int, key_dim: int, num_value_heads: int, value_dim: int, kernel: int
) -> Mixing:
    """Return a gated delta network (Yang et al., arXiv 2412.06464), as in Qwen3-Next."""
    keys, values = num_key_heads * key_dim, num_value_heads * value_dim
    channels = 2 * keys + values
    matrices = (
        matrix("in", "in_proj_qkvz", hidden, 2 * keys + 2 * values),
        matrix("in", "in_proj_ba", hidden, 2 * num_value_heads),
        matrix("out", "out_proj", values, hidden),
    )
    return Mixing(
        "recurrence",
        matrices,
        other_parameters=channels * kernel + 2 * num_value_heads + value_dim,
        recurrence=3 * values * key_dim + channels * kernel,
    )


def kimi_delta(hidden: int, *, num_heads: int, dim: int, kernel: int) -> Mixing:
    """Return Kimi's delta attention (arXiv 2510.26692), whose gates pass through a narrow vector."""
    width = num_heads * dim
    matrices = (
        *(matrix("in", name, hidden, width) for name in ("q_proj", "k_proj", "v_proj")),
        *(matrix("in", name, hidden, dim) for name in ("f_a_proj", "g_a_proj")),
        *(matrix("in", name, dim, width) for name in ("f_b_proj", "g_b_proj")),
        matrix("in", "b_proj", hidden, num_heads),
        matrix("out", "o_proj", width, hidden),
    )
    return Mixing(
        "recurrence",
        matrices,
        other_parameters=3 * width * kernel + width + num_heads + dim,
        recurrence=3 * width * dim + 3 * width * kernel,
    )


def lightning_attention(hidden: int, *, num_heads: int, dim: int, block: int) -> Mixing:
    """Return lightning attention (Qin et al., arXiv 2405.17381): attention in a block, a state between blocks."""
    width = num_heads * dim
    matrices = (
        matrix("in", "qkv_proj", hidden, 3 * width),
        matrix("in", "output_gate", hidden, width),
        matrix("out", "out_proj", width, hidden),
    )
    in_block = 2 * width * block // 2
    return Mixing("recurrence", matrices, other_parameters=width, recurrence=in_block + 2 * width * dim)


def gated_linear_recurrence(hidden: int, *, width: int, num_heads: int, kernel: int) -> Mixing:
    """Return the recurrent block of Griffin (De et al., arXiv 2402.19427), with gates that are block-diagonal."""
    head = width // num_heads
    matrices = (
        matrix("in", "linear_x", hidden, width, has_bias=True),
        matrix("in", "linear_y", hidden, width, has_bias=True),
        matrix("out", "linear_out", width, hidden, has_bias=True),
    )
    gates = 2 * (num_heads * head * head + width)
    return Mixing(
        "recurrence",
        matrices,
        other_parameters=width * kernel + width + gates + width,
        recurrence=2 * width * head + 2 * width + width * kernel,
    )


def short_convolution(hidden: int, *, kernel: int, bias: bool) -> Mixing:
    """Return the gated short convolution of LFM2."""
    matrices = (
        matrix("in", "in_proj", hidden, 3 * hidden, has_bias=bias),
        matrix("out", "out_proj", hidden, hidden, has_bias=bias),
    )
    convolution = hidden * kernel + (hidden if bias else 0)
    return Mixing("recurrence", matrices, other_parameters=convolution, recurrence=hidden * kernel + 2 * hidden)


def rwkv(hidden: int, width: int) -> Mixing:
    """Return the time mixing of RWKV-4 (Peng et al., arXiv 2305.13048)."""
    matrices = (
        *(matrix("in", name, hidden, width) for name in ("key", "value", "receptance")),
        matrix("out", "output", width, hidden),
    )
    return Mixing("recurrence", matrices, other_parameters=2 * width + 3 * hidden, recurrence=4 * width)
