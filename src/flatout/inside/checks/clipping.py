"""Measure gradient norms before the script clips the gradients, so that clipping does not hide their size.

In: calls before and after `torch.nn.utils.clip_grad_norm_` changes gradients. Out: the norm of each gradient, as
`norm_of` measures it just before the clipping; it is kept until the optimizer's step takes it. Nothing is derived from
the clipped values, as the total norm of shards may be available only after a collective; so any type of norm works.

If a gradient is clipped twice, its norm is the one before the first clipping. The norm is unknown if the gradient was
changed after it was clipped, e.g. by another backward pass or by a GradScaler that unscales it too late. Each tensor
counts its in-place changes, except for those by a GradScaler, for which there is `forget`. Nothing is kept alive: the
norm of a gradient is dropped together with the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from flatout.inside.checks.norms import local_part, norm_of

_Version = tuple[int, int]


class ClippedGradient:
    """A gradient that was clipped, or is about to be clipped."""

    def __init__(self, norm: torch.Tensor | None) -> None:
        self.norm = norm  # the norm before clipping; None: unknown
        self.version: _Version | None = None  # version right after clipping; None: clipping raised an error


class ClippedGradients:
    """The clipped gradients that no optimizer has used yet."""

    def __init__(self) -> None:
        self._clipped = WeakTensorKeyDictionary()
        self._views = WeakTensorKeyDictionary()  # gradients that can share their count of changes with others
        self._current: list[tuple[Any, ClippedGradient]] = []

    def begins(self, parameters: Sequence[Any]) -> None:
        """Measure the gradients of these parameters, which are about to be clipped."""
        self._current = []
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return
        with torch.no_grad():
            # When a view into a bucket is clipped, the other views into it also count a change.
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
        """Note that the gradients passed to `begins` are now clipped."""
        with torch.no_grad():
            for gradient, clipped in self._current:
                clipped.version = _version(gradient)
        self._current = []

    def forget(self, parameters: Sequence[Any]) -> None:
        """Forget the norms of these parameters' gradients, which have changed since they were clipped."""
        for parameter in parameters:
            clipped = None if parameter.grad is None else self._clipped.get(parameter.grad)
            if clipped is not None:
                clipped.version = None

    def take(self, gradient: Any) -> tuple[bool, torch.Tensor | None]:
        """Return whether the gradient was clipped since its last use, and its norm before that; None if unknown."""
        clipped = self._clipped.pop(gradient, None)
        self._views.pop(gradient, None)
        if clipped is None:
            return False, None
        return True, clipped.norm if _is_as_left(gradient, clipped) else None


def _is_as_left(gradient: Any, clipped: ClippedGradient) -> bool:
    return clipped.version == _version(gradient)


def _version(gradient: Any) -> _Version:
    """Return both change counts: backward changes only a DTensor's local part, a script may change only the DTensor."""
    return gradient._version, local_part(gradient)._version
