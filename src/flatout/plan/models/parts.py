"""The parts of a layer, built from a few numbers: matrices of attention, feed-forward networks and experts."""

from __future__ import annotations

from typing import NamedTuple

from flatout.records.layers import Matrix


class Mixing(NamedTuple):
    """How a layer mixes its tokens."""

    kind: str
    matrices: tuple[Matrix, ...]
    other_parameters: int = 0
    window: int = 0
    score_width: int = 0
    kv_width: int = 0
    recurrence: int = 0
    cross_width: int = 0
    cross_attended: int = 0


class FeedForward(NamedTuple):
    """What a layer does with each token."""

    matrices: tuple[Matrix, ...]
    other_parameters: int = 0


NO_MIXING = Mixing("none", ())
NO_FEED_FORWARD = FeedForward(())


def matrix(part: str, name: str, inputs: int, outputs: int, *, has_bias: bool = False) -> Matrix:
    """Return one matrix."""
    return Matrix(name=name, part=part, inputs=inputs, outputs=outputs, has_bias=has_bias)


class Heads(NamedTuple):
    """The sizes of an attention's heads."""

    hidden: int
    num: int
    num_kv: int
    dim: int

    @property
    def queries(self) -> int:
        """Return the elements of all queries."""
        return self.num * self.dim

    @property
    def keys(self) -> int:
        """Return the elements of all keys."""
        return self.num_kv * self.dim


def attention(
    heads: Heads, *, qkv_bias: bool = False, out_bias: bool = False, other_parameters: int = 0, window: int = 0
) -> Mixing:
    """Return multi-head or grouped-query attention."""
    hidden = heads.hidden
    matrices = (
        matrix("in", "q_proj", hidden, heads.queries, has_bias=qkv_bias),
        matrix("in", "k_proj", hidden, heads.keys, has_bias=qkv_bias),
        matrix("in", "v_proj", hidden, heads.keys, has_bias=qkv_bias),
        matrix("out", "o_proj", heads.queries, hidden, has_bias=out_bias),
    )
    return Mixing(
        "window" if window else "attention",
        matrices,
        other_parameters=other_parameters,
        window=window,
        score_width=2 * heads.queries,
        kv_width=2 * heads.keys,
    )


def feed_forward(
    hidden: int, width: int, *, is_gated: bool, has_bias: bool = False, part: str = "ffn"
) -> tuple[Matrix, ...]:
    """Return the matrices of a feed-forward network; none if its width is 0."""
    if not width:
        return ()
    names = ("gate_proj", "up_proj") if is_gated else ("up_proj",)
    up = tuple(matrix(part, name, hidden, width, has_bias=has_bias) for name in names)
    return (*up, matrix(part, "down_proj", width, hidden, has_bias=has_bias))


def experts(
    hidden: int,
    width: int,
    num: int,
    used: int,
    *,
    shared_width: int = 0,
    is_gated: bool = True,
    has_bias: bool = False,
    other_parameters: int = 0,
) -> FeedForward:
    """Return routed experts with their router, and experts that every token uses, of `shared_width` together."""
    one_expert = feed_forward(hidden, width, is_gated=is_gated, has_bias=has_bias, part="experts")
    routed = tuple(
        Matrix(
            name=each.name,
            part="experts",
            inputs=each.inputs,
            outputs=each.outputs,
            has_bias=has_bias,
            copies=num,
            used=used,
        )
        for each in one_expert
    )
    router = matrix("router", "router", hidden, num, has_bias=has_bias)
    shared = feed_forward(hidden, shared_width, is_gated=is_gated, part="shared")
    return FeedForward((router, *routed, *shared), other_parameters)


class LatentWidths(NamedTuple):
    """The sizes of latent attention (DeepSeek-V2, arXiv 2405.04434, 2.1)."""

    query_rank: int  # 0: queries are projected at once
    kv_rank: int
    nope_dim: int  # of one head's query and key, without rotary positions
    rope_dim: int
    value_dim: int


def latent_attention(hidden: int, num_heads: int, widths: LatentWidths, *, has_bias: bool = False) -> Mixing:
    """Return attention whose keys and values, and maybe queries, pass through a narrow latent vector."""
    w = widths
    query_dim = w.nope_dim + w.rope_dim
    queries = num_heads * query_dim
    into_queries: tuple[Matrix, ...] = (matrix("in", "q_proj", hidden, queries),)
    if w.query_rank:
        into_queries = (
            matrix("in", "q_a_proj", hidden, w.query_rank, has_bias=has_bias),
            matrix("in", "q_b_proj", w.query_rank, queries),
        )
    matrices = (
        *into_queries,
        matrix("in", "kv_a_proj_with_mqa", hidden, w.kv_rank + w.rope_dim, has_bias=has_bias),
        matrix("in", "kv_b_proj", w.kv_rank, num_heads * (w.nope_dim + w.value_dim)),
        matrix("out", "o_proj", num_heads * w.value_dim, hidden, has_bias=has_bias),
    )
    return Mixing(
        "attention",
        matrices,
        other_parameters=w.query_rank + w.kv_rank,  # a norm of each latent vector
        score_width=num_heads * (query_dim + w.value_dim),
        kv_width=num_heads * (query_dim + w.value_dim),
    )
