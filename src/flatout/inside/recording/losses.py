"""Record the loss of each step without synchronizing: scalars stay on the device until they can be read for free.

A step's loss is the sum of the scalars that `backward` was called on, before a GradScaler scaled them: the value whose
gradient the step applied. It is None if `backward` was called on anything else, or if a kept scalar was changed in
place since. At most `MAX_KEPT` steps are held on a GPU; beyond that every other step is dropped.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

MAX_KEPT = 512
_MAX_PER_STEP = 64
_Tensor = torch.Tensor
_MAX_STORAGE_BYTES = 4096  # a scalar that is a view of a larger tensor would keep the entire tensor alive


class StepLoss(NamedTuple):
    loss: float | None
    is_skipped: bool | None  # None: no GradScaler


Scalar = tuple[torch.Tensor, int]  # the tensor, and its version when it was kept
_NONE = StepLoss(None, None)


class KeptLosses:
    """The scalars kept from one step, and the flag of a fused optimizer."""

    __slots__ = ("found_inf", "is_complete", "scalars")

    def __init__(self) -> None:
        self.scalars: list[Scalar] = []
        self.found_inf: torch.Tensor | None = None
        self.is_complete = True

    @property
    def is_on_cpu(self) -> bool:
        if self.found_inf is not None and not self.found_inf.is_cpu:
            return False
        return all([tensor.is_cpu for tensor, _ in self.scalars])  # noqa: C419 - a generator takes twice the time

    def value(self) -> StepLoss:
        """Return the loss; this waits for the GPU if the scalars are on it."""
        is_skipped = None if self.found_inf is None else bool(self.found_inf.item())
        if not self.is_complete or not self.scalars:
            return StepLoss(None, is_skipped)
        total = 0.0
        for tensor, version in self.scalars:
            if tensor._version != version:
                return StepLoss(None, is_skipped)
            total += float(tensor.item())
        return StepLoss(total, is_skipped)


class Losses:
    """The losses of a rank. Call `scaled`, `take` and `take_flag` as the events happen, all other methods later."""

    def __init__(self) -> None:
        self._open: KeptLosses | None = None
        self._kept: dict[int, KeptLosses] = {}
        self._scaled: tuple[object, object] | None = None
        self._stride = 1

    def scaled(self, scaled: object, unscaled: object) -> None:
        """Note that a GradScaler has scaled the loss `unscaled` to `scaled`."""
        self._scaled = (scaled, unscaled)

    def take(self, tensors: object) -> Scalar | None:
        """Return the scalar to pass to `add` for the tensors of a `backward` call: no graph and no large tensor."""
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
        """Return the flag that a GradScaler passed to a fused optimizer; it is 1 if the step changed nothing."""
        flag = getattr(optimizer, "found_inf", None)
        return flag.detach() if isinstance(flag, torch.Tensor) else None

    def add(self, scalar: Scalar | None) -> None:
        """Add a backward pass of the step; None means that its loss is unknown."""
        kept = self._open
        if kept is None:
            kept = self._open = KeptLosses()
        if scalar is not None and len(kept.scalars) < _MAX_PER_STEP:
            kept.scalars.append(scalar)
        else:
            kept.is_complete = False

    def add_flag(self, found_inf: torch.Tensor) -> None:
        if self._open is None:
            self._open = KeptLosses()
        self._open.found_inf = found_inf

    def close_step(self) -> KeptLosses | None:
        """Return the scalars and the flag kept from the step that ends, for `settle`."""
        kept, self._open = self._open, None
        return kept

    def settle(self, step: int, kept: KeptLosses | None) -> StepLoss:
        """Return the step's loss if it is on the CPU; otherwise keep it for `fetch` and return an unknown loss."""
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
        """Drop all losses, because all steps so far belong to the first step, whose loss is unknown."""
        self._kept.clear()
        self._open = self._open or KeptLosses()
        self._open.is_complete = False

    def fetch(self) -> dict[int, StepLoss]:
        """Return the losses of all kept steps, which synchronizes with the GPU, and forget them."""
        kept, self._kept = self._kept, {}
        return {step: value.value() for step, value in kept.items()}
