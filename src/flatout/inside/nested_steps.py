"""Find out whether a call of `Optimizer.step` runs within another one of the same optimizer: both are one step.

Libraries make a class at run time from that of the user's optimizer, as `hvd.DistributedOptimizer` does: torch then
calls the hooks of a step twice, once for the new class's `step` and once for the original one that it calls.
"""

from __future__ import annotations

import sys
from typing import Any

_MOST_FRAMES = 16  # between the two calls: the library's own, those of decorators and of learning rate schedules


def is_nested_step(optimizer: Any) -> bool:
    """Whether the step whose hook called the caller runs within another step of the optimizer."""
    hooked = sys._getframe(2)
    frame = hooked.f_back
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return False
        if frame.f_code is hooked.f_code and frame.f_locals.get("self") is optimizer:
            return True
        frame = frame.f_back
    return False
