"""Set process-wide switches: cuDNN's search for algorithms, TF32, and an allocator cache that is not emptied.

They stay in effect even if the script sets them differently later; cuDNN's search ends if the script asks for
determinism.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.backends.cudnn

from flatout.inside.failure.failure_notes import out_of_memory_where
from flatout.inside.patches.report import Report


class _Switch:
    """A property of the module `torch.backends.cudnn`, as torch's own `ContextProp`."""

    def __init__(self, getter: Callable[[], bool], setter: Callable[[bool], None]) -> None:
        self._getter, self._setter = getter, setter

    def __get__(self, instance: Any, owner: Any) -> bool:
        return self._getter()

    def __set__(self, instance: Any, value: bool) -> None:
        self._setter(value)


def cudnn_benchmark(report: Report) -> None:
    core: Any = torch._C
    module = type(torch.backends.cudnn)

    def is_deterministic() -> bool:
        return bool(core._get_cudnn_deterministic() or torch.are_deterministic_algorithms_enabled())

    def set_benchmark(wanted: bool) -> None:
        if not wanted and not is_deterministic():
            wanted = True
            report.did("overridden", is_process_wide=True)
        core._set_cudnn_benchmark(wanted)

    def yields() -> None:
        if is_deterministic():
            core._set_cudnn_benchmark(False)
            report.is_applied = False
            report.note("the script requests deterministic algorithms")

    def set_deterministic(wanted: bool) -> None:
        core._set_cudnn_deterministic(wanted)
        yields()

    original = torch.use_deterministic_algorithms

    @wraps(original)
    def use_deterministic_algorithms(*args: Any, **kwargs: Any) -> None:
        original(*args, **kwargs)
        yields()

    core._set_cudnn_benchmark(True)
    module.benchmark = _Switch(core._get_cudnn_benchmark, set_benchmark)
    module.deterministic = _Switch(core._get_cudnn_deterministic, set_deterministic)
    torch.use_deterministic_algorithms = use_deterministic_algorithms
    report.did("processes", is_process_wide=True)


def tf32(report: Report) -> None:
    original = torch.set_float32_matmul_precision

    @wraps(original)
    def set_float32_matmul_precision(precision: str) -> None:
        if precision == "highest":
            report.did("overridden", is_process_wide=True)
            precision = "high"
        original(precision)

    original("high")
    torch.set_float32_matmul_precision = set_float32_matmul_precision
    core: Any = torch._C
    if not core._get_cudnn_allow_tf32():
        core._set_cudnn_allow_tf32(True)
    report.did("processes", is_process_wide=True)


def keep_cache(report: Report) -> None:
    report.waits("the script never emptied the cache")
    original = torch.cuda.empty_cache

    @wraps(original)
    def empty_cache(*args: Any, **kwargs: Any) -> None:
        if out_of_memory_where(sys.exc_info()[1]) is not None:  # the script frees memory in order to try again
            original(*args, **kwargs)
        else:
            report.did("calls")

    torch.cuda.empty_cache = torch.cuda.memory.empty_cache = empty_cache
