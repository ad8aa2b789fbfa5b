"""Count the samples and tokens of a batch, from its shapes alone.

In: what a DataLoader yields. Out: the number of samples, i.e. the length of the first dimension of the first tensor,
and the number of tokens, i.e. the number of elements of a two-dimensional integer tensor (or of a mapping's
`input_ids`). A number that cannot be determined from the batch is None.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass

import torch

_TOKEN_KEYS = ("input_ids", "tokens", "input", "inputs", "src", "text")
_MAX_DEPTH = 3
_INTEGERS = frozenset((torch.int64, torch.int32, torch.int16))
_SEQUENCES = (list, tuple)
_Tensor = torch.Tensor


Count = tuple[int | None, int | None]  # samples and tokens


def count_batch(batch: object) -> Count:
    first = first_tensor(batch)
    return (None, None) if first is None else count_tensor(first)


def first_tensor(batch: object) -> torch.Tensor | None:
    """Return the tensor of a batch by which it is counted; None if there is none."""
    if type(batch) is _Tensor:
        return batch
    if type(batch) in _SEQUENCES and batch and type(batch[0]) is _Tensor:  # type: ignore[index]
        return batch[0]  # type: ignore[index]
    if isinstance(batch, Mapping):
        for key in _TOKEN_KEYS:
            tensor = batch.get(key)
            if isinstance(tensor, torch.Tensor) and _holds_tokens(tensor):
                return tensor
    return _first_tensor(batch, _MAX_DEPTH)


def count_tensor(first: torch.Tensor) -> Count:
    if first.is_nested:  # a nested tensor has no shape
        return first.size(0), None
    return count_shape(first.shape, first.dtype)


def count_shape(shape: torch.Size, dtype: torch.dtype) -> Count:
    """Count a batch by the shape and type of its first tensor."""
    if not shape:
        return None, None
    if len(shape) == 2 and shape[1] > 1 and dtype in _INTEGERS:
        return shape[0], shape[0] * shape[1]
    return shape[0], None


def _holds_tokens(tensor: torch.Tensor) -> bool:
    if tensor.is_nested or tensor.dtype not in _INTEGERS or tensor.dim() != 2:
        return False
    return bool(tensor.shape[1] > 1)


def _first_tensor(value: object, depth: int) -> torch.Tensor | None:
    if isinstance(value, torch.Tensor):
        return value
    if depth == 0:
        return None
    parts: Iterable[object]
    if isinstance(value, (list, tuple)):
        parts = value
    elif isinstance(value, Mapping):
        parts = value.values()
    elif is_dataclass(value) and not isinstance(value, type):
        parts = (getattr(value, field.name) for field in fields(value))
    else:
        return None
    for part in parts:
        tensor = _first_tensor(part, depth - 1)
        if tensor is not None:
            return tensor
    return None
