"""prune-heads: remove a quarter of the attention heads of each layer, without training afterwards.

The heads whose weights are smallest go. torch's `MultiheadAttention` is replaced, because it takes the size of a head
from the number of heads; attention of transformers with one linear layer each for queries, keys, values and outputs
keeps its code, which only knows the size of a head.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from flatout.inside.compression.changed import Changed, NotAppliedError
from flatout.inside.compression.layers import is_skipped, put, use_replaced_layers

SHARE = 0.25  # of the heads
_PROJECTIONS = (("q_proj", "k_proj", "v_proj", ("o_proj", "out_proj")), ("q_lin", "k_lin", "v_lin", ("out_lin",)))


class FewerHeads(nn.Module):  # type: ignore[misc]
    """Self-attention with some of the heads of a `MultiheadAttention`. It returns no weights of the attention."""

    in_proj_bias = None  # torch's encoder layer then calls this module instead of a fused kernel
    _qkv_same_embed_dim = True

    def __init__(self, attention: nn.MultiheadAttention, heads: torch.Tensor) -> None:
        super().__init__()
        self.batch_first = attention.batch_first
        self.embed_dim = attention.embed_dim
        self.num_heads = len(heads)
        self.head_dim = attention.head_dim
        rows = (heads[:, None] * self.head_dim + torch.arange(self.head_dim, device=heads.device)).flatten()
        all_rows = torch.cat([rows + part * attention.embed_dim for part in range(3)])
        weight, bias = attention.in_proj_weight, attention.in_proj_bias
        self.inputs = nn.Linear(self.embed_dim, len(all_rows), bias=bias is not None)
        self.inputs.weight = _kept(weight[all_rows])
        if bias is not None:
            self.inputs.bias = _kept(bias[all_rows])
        self.outputs = nn.Linear(len(rows), self.embed_dim, bias=attention.out_proj.bias is not None)
        self.outputs.weight = _kept(attention.out_proj.weight[:, rows])
        if attention.out_proj.bias is not None:
            self.outputs.bias = _kept(attention.out_proj.bias)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, None]:
        del key, value, need_weights, average_attn_weights
        inputs = query if self.batch_first else query.transpose(0, 1)
        batch, length, _ = inputs.shape
        projected = self.inputs(inputs).reshape(batch, length, 3, self.num_heads, self.head_dim)
        queries, keys, values = projected.permute(2, 0, 3, 1, 4)
        mask = _mask(key_padding_mask, attn_mask, batch, inputs)
        found = functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=is_causal and mask is None
        )
        output = self.outputs(found.transpose(1, 2).flatten(2))
        return (output if self.batch_first else output.transpose(0, 1)), None


def compress(model: nn.Module, skip: Collection[str] = ()) -> Changed:
    """Remove heads of the model's attention layers."""
    changed: list[str] = []
    for name, module in list(model.named_modules()):
        if name and not is_skipped(name, skip):
            changed += _of_torch(model, name, module) or _of_projections(name, module)
    if not changed:
        raise NotAppliedError("the model has no attention whose heads can be removed")
    use_replaced_layers(model)
    return Changed(tuple(changed), (f"removed {SHARE:.0%} of the heads",))


def _of_torch(model: nn.Module, name: str, module: nn.Module) -> list[str]:
    if type(module) is not nn.MultiheadAttention or module.in_proj_weight is None or module.bias_k is not None:
        return []
    if module.num_heads < 2 or module.add_zero_attn:
        return []
    shape = (3, module.num_heads, -1)
    importance = module.in_proj_weight.reshape(shape).square().sum((0, 2))
    heads = _largest(importance)
    put(model, name, FewerHeads(module, heads).train(module.training))
    return [name]


def _of_projections(name: str, module: Any) -> list[str]:
    """Remove heads where queries, keys and values are projected by linear layers of one size."""
    for query, key, value, outputs in _PROJECTIONS:
        parts = [getattr(module, each, None) for each in (query, key, value)]
        output_name = next((each for each in outputs if type(getattr(module, each, None)) is nn.Linear), None)
        head_dim = getattr(module, "head_dim", None)
        if output_name is None or not isinstance(head_dim, int) or not all(type(part) is nn.Linear for part in parts):
            continue
        if len({part.out_features for part in parts if part is not None}) != 1:  # keys are shared by several queries
            continue
        num_heads = parts[0].out_features // head_dim if parts[0] is not None else 0
        if num_heads < 2:
            continue
        importance = sum(part.weight.reshape(num_heads, -1).square().sum(1) for part in parts if part is not None)
        _keep_heads(parts, getattr(module, output_name), _largest(importance), head_dim)
        return [f"{name}.{each}" for each in (query, key, value, output_name)]
    return []


def _keep_heads(parts: list[Any], output: Any, heads: torch.Tensor, head_dim: int) -> None:
    rows = (heads[:, None] * head_dim + torch.arange(head_dim, device=heads.device)).flatten()
    for part in parts:
        part.weight = _kept(part.weight[rows])
        if part.bias is not None:
            part.bias = _kept(part.bias[rows])
        part.out_features = len(rows)
    output.weight = _kept(output.weight[:, rows])
    output.in_features = len(rows)


def _largest(importance: Any) -> torch.Tensor:
    num_kept = max(round(len(importance) * (1 - SHARE)), 1)
    kept: torch.Tensor = importance.topk(num_kept).indices.sort().values
    return kept


def _kept(value: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(value.detach().clone(), requires_grad=False)


def _mask(
    padding: torch.Tensor | None, attention: torch.Tensor | None, batch: int, inputs: torch.Tensor
) -> torch.Tensor | None:
    """Return the masks as one that is added to the scores; True in a mask of torch's attention leaves a key out."""
    masks = []
    if padding is not None:
        masks.append(_added(padding, inputs)[:, None, None, :])
    if attention is not None:
        added = _added(attention, inputs)
        masks.append(added if added.dim() == 2 else added.reshape(batch, -1, *added.shape[1:])[:, :1])
    return sum(masks[1:], masks[0]) if masks else None


def _added(mask: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=inputs.dtype).masked_fill(mask, float("-inf"))
