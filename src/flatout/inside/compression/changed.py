"""What a variant returns: the names of the layers that it changed, or the reason why it changed none."""

from __future__ import annotations

from dataclasses import dataclass


class NotAppliedError(Exception):
    """The variant fits nothing in this model, or needs what this machine or this Python lacks."""


@dataclass(frozen=True, slots=True)
class Changed:
    names: tuple[str, ...]  # of modules, as in `named_modules`; "" is the model itself
    notes: tuple[str, ...] = ()
    stored_bytes: int | None = None  # of the weights, if they are in a file; None: those of the model's tensors
