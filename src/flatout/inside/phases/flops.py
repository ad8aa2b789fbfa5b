"""Count the floating-point operations that one step executes, with the formulas of torch's own FLOP counter.

In: the operators of one step. Out: FLOPs by operand type. A dispatch mode sees each operator with its tensors, counts
its FLOPs and passes it on. The mode is not used if it would change what runs: code compiled by `torch.compile` would
fall back to eager kernels, another mode may be active, and unknown tensor subclasses may not expect a mode. Recomputed
activations are counted each time. Custom kernels and kernels of other libraries are not seen.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _python_dispatch, flop_counter
from torch.utils._python_dispatch import TorchDispatchMode

from flatout.inside.live_objects import parameters_of
from flatout.inside.log import LOG
from flatout.inside.protocol import Variable


def _cpu_attention(query: Any, key: Any, value: Any, *_: Any, out_val: Any = None, **__: Any) -> int:
    return int(flop_counter.sdpa_flop_count(query.shape, key.shape, value.shape))


def _cpu_attention_backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    shapes = (gradient.shape, query.shape, key.shape, value.shape)
    return int(flop_counter.sdpa_backward_flop_count(*shapes))


# The registry contains only fused attention for GPUs; the CPU version has the same matrix multiplications.
_FORMULAS: dict[Any, Callable[..., int]] = {
    **flop_counter.flop_registry,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _cpu_attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _cpu_attention_backward,
}
_KNOWN_PARAMETERS = {"Parameter", "Tensor", "DTensor", "FlatParameter"}
_LEFT: list[Any] = []  # modes left in place: torch 2.4 crashes if it removes a mode without other references
_NOT_EXECUTED = {"FakeTensor", "FunctionalTensor"}  # tensors for which only shapes are computed
_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float64": "fp64"}


class _Counter(TorchDispatchMode):  # type: ignore[misc]  # torch is not followed
    supports_higher_order_operators = True  # they are passed on like any other operator

    def __init__(self) -> None:
        super().__init__()
        self.flops: Counter[str] = Counter()
        self.num_operators = 0
        self.is_on = True
        self._fp32 = "tf32" if _uses_tf32() else "fp32"

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kinds = {kind.__name__ for kind in types}
        if "DTensor" in kinds:
            return NotImplemented  # DTensor unwraps itself, and this rank's part is dispatched here again
        out = func(*args, **(kwargs or {}))
        if self.is_on and not kinds & _NOT_EXECUTED:
            self.num_operators += 1
            formula = _FORMULAS.get(getattr(func, "_overloadpacket", None))
            if formula is not None:
                self._count(formula, args, kwargs or {}, out)
        return out

    def _count(self, formula: Callable[..., int], args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> None:
        try:
            # Overloads with an output type (`addmm.dtype`) take it after the tensors; the formulas do not accept it.
            shaped = tuple(arg for arg in args if not isinstance(arg, torch.dtype))
            self.flops[self._operand_type(args)] += int(formula(*shaped, **kwargs, out_val=out))
        except Exception:  # noqa: BLE001 - a shape that the formula does not expect
            LOG.error("flops")
            self.is_on = False

    def _operand_type(self, args: tuple[Any, ...]) -> str:
        """Return the type of the first tensor: `bf16`, `fp32`, ..."""
        tensor = next((arg for arg in args if isinstance(arg, torch.Tensor)), None)
        if tensor is None:
            return "other"
        name = str(tensor.dtype).removeprefix("torch.")
        if name == "float32":
            return self._fp32
        return "fp8" if name.startswith("float8") else _NAMES.get(name, name)


class FlopsStep:
    """Counts the operations between `begin` and `end`, both called between two steps."""

    def __init__(self) -> None:
        self.reason: str | None = None  # the reason for a missing count
        self._counter: _Counter | None = None

    def begin(self, optimizers: Iterable[Any] = ()) -> None:
        self.reason = why_not(optimizers)
        if self.reason is None:
            self._counter = _Counter()
            self._counter.__enter__()

    def end(self) -> tuple[dict[str, int], int] | None:
        """Return FLOPs by operand type and the number of operators; None, with `reason` set, if there is no count."""
        counter, self._counter = self._counter, None
        if counter is None:
            return None
        if _python_dispatch._get_current_dispatch_mode() is counter:
            counter.__exit__(None, None, None)
        else:  # a mode of the script is above ours, so ours stays but only passes operators on
            self.reason = "another dispatch mode was active at the end of the step"
            _LEFT.append(counter)
        was_on, counter.is_on = counter.is_on, False
        if self.reason is None and not was_on:
            self.reason = "a formula of torch's flop counter failed"
        return None if self.reason else (dict(counter.flops), counter.num_operators)


def why_not(optimizers: Iterable[Any] = ()) -> str | None:
    """Return the reason why FLOPs cannot be counted now; None if they can."""
    if os.environ.get(Variable.FLOPS) == "0":
        return f"{Variable.FLOPS}=0 was set"
    unknown = {type(parameter).__name__ for parameter in parameters_of(optimizers)} - _KNOWN_PARAMETERS
    if unknown:
        return f"unknown tensor subclass of parameters: {min(unknown)}"
    if _python_dispatch._get_current_dispatch_mode() is not None:
        return "a dispatch mode of the script is active"
    if "torch._dynamo" in sys.modules and _has_compiled():
        return "the script uses torch.compile"
    return None


def _has_compiled() -> bool:
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters.get("frames") or utils.counters.get("stats"))


def _uses_tf32() -> bool:
    """Whether fp32 matrix multiplications on the GPU may round their operands."""
    try:
        return bool(torch.cuda.is_initialized() and torch.get_float32_matmul_precision() != "highest")
    except RuntimeError:  # the script has used torch's newer setting, which excludes this one
        return bool(getattr(torch.backends.cuda.matmul, "fp32_precision", "ieee") == "tf32")
