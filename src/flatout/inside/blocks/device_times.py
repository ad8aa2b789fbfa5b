"""Time steps on the GPU, by an event in the stream at the end of each step. On the CPU there is nothing to time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from flatout.inside.log import LOG


class DeviceTimes:
    """The times of the measured steps of one block."""

    def __init__(self) -> None:
        self._events: list[Any] = []

    def step_ended(self) -> None:
        """Note that the host has started all work of a step, or that the first measured step begins."""
        if torch.cuda.is_initialized():
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)

    def take(self) -> list[int] | None:
        """Wait for the GPU, return the nanoseconds of each step and forget them; None without a GPU."""
        events, self._events = self._events, []
        if not events:
            return None
        try:
            torch.cuda.synchronize()
            return [round(before.elapsed_time(after) * 1e6) for before, after in pairwise(events)]
        except Exception:  # noqa: BLE001 - the job's own next call reports the GPU's error
            LOG.error("the times of a block on the GPU")
            return None
