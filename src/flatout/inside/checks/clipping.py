"""What the norms of gradients were before the script clipped them, so that clipping does not hide their size.

`begins` and `ended` around what `torch.nn.utils.clip_grad_norm_` does to gradients: the norm of each is taken just
before, as `norm_of` takes it, and `take` has it at the step. Nothing is divided out of what clipping leaves: the total
norm of shards may be known only after a collective, and so any type of norm will do.

A gradient that is clipped twice has the norm that it had before the first time. One that was changed since it was
clipped, as by another backward pass or a GradScaler that unscales it too late, is not known: each tensor counts its
changes in place, but for those by a GradScaler, which are for `forget`. Nothing is kept alive: a gradient that is
dropped takes its norm with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from flatout.inside.checks.norms import local_part, norm_of

_Version = tuple[int, int]


class ClippedGradient:
    """One gradient."""

    def __init__(self, norm: torch.Tensor | None) -> None:
        self.norm = norm  # before; None: not known
        self.version: _Version | None = None  # right after; None: never clipped, as that raised an error


class ClippedGradients:
    """Of the gradients that were clipped and that no optimizer has used yet."""

    def __init__(self) -> None:
        self._clipped = WeakTensorKeyDictionary()
        self._views = WeakTensorKeyDictionary()  # those of them that may share their count of changes with others
        self._current: list[tuple[Any, ClippedGradient]] = []

    def begins(self, parameters: Sequence[Any]) -> None:
        """Their gradients are about to be clipped."""
        self._current = []
        if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
            return
        with torch.no_grad():
            # Where one view into a bucket is clipped, the others count a change, too.
            current = {
                id(gradient): (gradient, one) for gradient, one in self._views.items() if _is_as_left(gradient, one)
            }
            for parameter in parameters:
                gradient = getattr(parameter, "grad", None)
                if gradient is None or id(gradient) in current:
                    continue
                clipped = self._clipped.get(gradient)
                if clipped is None or not _is_as_left(gradient, clipped):
                    clipped = self._clipped[gradient] = ClippedGradient(norm_of(gradient))
                    if gradient._is_view():
                        self._views[gradient] = clipped
                current[id(gradient)] = gradient, clipped
            self._current = list(current.values())

    def ended(self) -> None:
        """They are clipped."""
        with torch.no_grad():
            for gradient, clipped in self._current:
                clipped.version = _version(gradient)
        self._current = []

    def forget(self, parameters: Sequence[Any]) -> None:
        """Their gradients are no longer as clipping left them."""
        for parameter in parameters:
            if parameter.grad is not None and (clipped := self._clipped.get(parameter.grad)) is not None:
                clipped.version = None

    def take(self, gradient: Any) -> tuple[bool, torch.Tensor | None]:
        """Whether it was clipped since it was last used, and its norm before; None: not known."""
        clipped = self._clipped.pop(gradient, None)
        self._views.pop(gradient, None)
        if clipped is None:
            return False, None
        return True, clipped.norm if _is_as_left(gradient, clipped) else None


def _is_as_left(gradient: Any, clipped: ClippedGradient) -> bool:
    return clipped.version == _version(gradient)


def _version(gradient: Any) -> _Version:
    """Of a DTensor, backward passes change only the part that it holds, and a script may change only the whole."""
    return gradient._version, local_part(gradient)._version
