"""The L2 norm of a gradient: of this rank's part, where ranks hold parts; on its device, without a synchronisation."""

from __future__ import annotations

import math
from typing import Any

import torch


def norm_of(gradient: Any) -> torch.Tensor | None:
    """The squares of all ranks' parts sum to that of the whole, also where each part is there more than once.

    None: not known, of a sparse gradient, one that is not reduced yet (DTensor's Partial), or of a tensor class that
    only a library knows.
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
    """Of a DTensor what this rank holds; any other tensor itself."""
    return tensor.to_local() if hasattr(tensor, "placements") else tensor


def is_sharded(tensor: Any) -> bool:
    """Of a DTensor: whether each rank holds a part."""
    return not all(placement.is_replicate() for placement in getattr(tensor, "placements", ()))


def _num_replicas(gradient: Any) -> int:
    """How often each part of a DTensor is there: as with hybrid sharding."""
    sizes = [gradient.device_mesh.size(dim) for dim, one in enumerate(gradient.placements) if one.is_replicate()]
    return math.prod(sizes)
