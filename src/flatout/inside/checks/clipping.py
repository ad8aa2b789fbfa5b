"""The norms that gradients had before the script clipped them, so that clipping does not hide their size.

In: calls before and after `torch.nn.utils.clip_grad_norm_` changes gradients. Out: the norm of each gradient as
`norm_of` measures it just before, until the optimizer's step takes it. Nothing is computed back from what clipping
leaves: the total norm of shards may be available only after a collective, so any type of norm works.

A gradient that is clipped twice has the norm from before the first time. The norm is unknown if the gradient was
changed after it was clipped, e.g. by another backward pass or by a GradScaler that unscales it too late: each tensor
counts its changes in place, except for those by a GradScaler, for which there is `forget`. Nothing is kept alive: the
norm of a gradient is dropped with the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from flatout.inside.checks.norms import local_part, norm_of

_Version = tuple[int, int]


class ClippedGradient:
    """A gradient that was clipped, or is about to be."""

    def __init__(self, norm: torch.Tensor | None) -> None:
        self.norm = norm  # before clipping; None: unknown
        self.version: _Version | None = None  # right after clipping; None: never clipped, as that raised an error


class ClippedGradients:
    """The gradients that were clipped and that no optimizer has used yet."""

    def __init__(self) -> None:
        self._clipped = WeakTensorKeyDictionary()
        self._views = WeakTensorKeyDictionary()  # those that may share their count of changes with others
        self._current: list[tuple[Any, ClippedGradient]] = []

    def begins(self, parameters: Sequence[Any]) -> None:
        """The gradients of these parameters are about to be clipped."""
        self._current = []
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return
        with torch.no_grad():
            # When one view into a bucket is clipped, the others count a change, too.
            current = {id(view): (view, clipped) for view, clipped in self._views.items() if _is_as_left(view, clipped)}
            for parameter in parameters:
                gradient = getattr(parameter, "grad", None)
                if gradient is not None and id(gradient) not in current:
                    current[id(gradient)] = gradient, self._before_clipping(gradient)
            self._current = list(current.values())

    def _before_clipping(self, gradient: Any) -> ClippedGradient:
        clipped: ClippedGradient | None = self._clipped.get(gradient)
        if clipped is not None and _is_as_left(gradient, clipped):
            return clipped
        clipped = self._clipped[gradient] = ClippedGradient(norm_of(gradient))
        if gradient._is_view():
            self._views[gradient] = clipped
        return clipped

    def ended(self) -> None:
        """They are clipped."""
        with torch.no_grad():
            for gradient, clipped in self._current:
                clipped.version = _version(gradient)
        self._current = []

    def forget(self, parameters: Sequence[Any]) -> None:
        """The gradients of these parameters are no longer as clipping left them."""
        for parameter in parameters:
            clipped = None if parameter.grad is None else self._clipped.get(parameter.grad)
            if clipped is not None:
                clipped.version = None

    def take(self, gradient: Any) -> tuple[bool, torch.Tensor | None]:
        """Return whether the gradient was clipped since it was last used, and its norm before; None if unknown."""
        clipped = self._clipped.pop(gradient, None)
        self._views.pop(gradient, None)
        if clipped is None:
            return False, None
        return True, clipped.norm if _is_as_left(gradient, clipped) else None


def _is_as_left(gradient: Any, clipped: ClippedGradient) -> bool:
    return clipped.version == _version(gradient)


def _version(gradient: Any) -> _Version:
    """Return both counts of changes: backward changes only a DTensor's local part, a script maybe only the DTensor."""
    return gradient._version, local_part(gradient)._version
