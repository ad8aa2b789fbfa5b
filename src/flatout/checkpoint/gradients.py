"""Gradients accumulated over micro-batches: detect them at a save, and keep them in the checkpoint.

Otherwise a save between two micro-batches would lose them. After each step of an optimizer, some of its gradients are
marked as used. Gradients that are not marked, or were changed since, are waiting for the next step, and a checkpoint
holds them, for each rank. Gradients that FSDP2 keeps unsharded (`set_requires_gradient_sync(False)`) are not seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

_MARK = "_flatout_used_at_version"
_NUM_MARKED = 8  # parameters of an optimizer by which its gradients are judged


def mark_used_gradients(optimizers: Iterable[Any]) -> None:
    """After each later step of these optimizers, mark the gradients that it has used."""
    for optimizer in optimizers:
        if hasattr(optimizer, "register_step_post_hook"):
            optimizer.register_step_post_hook(_mark)


def waiting_gradients(optimizers: Iterable[Any], names: Mapping[int, str]) -> dict[str, torch.Tensor]:
    """Return the local part of each gradient that waits for a step, by the name of its parameter.

    `names` has the names of the parameters by their id. This waits for a GPU only if gradients were changed after the
    last step.
    """
    waiting = {}
    for optimizer in optimizers:
        if not hasattr(optimizer, "register_step_post_hook") or not _is_waiting(optimizer):
            continue
        for parameter in _parameters(optimizer):
            if parameter.grad is not None and id(parameter) in names:
                waiting[names[id(parameter)]] = _local(parameter.grad)
    return waiting


def set_gradients(parameters: Iterable[tuple[str, Any]], gradients: Mapping[str, torch.Tensor]) -> None:
    """Give each named parameter its gradient; the others get none."""
    for name, parameter in parameters:
        gradient = gradients.get(name)
        parameter.grad = None if gradient is None else _like(parameter, gradient)


def _mark(optimizer: Any, *_: object) -> None:
    if torch.compiler.is_compiling():  # a mark would break the graph of a compiled step
        return
    for parameter in _sample(optimizer):
        if parameter.grad is not None:
            setattr(parameter.grad, _MARK, parameter.grad._version)


def _is_waiting(optimizer: Any) -> bool:
    unmarked = [
        parameter.grad
        for parameter in _sample(optimizer)
        if parameter.grad is not None and getattr(parameter.grad, _MARK, None) != parameter.grad._version
    ]
    return any(bool(_local(gradient).any()) for gradient in unmarked)  # otherwise set to zero for the next step


def _sample(optimizer: Any) -> list[Any]:
    parameters = _parameters(optimizer)
    return parameters[:: max(1, len(parameters) // _NUM_MARKED)]


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"] if parameter.requires_grad]


def _local(gradient: Any) -> torch.Tensor:
    part = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return part.detach()


def _like(parameter: Any, gradient: torch.Tensor) -> Any:
    gradient = gradient.to(parameter.device)
    if not hasattr(parameter, "device_mesh"):
        return gradient
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        gradient, parameter.device_mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride()
    )
