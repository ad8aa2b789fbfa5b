"""Advise to exchange only the used rows of an embedding, if its gradients are a large share of what is exchanged.

In: the facts of a recording. Out: what was found about the embedding, or None. `flatout tune` never tries this: it
needs another optimizer, with which rows that a step does not use keep their weights and moments.
"""

from __future__ import annotations

import msgspec

from flatout.records.change import JobFacts
from flatout.units import percent

MIN_SHARE = 0.3  # of the bytes of all gradients
MAX_RECEIVED = 0.5  # of the embedding's bytes: a dense exchange moves them nearly twice


class SparseEmbedding(msgspec.Struct, frozen=True, kw_only=True):
    """An embedding whose gradients are mostly zeros, which the ranks exchange all the same."""

    share_of_gradients: float
    rows_used: float  # share of its rows

    @property
    def advice(self) -> str:
        return (
            "exchange only the rows of the largest embedding that a step uses:"
            f" {percent(self.share_of_gradients)} of the gradients' bytes are its own, and a step uses"
            f" {percent(self.rows_used)} of its rows: nn.Embedding(sparse=True) with SGD, or SparseAdam instead of Adam"
            " (semantic, not tried; torch reduces sparse gradients over gloo, not over NCCL)"
        )


def sparse_embedding(facts: JobFacts) -> SparseEmbedding | None:
    """Return the embedding if its used rows are fewer bytes, even if each rank used all rows that any of them uses."""
    share, rows_used = _share_of_gradients(facts), facts.embedding_rows_used
    if share is None or rows_used is None or facts.num_ranks is None:
        return None
    received = facts.num_ranks * rows_used  # a rank gets the rows of every rank
    if share < MIN_SHARE or rows_used <= 0 or received > MAX_RECEIVED:
        return None
    return SparseEmbedding(share_of_gradients=share, rows_used=rows_used)


def _share_of_gradients(facts: JobFacts) -> float | None:
    if facts.embedding_bytes is None or not facts.gradient_bytes:
        return None
    return facts.embedding_bytes / facts.gradient_bytes
