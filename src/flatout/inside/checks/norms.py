"""Measure the L2 norm of a gradient (or of its local part, if sharded) on its device and without synchronizing."""

from __future__ import annotations

import math
from typing import Any

import torch


def norm_of(gradient: Any) -> torch.Tensor | None:
    """Return the norm, such that the squared norms of all ranks' parts sum to the square of the complete norm.

    This also holds if each part exists more than once. Return None if the norm cannot be determined: for a sparse
    gradient, a gradient that is not reduced yet (DTensor's Partial), or a tensor class that only a library knows.
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
    """Return the part of a DTensor that this rank holds; return any other tensor unchanged."""
    return tensor.to_local() if hasattr(tensor, "placements") else tensor


def is_sharded(tensor: Any) -> bool:
    """Whether each rank holds only a part, which is the case for a DTensor that is not replicated."""
    return not all(placement.is_replicate() for placement in getattr(tensor, "placements", ()))


def _num_replicas(gradient: Any) -> int:
    """Return how many copies of each part of a DTensor exist, e.g. with hybrid sharding."""
    replicated = (dim for dim, placement in enumerate(gradient.placements) if placement.is_replicate())
    return math.prod(gradient.device_mesh.size(dim) for dim in replicated)
