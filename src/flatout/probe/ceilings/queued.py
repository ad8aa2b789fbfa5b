"""Measure the device time of short calls: they are queued while the GPU is kept busy, and timed by its own events.

A training job's host runs ahead of its GPUs, which hides the time that Python takes to start a call. A loop that only
starts short calls is as slow as Python, so it does not measure a ceiling of the GPUs. Therefore a spinning kernel holds
the stream until all calls are queued. `align` runs between that kernel and the first event, so that no rank's time
includes waiting for another rank to begin.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MAX_CALLS, FEW_CALLS = 20, 5  # 20, as nccl-tests; far fewer launches than the 1,024 that a CUDA stream queues
_LONG_S, _MOST_S = 1e-3, 5e-3
_CYCLES_PER_S = 2e9  # roughly a GPU's clock; with a faster clock the queue can run dry, which is detected
_MARGIN, _MARGIN_S = 2.0, 2e-4


def calls_of(first_s: float) -> int:
    """Return the number of calls to queue for a call of this duration; 0 if the cost of starting it is negligible."""
    if first_s > _MOST_S:
        return 0
    return MAX_CALLS if first_s <= _LONG_S else FEW_CALLS


def device_seconds(
    torch: Any, device: Any, call: Callable[[], None], align: Callable[[], None], *, calls: int, host_s: float
) -> float | None:
    """Return the mean time of a call; None if the GPU started before all calls were queued, or cannot be held.

    `host_s` is the time of a call as timed by the host: starting a call takes no longer.
    """
    spin = getattr(torch.cuda, "_sleep", None)
    if spin is None:
        return None
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    spin(int((_MARGIN * host_s * (calls + 1) + _MARGIN_S) * _CYCLES_PER_S))
    align()
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    ran_dry = begin.query()
    torch.cuda.synchronize(device)
    return None if ran_dry else float(begin.elapsed_time(end)) / 1e3 / calls
