"""The L2 norm of a gradient, on its device and without a synchronization; of the local part if ranks hold parts."""

from __future__ import annotations

import math
from typing import Any

import torch


def norm_of(gradient: Any) -> torch.Tensor | None:
    """Return the norm such that the squares of all ranks' parts sum to that of the complete gradient.

    This also holds if each part exists more than once. None if the norm cannot be determined: for a sparse gradient,
    one that is not reduced yet (DTensor's Partial), or a tensor class that only a library knows.
    """
    num_replicas = 1
    if hasattr(gradient, "placements"):
        if any(placement.is_partial() for placement in gradient.placements):
            return None
        if is_sharded(gradient):
            num_replicas = _num_replicas(gradient)
    gradient = local_part(gradient)
    if type(gradient) is not torch.Tensor or gradient.layout is not torch.strided:
        return None
    is_short = gradient.is_floating_point() and gradient.element_size() < 4
    norm = torch.linalg.vector_norm(gradient, dtype=torch.float32 if is_short else None)
    return norm / math.sqrt(num_replicas) if num_replicas > 1 else norm


def local_part(tensor: Any) -> Any:
    """Return what this rank holds of a DTensor; any other tensor itself."""
    return tensor.to_local() if hasattr(tensor, "placements") else tensor


def is_sharded(tensor: Any) -> bool:
    """Whether each rank holds only a part, as of a DTensor that is not replicated."""
    return not all(placement.is_replicate() for placement in getattr(tensor, "placements", ()))


def _num_replicas(gradient: Any) -> int:
    """Return how often each part of a DTensor exists, e.g. with hybrid sharding."""
    replicated = (dim for dim, placement in enumerate(gradient.placements) if placement.is_replicate())
    return math.prod(gradient.device_mesh.size(dim) for dim in replicated)
