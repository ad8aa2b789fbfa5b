"""A workload from a torch module: what `FILE.py:NAME` names, built on the meta device, so that it takes no memory.

A Hugging Face model has its config. Of any other, the shape is read off its weights and attributes: the longest list of
blocks, the embedding, and the number of heads, which no weight tells. Then the parameters must agree with the module's
own, or it is no transformer that this can read.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from flatout.errors import InputError
from flatout.plan.counts import num_parameters
from flatout.plan.huggingface import from_dict
from flatout.records.plan import Workload

_HEADS = ("num_heads", "n_heads", "n_head", "num_attention_heads", "nhead")
_KV_HEADS = ("num_kv_heads", "n_kv_heads", "num_key_value_heads", "n_kv_head")
# What one shape leaves out of another's count: small tables and biases, never a matrix of each layer.
_CLOSE = 0.02


def from_module(path: Path, name: str) -> Workload:
    """The shape of what `name` in the file is or returns. InputError: no such module, or not a transformer."""
    try:
        import torch
    except ImportError as error:
        raise InputError(f"`{path}:{name}` needs torch", hint="pip install torch, or give a config.json") from error
    if not path.is_file():
        raise InputError(f"`{path}` cannot be read: no such file")
    try:
        with torch.device("meta"):
            made = runpy.run_path(str(path)).get(name)
            module = made() if callable(made) and not isinstance(made, torch.nn.Module) else made
    except Exception as error:
        raise InputError(
            f"`{path}:{name}` fails on the meta device: {type(error).__name__}: {error}",
            hint="it must build the module without data, files or arguments",
        ) from error
    if not isinstance(module, torch.nn.Module):
        raise InputError(
            f"`{name}` in `{path}` must be a torch module or return one, but is {type(module).__name__}",
            hint="for example: def model(): return MyTransformer(config)",
        )
    config = getattr(module, "config", None)
    if config is not None and hasattr(config, "to_dict"):
        return from_dict(path, config.to_dict())
    return _read_off(f"{path}:{name}", module, torch)


def _read_off(name: str, module: Any, torch: Any) -> Workload:
    lists = [each for each in module.modules() if isinstance(each, torch.nn.ModuleList | torch.nn.Sequential)]
    blocks = max(lists, key=lambda each: (_num_alike(each), _size(each)), default=None)
    tables = [each for each in module.modules() if isinstance(each, torch.nn.Embedding)]
    heads = _attribute(module, _HEADS)
    if blocks is None or _num_alike(blocks) < 1 or not tables or not heads:
        lacks = "a list of blocks" if not blocks else "an embedding" if not tables else "a number of heads"
        raise InputError(
            f"`{name}` must be a transformer, but no module in it has {lacks}",
            hint=f"heads are read from: {', '.join(_HEADS)}; or give its widths: --model layers=N,hidden=N,heads=N",
        )
    table = max(tables, key=lambda each: each.num_embeddings)
    hidden, block = table.embedding_dim, blocks[-1]
    widths = [tuple(each.weight.shape) for each in block.modules() if isinstance(each, torch.nn.Linear)]
    wide = [shape for shape in widths if shape[1] == hidden and shape[0] > hidden]
    down = [shape for shape in widths if shape[0] == hidden and shape[1] > hidden]
    ffn = max((shape[1] for shape in down), default=4 * hidden)
    ups = sum(shape[0] == ffn for shape in wide) + 2 * sum(shape[0] == 2 * ffn for shape in wide)
    parameters = {id(each): each.numel() for each in module.parameters()}
    others = [each for each in tables if each is not table and each.embedding_dim == hidden]
    found = Workload(
        name=name.rsplit(":", 1)[1],
        num_layers=_num_alike(blocks),
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=_attribute(module, _KV_HEADS) or heads,
        head_dim=hidden // heads,
        ffn=ffn,
        is_gated=ups >= 2,
        vocab=table.num_embeddings,
        is_tied=not any(
            isinstance(each, torch.nn.Linear)
            and each.out_features == table.num_embeddings
            and each.weight is not table.weight
            for each in module.modules()
        ),
        has_bias=any(isinstance(each, torch.nn.Linear) and each.bias is not None for each in block.modules()),
        max_positions=max((each.num_embeddings for each in others), default=0),
        source=name,
    )
    total, counted = sum(parameters.values()), num_parameters(found)
    if abs(counted / total - 1) > _CLOSE:
        raise InputError(
            f"`{name}` has {total:,} parameters, but a transformer of the shape that was read off it has {counted:,}",
            hint="give its widths: --model layers=N,hidden=N,heads=N,ffn=N,vocab=N (experts=N,topk=N,expert_ffn=N)",
        )
    return found


def _num_alike(blocks: Any) -> int:
    """How many of a list's modules are of the kind of its last, if they have weights."""
    modules = list(blocks)
    return sum(type(each) is type(modules[-1]) for each in modules) if modules and _size(modules[-1]) else 0


def _size(module: Any) -> int:
    return int(sum(each.numel() for each in module.parameters()))


def _attribute(module: Any, names: tuple[str, ...]) -> int:
    """The first whole number under one of the names, on any submodule."""
    for each in module.modules():
        for name in names:
            value = getattr(each, name, None)
            if isinstance(value, int) and value > 0:
                return value
    return 0
