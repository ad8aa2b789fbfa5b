"""Describe an optimizer's initial state: the number of steps that it has made, and its weights.

In: an optimizer before the first step that this process makes with it. Out: the number of steps in its state, whether
it has any state, and a digest of its weights. A training run that resumes from a checkpoint has different values from a
run that starts from scratch. The digest is of at most `MAX_ELEMENTS` values of each parameter, in their logical order,
so that it does not depend on the memory format.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch

from flatout.inside.checks.norms import local_part
from flatout.inside.live_objects import parameters_of

MAX_ELEMENTS = 256
_MAX_PARAMETERS = 2000  # a model with more values is described by the first of them
_MAX_STATES = 16  # number of parameters whose state is examined for the number of steps


def start_state(optimizer: Any) -> dict[str, Any] | None:
    """Return the description as JSON values; this synchronizes with the device. None while a graph is captured."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return None
    states = [state for state in getattr(optimizer, "state", {}).values() if isinstance(state, dict) and state]
    steps = [int(state["step"]) for state in states[:_MAX_STATES] if "step" in state]
    return {
        "num_steps": max(steps, default=0),
        "has_state": bool(states),
        "weights": _digest(parameters_of([optimizer])),
    }


def _digest(parameters: list[Any]) -> str | None:
    """Return a digest of some values of the parameters; None if they cannot be read."""
    digest = hashlib.sha256()
    for parameter in parameters[:_MAX_PARAMETERS]:
        part = local_part(parameter.detach())
        if type(part) not in (torch.Tensor, torch.nn.Parameter) or part.layout is not torch.strided or part.is_meta:
            return None
        flat = part.reshape(-1)
        stride = max(flat.numel() // MAX_ELEMENTS, 1)
        values = flat[::stride][:MAX_ELEMENTS].cpu()
        digest.update(f"{tuple(part.shape)} {part.dtype}".encode())
        digest.update(values.contiguous().view(torch.uint8).numpy().tobytes() if values.numel() else b"")
    return digest.hexdigest()[:16]
