"""Measure a command at several power limits, for `flatout cost power-cap --sweep`: `SweepRequest` -> `PowerSample`s.

Composes the limits of the GPUs, the start of the command, and its heartbeats. The limits are gone through there and
back, so that a slow drift of the machine counts equally for all. The time and the energy are those of the steps after
the first ones, if the command makes steps that are seen; otherwise those of the whole command. Whatever happens, the
GPUs get back the limits that they had.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from flatout.errors import InputError, UsageError
from flatout.inside.protocol import Variable
from flatout.keep.heartbeats import HeartbeatReader, ranks_of
from flatout.launch import run_local, with_inside
from flatout.launch.local import ExitStatus
from flatout.probe.power_limits import PowerLimit, PowerLimits
from flatout.records.power import PowerSample
from flatout.report.command import command_line

LEAST_STEPS = 20  # in the window of a measurement; with fewer, the whole command counts
WARMUP_STEPS = 10
_LOOK_EVERY_S = 0.2
_DEFAULT_SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5)
Launch = Callable[..., ExitStatus]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRequest:
    """What to run at which limits. No limits: tenths of the highest one, as far as the driver accepts them."""

    command: tuple[str, ...]
    limits_w: tuple[float, ...] = ()


def planned_limits(request: SweepRequest, own: Sequence[PowerLimit]) -> tuple[float, ...]:
    """Return the limits to measure, the highest first. Raises UsageError for one that a GPU does not accept."""
    if not own:
        raise InputError("a sweep needs a GPU, but NVML shows none")
    least_w, most_w = max(limit.least_w for limit in own), min(limit.most_w for limit in own)
    if not request.limits_w:
        now_w = min(median(limit.limit_w for limit in own), most_w)
        return tuple(round(share * now_w) for share in _DEFAULT_SHARES if share * now_w >= least_w)
    for limit_w in request.limits_w:
        if not least_w <= limit_w <= most_w:
            raise UsageError(
                f"`--limits` must be from {least_w:g} to {most_w:g} W on these GPUs, but has {limit_w:g} W",
                hint="nvidia-smi --query --display=POWER shows the range of each GPU",
            )
    if len(set(request.limits_w)) < 2:
        raise UsageError("`--limits` must be two or more, the highest of which is the baseline of all ratios")
    return tuple(sorted(set(request.limits_w), reverse=True))


def sweep(
    request: SweepRequest,
    limits: PowerLimits,
    environment: Mapping[str, str],
    *,
    progress: Callable[[int, int], object] = lambda done, total: None,
    launch: Launch = run_local,
) -> list[PowerSample]:
    """Run the command twice at each limit. Raises InputError if it fails, PowerLimitError if no limit can be set."""
    own = limits.read()
    planned = planned_limits(request, own)
    order = (*planned, *reversed(planned))
    name = command_line(request.command)
    samples = []
    with limits:
        for number, limit_w in enumerate(order):
            progress(number, len(order))
            for gpu in own:
                limits.set(gpu.index, limit_w)
            time_s, power_w = _measured(request.command, limits, own, environment, limit_w, launch)
            sample = PowerSample(
                configuration=(name,), workload=(name,), limit_w=limit_w, time_s=time_s, power_w=power_w
            )
            samples.append(sample)
    return samples


class _Window:
    """The time, the energy and the steps of a running command, from its first look to its last."""

    def __init__(self, folder: Path, energy_j: Callable[[], float | None]) -> None:
        self._reader = HeartbeatReader(folder)
        self._energy_j = energy_j
        self._next_s = 0.0
        self.first: tuple[float, float] | None = None  # time and energy
        self.last: tuple[float, float] | None = None
        self.first_step: tuple[float, float, int] | None = None  # time, energy and steps
        self.last_step: tuple[float, float, int] | None = None

    def look(self, _: int) -> None:
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _LOOK_EVERY_S
        self.note()

    def note(self) -> None:
        energy_j = self._energy_j()
        if energy_j is None:
            return
        now_s = time.monotonic()
        self.last = now_s, energy_j
        self.first = self.first or self.last
        ranks = ranks_of(self._reader.read())
        num_steps = min((rank.num_steps for rank in ranks), default=0)
        if num_steps < WARMUP_STEPS:
            return
        is_new = self.last_step is None or num_steps > self.last_step[2]
        if is_new:  # what follows the last step is not a part of any
            self.last_step = now_s, energy_j, num_steps
            self.first_step = self.first_step or self.last_step

    def time_and_power(self) -> tuple[float, float] | None:
        """Return the seconds of a step, or of the command, and the mean watts; None if the energy is unknown."""
        if self.first_step is not None and self.last_step is not None:
            steps = self.last_step[2] - self.first_step[2]
            if steps >= LEAST_STEPS:
                took_s = self.last_step[0] - self.first_step[0]
                return took_s / steps, (self.last_step[1] - self.first_step[1]) / took_s
        if self.first is None or self.last is None or self.last[0] <= self.first[0]:
            return None
        took_s = self.last[0] - self.first[0]
        return took_s, (self.last[1] - self.first[1]) / took_s


def _measured(
    command: Sequence[str],
    limits: PowerLimits,
    gpus: Sequence[PowerLimit],
    environment: Mapping[str, str],
    limit_w: float,
    launch: Launch,
) -> tuple[float, float]:
    def energy_j() -> float | None:
        readings = [limits.energy_j(gpu.index) for gpu in gpus]
        known = [reading for reading in readings if reading is not None]
        return sum(known) if len(known) == len(readings) else None

    with TemporaryDirectory(prefix="flatout-") as folder:
        window = _Window(Path(folder), energy_j)
        window.note()
        ended = launch(command, {**with_inside(environment), Variable.HEARTBEAT: folder}, watch=window.look)
        window.note()
    if ended.shell_code:
        raise InputError(
            f"the command must end with code 0 at each limit, but ended with {ended.shell_code} at {limit_w:g} W",
            hint="the limits of the GPUs are as before",
        )
    measured = window.time_and_power()
    if measured is None or measured[1] <= 0:
        raise InputError("a sweep needs the energy counters of the GPUs, which the driver does not give")
    return measured
