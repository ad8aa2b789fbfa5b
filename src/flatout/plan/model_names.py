"""Build a workload from the user's argument: a preset, a Hugging Face `config.json`, a Python module, or widths."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from flatout.catalog import all_models
from flatout.errors import InputError
from flatout.plan.huggingface import from_config
from flatout.plan.modules import from_module
from flatout.plan.typed_model import typed_model
from flatout.records.plan import Workload

_MODULE = re.compile(r"(.+\.py):(\w+)")


def executed_file(name: str) -> str | None:
    """Return the file that `workload(name)` executes; None if it executes none."""
    module = _MODULE.fullmatch(name)
    is_module = module is not None and "=" not in name and Path(module[1]).is_file()
    return module[1] if module is not None and is_module else None


def workload(name: str) -> Workload:
    """Return the model for a preset's name, a path to config.json, `FILE.py:NAME`, or widths, else raise InputError."""
    presets = all_models()
    preset = {_plain(known): shape for known, shape in presets.items()}.get(_plain(name))
    if preset is not None:
        return preset
    if "=" in name:
        return _checked(name, typed_model(name))
    module = _MODULE.fullmatch(name)
    if module is not None:
        return from_module(Path(module[1]), module[2])
    path = Path(name)
    if name and path.is_dir():
        path = path / "config.json"
    if path.suffix == ".json" or (name and path.exists()):
        return _checked(str(path), from_config(path))
    close = difflib.get_close_matches(name.lower(), presets, n=1, cutoff=0.3) or ["llama3-70b"]
    raise InputError(
        f"`--model` must be a known name, a config.json, FILE.py:NAME or layers=N,..., but got `{name}`",
        hint=f"the nearest known name is `{close[0]}`; docs/how-to/plan.md lists all",
    )


def _plain(name: str) -> str:
    """Return the name without owner and punctuation, in lower case: `meta-llama/Llama-3.1-8B` is `llama3.18b`."""
    return re.sub(r"[^a-z0-9.]", "", name.lower().rsplit("/", 1)[-1])


def _checked(name: str, shape: Workload) -> Workload:
    """Return the shape. Raise InputError if no transformer has these widths."""
    heads, kv_heads = shape.num_heads, shape.num_kv_heads
    if kv_heads <= 0 or heads % kv_heads:
        raise InputError(f"the key-value heads of `{name}` must divide the heads, but there are {kv_heads} of {heads}")
    if shape.head_dim < 1:
        raise InputError(
            f"each head of `{name}` must have a width, but {heads:,} heads share a hidden width of {shape.hidden:,}"
        )
    if shape.experts_per_token > shape.num_experts:
        raise InputError(
            f"the experts of a token of `{name}` must be at most all experts, but there are "
            f"{shape.experts_per_token} of {shape.num_experts}"
        )
    return shape
