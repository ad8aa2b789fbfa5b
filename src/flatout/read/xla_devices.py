"""Find the devices of an XLA profile, and the ranks that they are.

In: a profile, or the name of a plane. Out: numbers of devices, and a `RankPart` for each if they are several.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from flatout.read.processes import RankPart
from flatout.read.xla_lines import XlaLine, XlaProfile
from flatout.records.events import NULL

_DEVICE = re.compile(r"^/device:(?:GPU|TPU):(\d{1,9})$")
# The number of a device of a CPU is its process's number times this, plus its number within the process: XLA's
# kMaxCpuDevicesPerProcess.
DEVICES_PER_CPU_PROCESS = 2048
_MOST_PROCESSES = 1 << 20
_COPIES = ("Memcpy", "Memset")


def device_number(plane: str) -> int | None:
    """Return the number of the device that a plane describes; None for a host."""
    match = _DEVICE.match(plane)
    return int(match[1]) if match is not None else None


def is_of_tpu(line: XlaLine) -> bool:
    return line.plane.startswith("/device:TPU:")


def parts_of(profile: XlaProfile) -> tuple[RankPart, ...]:
    """Return the devices of a profile that computed, if they are several or others only copied: each is a rank."""
    numbers = {number for line in profile.lines if (number := device_number(line.plane)) is not None}
    computed = {number for number in numbers if _computes(profile, number)}
    worked = sorted(computed or numbers or cpu_devices(profile))
    if len(worked) < 2 and len(worked) == len(numbers or worked):
        return ()
    num_local = len(worked)
    ranks = [None if numbers else cpu_rank(number, num_local) for number in worked]
    only_copied = sorted(numbers - set(worked))
    left_out = f"devices that only copied do not count as ranks: {only_copied}" if only_copied else None
    notes = [left_out, *[None] * (num_local - 1)]
    return tuple(
        RankPart(rank=rank, device=number, left_out=note)
        for rank, number, note in zip(ranks, worked, notes, strict=True)
    )


def _computes(profile: XlaProfile, number: int) -> bool:
    """Whether a device has other events than copies: TensorFlow copies to all GPUs that it sees."""
    lines = (line for line in profile.lines if device_number(line.plane) == number)
    return any(not _only_copies(line, profile.names) for line in lines)


def _only_copies(line: XlaLine, names: Sequence[str]) -> bool:
    return all(names[code].startswith(_COPIES) for code in np.unique(line.event_name).tolist())


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
