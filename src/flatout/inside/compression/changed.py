"""What a variant returns: the names of the layers that it changed, or the reason why it changed none."""

from __future__ import annotations

from dataclasses import dataclass, field


class NotAppliedError(Exception):
    """The variant fits nothing in this model, or needs what this machine or this Python lacks."""


@dataclass(frozen=True, slots=True)
class Changed:
    names: tuple[str, ...]  # of modules, as in `named_modules`; "" is the model itself
    notes: tuple[str, ...] = field(default=())
