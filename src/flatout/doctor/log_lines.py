"""Use lines of the kernel log as evidence: the number of lines of a kind, and the last of them."""

from __future__ import annotations

from collections.abc import Callable

from flatout.doctor.check import CheckOutcome, none_in_log
from flatout.doctor.machine import Machine

_LONGEST = 140  # characters of a line that a reason quotes


def logged(machine: Machine, kind: str) -> str | None:
    """Return `3 lines, the last: ...`; None if the log has no line of this kind."""
    lines = machine.kernel_log.lines[kind]
    return f"{len(lines)} lines, the last: {lines[-1][:_LONGEST]}" if lines else None


def judge_log(machine: Machine, kind: str, outcome: Callable[[str], CheckOutcome]) -> CheckOutcome:
    """Return the outcome for the lines of a kind; without such lines, the outcome that the log has none."""
    lines = logged(machine, kind)
    return outcome(lines) if lines else none_in_log(machine)
