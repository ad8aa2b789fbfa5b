"""Find the devices of an XLA profile, and the ranks that they are.

In: a profile, or the name of a plane. Out: numbers of devices, and a `RankPart` for each if they are several.
"""

from __future__ import annotations

import re

import numpy as np

from flatout.read.processes import RankPart
from flatout.read.xla_lines import XlaProfile
from flatout.records.events import NULL

_DEVICE = re.compile(r"^/device:(?:GPU|TPU):(\d{1,9})$")
# The number of a device of a CPU is its process's number times this, plus its number within the process: XLA's
# kMaxCpuDevicesPerProcess.
DEVICES_PER_CPU_PROCESS = 2048
_MOST_PROCESSES = 1 << 20


def device_number(plane: str) -> int | None:
    """Return the number of the device that a plane describes; None for a host."""
    match = _DEVICE.match(plane)
    return int(match[1]) if match is not None else None


def parts_of(profile: XlaProfile) -> tuple[RankPart, ...]:
    """Return the devices of a profile that worked, if they are several: each is a rank."""
    numbers = {number for line in profile.lines if (number := device_number(line.plane)) is not None}
    if numbers:
        worked = sorted(numbers)
    else:
        worked = sorted(cpu_devices(profile))
    if len(worked) < 2:
        return ()
    num_local = len(worked)
    ranks = [None if numbers else cpu_rank(number, num_local) for number in worked]
    return tuple(RankPart(rank=rank, device=number) for rank, number in zip(ranks, worked, strict=True))


def cpu_devices(profile: XlaProfile) -> set[int]:
    """Return the numbers of the CPU's devices that ran operators."""
    found: set[int] = set()
    for line in profile.lines:
        ordinal, operator = line.number("device_ordinal"), line.text("hlo_op")
        found |= set(np.unique(ordinal[(operator != NULL) & (ordinal >= 0)]).tolist())
    return found


def cpu_rank(number: int, num_local: int) -> int | None:
    process, local = divmod(number, DEVICES_PER_CPU_PROCESS)
    return process * num_local + local if process < _MOST_PROCESSES and local < num_local else None
