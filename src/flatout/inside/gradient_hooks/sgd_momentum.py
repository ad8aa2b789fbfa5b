"""Take momentum and weight decay from `torch.optim.SGD`, for a hook that applies them to each rank's own gradients.

The optimizer's groups keep their values, which schedulers and checkpoints see; they are zero during `step` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flatout.inside.live_objects import live_objects, parameters_of

_TAKEN = ("momentum", "weight_decay")


@dataclass(frozen=True, slots=True)
class MomentumRule:
    momentum: float
    weight_decay: float
    is_nesterov: bool


class SgdMomentum:
    """The momentum of the optimizers that train a model, moved from their steps to a hook."""

    def __init__(self, optimizers: Sequence[torch.optim.SGD]) -> None:
        self._held: dict[int, list[dict[str, Any]]] = {}
        self._handles: list[Any] = []
        self._groups: dict[int, dict[str, Any]] = {}
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                self._groups |= {id(parameter): group for parameter in group["params"]}
            self._handles.append(optimizer.register_step_pre_hook(self._before_step))
            self._handles.append(optimizer.register_step_post_hook(self._after_step))

    def rule_of(self, parameter: torch.Tensor) -> MomentumRule | None:
        group = self._groups.get(id(parameter))
        if group is None:
            return None
        return MomentumRule(group["momentum"], group["weight_decay"], group["nesterov"])

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _before_step(self, optimizer: Any, *_: object) -> None:
        self._held[id(optimizer)] = [{name: group[name] for name in _TAKEN} for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group.update(dict.fromkeys(_TAKEN, 0.0))

    def _after_step(self, optimizer: Any, *_: object) -> None:
        for group, own in zip(optimizer.param_groups, self._held.pop(id(optimizer)), strict=True):
            group.update(own)


def find_momentum(ddp: Any) -> SgdMomentum | None:
    """Return the momentum of the model's optimizers; None if there is none, or none that a hook can apply."""
    trained = {id(parameter) for parameter in ddp.parameters()}
    optimizers = [
        optimizer
        for optimizer in live_objects(torch.optim.SGD)
        if any(id(parameter) in trained for parameter in parameters_of([optimizer]))
    ]
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    is_plain = all(type(optimizer) is torch.optim.SGD for optimizer in optimizers)
    if not is_plain or not all(map(_can_move, groups)) or not any(group["momentum"] for group in groups):
        return None
    return SgdMomentum(optimizers)


def _can_move(group: dict[str, Any]) -> bool:
    return not (group["dampening"] or group.get("maximize") or group.get("differentiable"))
