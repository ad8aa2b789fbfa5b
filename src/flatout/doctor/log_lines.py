"""Use lines of the kernel log as evidence: their report, their number, and the last line."""

from __future__ import annotations

from collections.abc import Callable

from flatout.doctor.check import none_in_log
from flatout.doctor.machine import Machine
from flatout.doctor.outcome import CheckOutcome

_LONGEST = 140  # characters of a line that a reason quotes
# For these kinds, the first line is the cause, and later lines are its consequences.
_BEGIN_WITH_THE_CAUSE = frozenset({"gpu_init", "lockup", "cpu_stall", "nic_health", "crash"})
_REPORTED = {
    "aer_fatal": "fatal PCIe error",
    "aer_nonfatal": "nonfatal PCIe error",
    "slot_down": "PCIe slot went down",
    "aer_corrected": "corrected PCIe error",
    "machine_check": "uncorrectable CPU or memory error",
    "memory_corrected": "corrected memory error",
    "hung_task": "process hung in the kernel",
    "thermal": "CPU thermal throttling",
    "io_error": "disk error",
    "nfs": "NFS server does not respond",
    "segfault_nccl": "crash inside NCCL",
    "peermem": "error of nvidia_peermem",
    "crash": "kernel crash",
    "nic_health": "NIC failure",
    "gpu_init": "the driver could not start a GPU",
    "lockup": "CPU locked up",
    "cpu_stall": "CPU stalled",
}


def logged(machine: Machine, kind: str) -> str | None:
    """Return `disk error, 3 lines, the last: ...`; None if the log has no line of the kind."""
    lines = machine.kernel_log.lines[kind]
    if not lines:
        return None
    position, line = ("first", lines[0]) if kind in _BEGIN_WITH_THE_CAUSE else ("last", lines[-1])
    if len(lines) == 1:
        return f"{_REPORTED[kind]}: {line[:_LONGEST]}"
    return f"{_REPORTED[kind]}, {len(lines)} lines, the {position}: {line[:_LONGEST]}"


def judge_log(machine: Machine, kind: str, outcome: Callable[[str], CheckOutcome]) -> CheckOutcome:
    """Return the outcome for the lines of a kind; without such lines, the outcome that the log has none."""
    lines = logged(machine, kind)
    return outcome(lines) if lines else none_in_log(machine)
