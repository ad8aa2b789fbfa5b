"""Read a model's shape from a torch module (`FILE.py:NAME`), built on the meta device so that it uses no memory.

For a Hugging Face model, its config is used. For others, the shape comes from the weights and attributes: the longest
list of blocks, the embedding, and the number of heads, which weights do not show. Then the number of parameters must
agree with the module's; otherwise it is not a transformer that can be read here. The file is the user's code: it is
executed in a separate process, and whatever it raises, prints or ends stays there.
"""

from __future__ import annotations

import importlib.util
import runpy
from pathlib import Path
from typing import Any

from flatout.errors import InputError
from flatout.plan.counts import num_parameters
from flatout.plan.huggingface import from_values, is_supported
from flatout.plan.run_apart import run_apart
from flatout.records.plan import Workload

_HEADS = ("num_heads", "n_heads", "n_head", "num_attention_heads", "nhead")
_KV_HEADS = ("num_kv_heads", "n_kv_heads", "num_key_value_heads", "n_kv_head")
# The shape does not count small tables and biases, but it counts every matrix of each layer.
_CLOSE = 0.02


def from_module(path: Path, name: str) -> Workload:
    """Return the shape of the module that `name` is or returns, which another process reads.

    Raise InputError if it is not a transformer.
    """
    if importlib.util.find_spec("torch") is None:
        raise InputError(f"`{path}:{name}` needs torch", hint="pip install torch, or pass a config.json")
    if not path.is_file():
        raise InputError(f"`{path}` cannot be read: no such file")
    return run_apart(path, name)


def read_module(path: Path, name: str) -> Workload:
    """Execute the file in this process, and return the shape of what it builds."""
    import torch

    with torch.device("meta"):
        module = runpy.run_path(str(path)).get(name)
        if callable(module) and not isinstance(module, torch.nn.Module):
            module = module()
    if not isinstance(module, torch.nn.Module):
        raise InputError(
            f"`{name}` in `{path}` must be a torch module or return one, but is {type(module).__name__}",
            hint="for example: def model(): return MyTransformer(config)",
        )
    full_name = f"{path}:{name}"
    config: Any = getattr(module, "config", None)
    if hasattr(config, "to_dict") and is_supported(getattr(config, "model_type", "")):
        shape = from_values(path, config.to_dict())
        _check_parameters(full_name, module, shape)
        return shape
    return _Transformer(full_name, module, torch).workload()


def _check_parameters(name: str, module: Any, shape: Workload) -> None:
    """Raise InputError if a transformer of this shape has another number of parameters than the module."""
    parameters = {id(tensor): tensor.numel() for tensor in module.parameters()}
    total, counted = sum(parameters.values()), num_parameters(shape)
    if abs(counted / max(total, 1) - 1) > _CLOSE:
        raise InputError(
            f"`{name}` has {total:,} parameters, but a transformer with the shape that was read from it has "
            f"{counted:,}",
            hint="give its widths: --model layers=N,hidden=N,heads=N,ffn=N,vocab=N (experts=N,topk=N,expert_ffn=N)",
        )


class _Transformer:
    """A module with the parts of a transformer."""

    def __init__(self, name: str, module: Any, torch: Any) -> None:
        """Find the parts. Raise InputError if the module lacks blocks, an embedding or a number of heads."""
        self._name, self._module, self._torch = name, module, torch
        lists = self._submodules(module, torch.nn.ModuleList, torch.nn.Sequential)
        blocks = max(lists, key=lambda modules: (_num_alike(modules), _size(modules)), default=None)
        self._embeddings = self._submodules(module, torch.nn.Embedding)
        self._num_heads = _first_attribute(module, _HEADS)
        if blocks is None or _num_alike(blocks) < 1:
            raise self._lacks("a list of blocks")
        if not self._embeddings:
            raise self._lacks("an embedding")
        if not self._num_heads:
            raise self._lacks("a number of heads")
        self._num_layers = _num_alike(blocks)
        self._block = blocks[-1]
        self._linears = self._submodules(self._block, torch.nn.Linear)
        self._vocabulary = max(self._embeddings, key=lambda embedding: embedding.num_embeddings)
        self._hidden = self._vocabulary.embedding_dim

    def workload(self) -> Workload:
        """Return the shape. Raise InputError if a transformer of this shape has another number of parameters."""
        ffn = self._ffn_width()
        shape = Workload(
            name=self._name.rsplit(":", 1)[1],
            num_layers=self._num_layers,
            hidden=self._hidden,
            num_heads=self._num_heads,
            num_kv_heads=_first_attribute(self._module, _KV_HEADS) or self._num_heads,
            head_dim=self._hidden // self._num_heads,
            ffn=ffn,
            is_gated=self._num_up_matrices(ffn) >= 2,
            vocab=self._vocabulary.num_embeddings,
            is_tied=not self._has_separate_logits(),
            has_bias=any(linear.bias is not None for linear in self._linears),
            max_positions=self._num_positions(),
            source=self._name,
        )
        _check_parameters(self._name, self._module, shape)
        return shape

    def _lacks(self, part: str) -> InputError:
        return InputError(
            f"`{self._name}` must be a transformer, but no module in it has {part}",
            hint=f"heads are read from: {', '.join(_HEADS)}; or give its widths: --model layers=N,hidden=N,heads=N",
        )

    def _submodules(self, module: Any, *kinds: type) -> list[Any]:
        return [submodule for submodule in module.modules() if isinstance(submodule, kinds)]

    def _ffn_width(self) -> int:
        """Return the width of the feed-forward network: the most inputs of a matrix that outputs the hidden width."""
        widths = [int(linear.in_features) for linear in self._linears if linear.out_features == self._hidden]
        return max((width for width in widths if width > self._hidden), default=4 * self._hidden)

    def _num_up_matrices(self, ffn: int) -> int:
        """Return the number of matrices from the hidden to the feed-forward width; a fused matrix counts as two."""
        widths = [int(linear.out_features) for linear in self._linears if linear.in_features == self._hidden]
        widths = [width for width in widths if width > self._hidden]
        return widths.count(ffn) + 2 * widths.count(2 * ffn)

    def _has_separate_logits(self) -> bool:
        """Whether the output logits have a matrix separate from the embedding."""
        linears = self._submodules(self._module, self._torch.nn.Linear)
        to_vocabulary = [linear for linear in linears if linear.out_features == self._vocabulary.num_embeddings]
        return any(linear.weight is not self._vocabulary.weight for linear in to_vocabulary)

    def _num_positions(self) -> int:
        """Return the rows of the learned position table: the largest other embedding of the hidden width."""
        others = [embedding for embedding in self._embeddings if embedding is not self._vocabulary]
        rows = [int(embedding.num_embeddings) for embedding in others if embedding.embedding_dim == self._hidden]
        return max(rows, default=0)


def _num_alike(modules: Any) -> int:
    """Return how many modules of a list have the type of its last module, if that has weights."""
    modules = list(modules)
    if not modules or not _size(modules[-1]):
        return 0
    return sum(type(module) is type(modules[-1]) for module in modules)


def _size(module: Any) -> int:
    """Return the number of parameters."""
    return int(sum(tensor.numel() for tensor in module.parameters()))


def _first_attribute(module: Any, names: tuple[str, ...]) -> int:
    """Return the first positive integer under one of the names, on any submodule; 0 if there is none."""
    for submodule in module.modules():
        for name in names:
            value = getattr(submodule, name, None)
            if isinstance(value, int) and value > 0:
                return value
    return 0
