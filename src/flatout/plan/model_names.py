"""A workload from what the user names: a preset, a Hugging Face `config.json`, a Python file's module, or widths."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from flatout.catalog import all_models
from flatout.errors import InputError, UsageError
from flatout.plan.huggingface import from_config
from flatout.plan.modules import from_module
from flatout.records.plan import Workload


def workload(name: str) -> Workload:
    """A preset's name (`llama3-70b`), a path to config.json, `FILE.py:NAME`, or widths. InputError: none of them."""
    presets = all_models()
    known = {_plain(preset): workload for preset, workload in presets.items()}
    if _plain(name) in known:
        return known[_plain(name)]
    if "=" in name:
        return _divisible(name, _typed(name))
    if (match := re.fullmatch(r"(.+\.py):(\w+)", name)) is not None:
        return from_module(Path(match[1]), match[2])
    path = Path(name)
    if name and path.is_dir():
        path = path / "config.json"
    if path.suffix == ".json" or (name and path.exists()):
        return _divisible(str(path), from_config(path))
    close = difflib.get_close_matches(name.lower(), presets, n=1, cutoff=0.3)
    raise InputError(
        f"`--model` must be a known name, a config.json, FILE.py:NAME or layers=N,..., but got `{name}`",
        hint=f"the nearest known name is `{(close or ['llama3-70b'])[0]}`; docs/how-to/plan.md lists all",
    )


def _plain(name: str) -> str:
    """`meta-llama/Llama-3.1-8B` is `llama3.1-8b`."""
    return re.sub(r"[^a-z0-9.]", "", name.lower().rsplit("/", 1)[-1])


def _divisible(name: str, found: Workload) -> Workload:
    """The same. InputError: its widths are of no transformer."""
    w = found
    rules = (
        (
            w.num_heads % max(w.num_kv_heads, 1) == 0 and w.num_kv_heads > 0,
            "key-value heads",
            w.num_kv_heads,
            w.num_heads,
        ),
        (w.experts_per_token <= w.num_experts, "experts of a token", w.experts_per_token, w.num_experts),
    )
    for holds, what, value, of in rules:
        if not holds:
            rule = "divide the heads" if what == "key-value heads" else "be at most all experts"
            raise InputError(f"the {what} of `{name}` must {rule}, but there are {value} of {of}")
    return found


_NEEDED = ("layers", "hidden", "heads")
_TYPED = (*_NEEDED, "kv_heads", "head_dim", "ffn", "vocab", "experts", "topk", "expert_ffn", "shared_ffn", "moe_layers")


def _typed(text: str) -> Workload:
    """`layers=32,hidden=4096,...`, with `gelu`, `tied` and `bidirectional` as words. UsageError: unreadable."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    flags = {word for word in words if "=" not in word}
    pairs = dict(word.split("=", 1) for word in words if "=" in word)
    unknown = [name for name in pairs if name not in _TYPED] + sorted(flags - {"gelu", "tied", "bidirectional"})
    wrong = [f"{name}={value}" for name, value in pairs.items() if not value.isascii() or not value.isdigit()]
    missing = [name for name in _NEEDED if name not in pairs or not int(pairs[name] if not wrong else 1)]
    if unknown or wrong or missing:
        what = f"lacks {', '.join(missing)}" if missing else f"has `{(unknown or wrong)[0]}`"
        raise UsageError(
            f"a typed --model must be {', '.join(f'{name}=N' for name in _NEEDED)} and more, but {what}",
            hint=f"names: {', '.join(_TYPED)}; words: gelu (else SwiGLU), tied, bidirectional",
        )
    n = {name: int(value) for name, value in pairs.items()}
    is_gated, experts = "gelu" not in flags, n.get("experts", 0)
    if experts and not (n.get("topk") and n.get("expert_ffn")):
        raise UsageError(
            "a typed --model with experts must have topk=N and expert_ffn=N", hint="topk=2,expert_ffn=14336"
        )
    moe_layers = n.get("moe_layers", n["layers"]) if experts else 0
    usual = -(-8 * n["hidden"] // 3 // 256) * 256 if is_gated else 4 * n["hidden"]
    return Workload(
        name="typed",
        num_layers=n["layers"],
        hidden=n["hidden"],
        num_heads=n["heads"],
        num_kv_heads=n.get("kv_heads", n["heads"]),
        head_dim=n.get("head_dim", max(n["hidden"] // n["heads"], 1)),
        ffn=n.get("ffn", usual) if moe_layers < n["layers"] else 0,
        is_gated=is_gated,
        vocab=n.get("vocab", 128256),
        is_tied="tied" in flags,
        is_causal="bidirectional" not in flags,
        num_experts=experts,
        experts_per_token=n.get("topk", 0),
        expert_ffn=n.get("expert_ffn", 0),
        shared_ffn=n.get("shared_ffn", 0),
        num_moe_layers=moe_layers,
        source=text,
    )
