"""The loss of each step, without a synchronisation: scalars stay on their device until they can be had for nothing.

A step's loss is the sum of the scalars that `backward` was called on, before a GradScaler scaled them: the value whose
gradient the step applied. It is None where `backward` was called on something else, or where a kept scalar was changed
in place since. On a GPU at most `MAX_KEPT` steps are held; beyond that every other one is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

MAX_KEPT = 512
_MAX_A_STEP = 64
_MAX_STORAGE_BYTES = 4096  # a scalar cut out of a large tensor would hold all of it


@dataclass(frozen=True, slots=True)
class StepLoss:
    loss: float | None
    is_skipped: bool | None  # None: no GradScaler took part


class Kept:
    """What one step leaves: scalars with the version that they had, and a fused optimizer's flag."""

    __slots__ = ("found_inf", "is_whole", "tensors")

    def __init__(self) -> None:
        self.tensors: list[tuple[torch.Tensor, int]] = []
        self.found_inf: torch.Tensor | None = None
        self.is_whole = True

    @property
    def is_on_cpu(self) -> bool:
        return all(tensor.is_cpu for tensor, _ in self.tensors) and (self.found_inf is None or self.found_inf.is_cpu)

    def value(self) -> StepLoss:
        """Waits for the device, if it is on one."""
        is_skipped = None if self.found_inf is None else bool(self.found_inf.item())
        if not self.is_whole or not self.tensors or any(tensor._version != version for tensor, version in self.tensors):
            return StepLoss(None, is_skipped)
        return StepLoss(sum(float(tensor.item()) for tensor, _ in self.tensors), is_skipped)


class Losses:
    def __init__(self) -> None:
        self._open: Kept | None = None
        self._kept: dict[int, Kept] = {}
        self._scaled: tuple[object, object] | None = None
        self._stride = 1

    def scaled(self, scaled: object, unscaled: object) -> None:
        """A GradScaler has made `scaled` of `unscaled`."""
        self._scaled = (scaled, unscaled)

    def backward(self, tensors: object) -> None:
        """`backward` is called on `tensors`."""
        tensor: Any = tensors[0] if isinstance(tensors, (tuple, list)) and len(tensors) == 1 else tensors
        if self._scaled is not None:
            scaled, unscaled = self._scaled
            self._scaled = None
            if tensor is scaled:
                tensor = unscaled
        kept = self._open
        if kept is None:
            kept = self._open = Kept()
        if (
            type(tensor) is torch.Tensor
            and (tensor.dim() == 0 or tensor.numel() == 1)
            and len(kept.tensors) < _MAX_A_STEP
            and not (tensor._is_view() and tensor.untyped_storage().nbytes() > _MAX_STORAGE_BYTES)
        ):
            kept.tensors.append((tensor.detach(), tensor._version))
        else:
            kept.is_whole = False

    def found_inf(self, found_inf: object) -> None:
        """A fused optimizer stepped with this flag of a GradScaler: 1 where it changed nothing."""
        if isinstance(found_inf, torch.Tensor):
            if self._open is None:
                self._open = Kept()
            self._open.found_inf = found_inf.detach()

    def close_step(self) -> Kept | None:
        """What the step that ends has left, for `settle`."""
        kept, self._open = self._open, None
        return kept

    def settle(self, step: int, kept: Kept | None) -> StepLoss | None:
        """The step's loss where the CPU has it already, else None and it is kept for `fetch`."""
        if kept is None:
            return StepLoss(None, None)
        if kept.is_on_cpu:
            return kept.value()
        if step % self._stride == 0:
            self._kept[step] = kept
            if len(self._kept) > MAX_KEPT:
                self._stride *= 2
                self._kept = {number: value for number, value in self._kept.items() if number % self._stride == 0}
        return None

    def restart(self) -> None:
        """All steps so far were a part of the first, whose loss is not known."""
        self._kept.clear()
        self._open = self._open or Kept()
        self._open.is_whole = False

    def fetch(self) -> dict[int, StepLoss]:
        """All kept steps, with a synchronisation; they are let go."""
        kept, self._kept = self._kept, {}
        return {step: value.value() for step, value in kept.items()}
