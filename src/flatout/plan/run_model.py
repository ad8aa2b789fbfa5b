"""Read the model that was trained from a row of a table of measured runs."""

from __future__ import annotations

import msgspec

from flatout.catalog import all_models
from flatout.catalog.run_spellings import run_spellings, value_of
from flatout.plan.run_row import RunRow
from flatout.records.plan import Workload


def model_of(row: RunRow) -> Workload | None:
    """Return the model's shape; None if it has experts of unknown shape.

    If a model of the catalogue has the same layers, width, heads and experts, it is used with the row's vocabulary.
    """
    layers, hidden = row.whole("layers"), row.whole("hidden")
    ffn = row.whole("ffn", 4 * hidden)
    vocab = row.whole("vocab") or value_of(run_spellings().vocabulary, row.text("model"))
    # Models with a gate have a third matrix and narrower ones: 8/3 or 3.5 times the hidden width, never 4 or more.
    is_gated = ffn < 4 * hidden
    preset = _same_shape(row)
    if preset is not None and (preset.num_experts or preset.is_gated == is_gated):
        return msgspec.structs.replace(preset, vocab=vocab)
    heads, experts = row.whole("heads"), row.whole("experts")
    if experts and not (row.whole("moe_ffn") and row.text("kv_heads")):
        return None
    return Workload(
        name=row.lower("model"),
        num_layers=layers,
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=row.whole("kv_heads", heads),
        head_dim=max(hidden // heads, 1),
        ffn=0 if experts else ffn,
        is_gated=bool(experts) or is_gated,
        vocab=vocab,
        is_tied=ffn >= 4 * hidden,
        num_experts=experts,
        experts_per_token=row.whole("topk"),
        expert_ffn=row.whole("moe_ffn"),
        num_moe_layers=layers if experts else 0,
    )


def _same_shape(row: RunRow) -> Workload | None:
    """Return the catalogue's causal model with the row's layers, width, heads and experts."""
    shape = tuple(row.whole(column) for column in ("layers", "hidden", "heads", "experts"))
    for model in all_models().values():
        if model.is_causal and (model.num_layers, model.hidden, model.num_heads, model.num_experts) == shape:
            return model
    return None


def document_tokens_of(row: RunRow) -> int:
    """Return the tokens per document if several documents are packed into a sequence; otherwise 0."""
    return value_of(run_spellings().document, row.text("notes"))
