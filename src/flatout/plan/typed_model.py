"""Parse a model given by its widths, `layers=32,hidden=4096,...`, into a workload."""

from __future__ import annotations

from flatout.errors import UsageError
from flatout.records.plan import Workload

_NEEDED = ("layers", "hidden", "heads")
_OPTIONAL = ("kv_heads", "head_dim", "ffn", "vocab", "experts", "topk", "expert_ffn", "shared_ffn", "moe_layers")
_WIDTHS = (*_NEEDED, *_OPTIONAL)
_WORDS = ("gelu", "tied", "bidirectional")
VOCAB = 128256  # Llama 3's, used if the user gives none


def typed_model(text: str) -> Workload:
    """Return the given shape.

    Raise UsageError if the text is not `NAME=N,...` with the words gelu, tied or bidirectional.
    """
    widths, words = _parsed(text)
    layers, hidden, heads = (widths[name] for name in _NEEDED)
    is_gated = "gelu" not in words
    num_experts = widths.get("experts", 0)
    if num_experts and not (widths.get("topk") and widths.get("expert_ffn")):
        raise UsageError(
            "a typed --model with experts must have topk=N and expert_ffn=N", hint="topk=2,expert_ffn=14336"
        )
    moe_layers = widths.get("moe_layers", layers) if num_experts else 0
    has_dense_layers = moe_layers < layers
    return Workload(
        name="typed",
        num_layers=layers,
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=widths.get("kv_heads", heads),
        head_dim=widths.get("head_dim", max(hidden // heads, 1)),
        ffn=widths.get("ffn", _usual_ffn(hidden, is_gated=is_gated)) if has_dense_layers else 0,
        is_gated=is_gated,
        vocab=widths.get("vocab", VOCAB),
        is_tied="tied" in words,
        is_causal="bidirectional" not in words,
        num_experts=num_experts,
        experts_per_token=widths.get("topk", 0),
        expert_ffn=widths.get("expert_ffn", 0),
        shared_ffn=widths.get("shared_ffn", 0),
        num_moe_layers=moe_layers,
        source=text,
    )


def _usual_ffn(hidden: int, *, is_gated: bool) -> int:
    """Return 4 times the hidden width, or with a gate 8/3 of it, rounded up to a multiple of 256."""
    return -(-8 * hidden // 3 // 256) * 256 if is_gated else 4 * hidden


def _parsed(text: str) -> tuple[dict[str, int], set[str]]:
    """Return the widths by name, and the words."""
    items = [item.strip() for item in text.split(",") if item.strip()]
    words = {item for item in items if "=" not in item}
    values = dict(item.split("=", 1) for item in items if "=" in item)
    problem = _problem(values, words)
    if problem is not None:
        raise UsageError(
            f"a typed --model must be {', '.join(f'{name}=N' for name in _NEEDED)} and more, but {problem}",
            hint=f"names: {', '.join(_WIDTHS)}; words: gelu (otherwise SwiGLU), tied, bidirectional",
        )
    return {name: int(value) for name, value in values.items()}, words


def _problem(values: dict[str, str], words: set[str]) -> str | None:
    """Say what is missing or wrong; None if nothing is."""
    missing = [name for name in _NEEDED if not values.get(name, "").strip("0")]
    if missing:
        return f"lacks {', '.join(missing)}"
    wrong = [name for name in values if name not in _WIDTHS]
    wrong += sorted(words - set(_WORDS))
    wrong += [f"{name}={value}" for name, value in values.items() if not (value.isascii() and value.isdigit())]
    return f"has `{wrong[0]}`" if wrong else None
