"""The loss of each step, without a synchronisation: scalars stay on their device until they can be had for nothing.

A step's loss is the sum of the scalars that `backward` was called on, before a GradScaler scaled them: the value whose
gradient the step applied. It is None where `backward` was called on something else, or where a kept scalar was changed
in place since. On a GPU at most `MAX_KEPT` steps are held; beyond that every other one is dropped.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

MAX_KEPT = 512
_MAX_A_STEP = 64
_Tensor = torch.Tensor
_MAX_STORAGE_BYTES = 4096  # a scalar cut out of a large tensor would hold all of it


class StepLoss(NamedTuple):
    loss: float | None
    is_skipped: bool | None  # None: no GradScaler took part


Taken = tuple[torch.Tensor, int]  # a scalar, with the version that it had
_NONE = StepLoss(None, None)


class KeptLosses:
    """What one step leaves: its scalars, and a fused optimizer's flag."""

    __slots__ = ("found_inf", "is_whole", "tensors")

    def __init__(self) -> None:
        self.tensors: list[Taken] = []
        self.found_inf: torch.Tensor | None = None
        self.is_whole = True

    @property
    def is_on_cpu(self) -> bool:
        if self.found_inf is not None and not self.found_inf.is_cpu:
            return False
        return all([tensor.is_cpu for tensor, _ in self.tensors])  # noqa: C419 - a generator takes twice the time

    def value(self) -> StepLoss:
        """Waits for the device, if it is on one."""
        is_skipped = None if self.found_inf is None else bool(self.found_inf.item())
        if not self.is_whole or not self.tensors:
            return StepLoss(None, is_skipped)
        total = 0.0
        for tensor, version in self.tensors:
            if tensor._version != version:
                return StepLoss(None, is_skipped)
            total += float(tensor.item())
        return StepLoss(total, is_skipped)


class Losses:
    """`take` and `take_flag` when it happens; all else when there is time."""

    def __init__(self) -> None:
        self._open: KeptLosses | None = None
        self._kept: dict[int, KeptLosses] = {}
        self._scaled: tuple[object, object] | None = None
        self._stride = 1

    def scaled(self, scaled: object, unscaled: object) -> None:
        """A GradScaler has made `scaled` of `unscaled`."""
        self._scaled = (scaled, unscaled)

    def take(self, tensors: object) -> Taken | None:
        """`backward` is called on `tensors`: for `add`. It keeps no graph alive, and no large tensor."""
        tensor: Any = tensors
        if type(tensor) is not _Tensor and isinstance(tensor, (tuple, list)) and len(tensor) == 1:
            tensor = tensor[0]
        if self._scaled is not None:
            scaled, unscaled = self._scaled
            self._scaled = None
            if tensor is scaled:
                tensor = unscaled
        if (
            type(tensor) is not _Tensor
            or (tensor.dim() and tensor.numel() != 1)
            or (tensor._is_view() and tensor.untyped_storage().nbytes() > _MAX_STORAGE_BYTES)
        ):
            return None
        return tensor.detach(), tensor._version

    def take_flag(self, optimizer: object) -> torch.Tensor | None:
        """A fused optimizer stepped with this flag of a GradScaler: 1 where it changed nothing."""
        flag = getattr(optimizer, "found_inf", None)
        return flag.detach() if isinstance(flag, torch.Tensor) else None

    def add(self, taken: Taken | None) -> None:
        """One more backward pass of the step; None: its loss is not known."""
        kept = self._open
        if kept is None:
            kept = self._open = KeptLosses()
        if taken is not None and len(kept.tensors) < _MAX_A_STEP:
            kept.tensors.append(taken)
        else:
            kept.is_whole = False

    def add_flag(self, found_inf: torch.Tensor) -> None:
        if self._open is None:
            self._open = KeptLosses()
        self._open.found_inf = found_inf

    def close_step(self) -> KeptLosses | None:
        """What the step that ends has left, for `settle`."""
        kept, self._open = self._open, None
        return kept

    def settle(self, step: int, kept: KeptLosses | None) -> StepLoss:
        """The step's loss where the CPU has it already; else nothing yet, and it is kept for `fetch`."""
        if kept is None:
            return _NONE
        if kept.is_on_cpu:
            return kept.value()
        if step % self._stride == 0:
            self._kept[step] = kept
            if len(self._kept) > MAX_KEPT:
                self._stride *= 2
                self._kept = {number: value for number, value in self._kept.items() if number % self._stride == 0}
        return _NONE

    def restart(self) -> None:
        """All steps so far were a part of the first, whose loss is not known."""
        self._kept.clear()
        self._open = self._open or KeptLosses()
        self._open.is_whole = False

    def fetch(self) -> dict[int, StepLoss]:
        """All kept steps, with a synchronisation; they are let go."""
        kept, self._kept = self._kept, {}
        return {step: value.value() for step, value in kept.items()}
