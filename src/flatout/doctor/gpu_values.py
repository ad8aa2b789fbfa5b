"""Values of `nvidia-smi -q`, one per GPU, with the number of GPUs that have no value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from flatout.doctor.check import need, with_missing
from flatout.doctor.machine import Machine
from flatout.doctor.outcome import CheckOutcome
from flatout.doctor.parse.nvidia_smi import SmiGpu

Value = TypeVar("Value")


class GpuValues(dict[str, Value]):
    """Maps the address of a GPU to its value."""

    def __init__(self, values: Mapping[str, Value], num_missing: int) -> None:
        super().__init__(values)
        self.num_missing = num_missing

    def judged(self, outcome: CheckOutcome) -> CheckOutcome:
        """Return the outcome, but `unknown` instead of `ok` if a GPU has no value."""
        return with_missing(outcome, self.num_missing, "GPUs reported no value")


def gpu_values(machine: Machine, read: Callable[[SmiGpu], Value | None], problem: str) -> GpuValues[Value]:
    """Read a value from each GPU. Raises NotReadError with the problem if no GPU has one."""
    values = {}
    for gpu in machine.gpus:
        value = read(gpu)
        if value is not None:
            values[gpu.address] = value
    need(list(values), problem)
    return GpuValues(values, len(machine.gpus) - len(values))
