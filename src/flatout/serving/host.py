"""Measure what the server's processes use of the host and the GPUs during a load point.

In: the server's process. Out: `ServerUse`: the busiest thread, the cores of all processes, how long the GPUs were busy,
and their energy, from samples of their power. What cannot be read is None.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil

from flatout.launch.detached import Detached
from flatout.probe.foreign_load import ForeignLoad
from flatout.probe.limits import allowed_cores
from flatout.probe.nvml import Gpus
from flatout.records.trial import Covariates
from flatout.serving.window import ServerUse

_Times = dict[tuple[int, int], float]  # (process, thread) -> CPU seconds


class HostMeter:
    """Measures from `begin` to `use`; `look` samples in between."""

    def __init__(self, process: Detached, gpus: Gpus, folder: Path) -> None:
        self._process = process
        self._gpus = gpus
        self._others = ForeignLoad({os.getpid()}, str(folder))
        self._loads: list[float] = []
        self._everything: list[list[dict[str, Any]]] = []
        self._samples: list[list[dict[str, Any]]] = []
        self._began_s = time.monotonic()
        self._before: _Times = {}

    def begin(self) -> None:
        self._began_s = time.monotonic()
        self._before = self._threads()
        self._samples = []
        self.look()

    def look(self) -> None:
        sample = self._gpus.read()
        self._samples.append(sample)
        self._everything.append(sample)
        load = self._others.read()
        if load is not None:
            self._loads.append(load)

    def use(self) -> ServerUse:
        took_s = max(time.monotonic() - self._began_s, 1e-6)
        used = {key: seconds - self._before.get(key, 0.0) for key, seconds in self._threads().items()}
        busy = [max(values) for sample in self._samples if (values := _values(sample, "busy_percent"))]
        power_w = [sum(values) for sample in self._samples if (values := _values(sample, "power_w"))]
        return ServerUse(
            busiest_thread_cores=max(used.values()) / took_s if used else None,
            cores_busy=sum(used.values()) / took_s if used else None,
            cores_allowed=allowed_cores(),
            gpu_busy_share=fmean(busy) / 100 if busy else None,
            energy_j=fmean(power_w) * took_s if power_w else None,
        )

    def covariates(self) -> Covariates:
        """Return the conditions during all load points."""
        clocks = [value for sample in self._everything for value in _values(sample, "sm_clock_hz")]
        temperatures = [value for sample in self._everything for value in _values(sample, "temperature_c")]
        return Covariates(
            sm_clock_hz=fmean(clocks) if clocks else None,
            temperature_c=max(temperatures, default=None),
            cores_busy_by_others=fmean(self._loads) if self._loads else None,
            cores_allowed=allowed_cores(),
        )

    def _threads(self) -> _Times:
        times: _Times = {}
        for process in self._process.processes():
            with suppress(psutil.Error, OSError):
                for thread in process.threads():
                    times[process.pid, thread.id] = thread.user_time + thread.system_time
        return times


def _values(sample: Sequence[dict[str, Any]], name: str) -> list[float]:
    """Return the value of each GPU; none if one has no value."""
    values = [gpu.get(name) for gpu in sample]
    known = [float(value) for value in values if value is not None]
    return known if len(known) == len(values) else []
