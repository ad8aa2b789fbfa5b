"""The floating-point operations of one step, by the formulas of torch's own flop counter, as they are executed.

For one step a dispatch mode sees each operator with its tensors, counts and passes it on. It is left out where it would
change what runs: code that `torch.compile` has compiled would fall back to eager kernels, another mode may be active,
and tensor subclasses that are not known here may not expect one. Recomputed activations are counted each time; kernels
of other libraries and custom ones are not seen.
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

from flatout.inside.log import LOG
from flatout.inside.protocol import Variable


def _cpu_attention(query: Any, key: Any, value: Any, *_: Any, out_val: Any = None, **__: Any) -> int:
    return int(flop_counter.sdpa_flop_count(query.shape, key.shape, value.shape))


def _cpu_attention_backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    shapes = (gradient.shape, query.shape, key.shape, value.shape)
    return int(flop_counter.sdpa_backward_flop_count(*shapes))


# The registry knows the fused attention of GPUs only; the CPU's has the same products.
_FORMULAS: dict[Any, Callable[..., int]] = {
    **flop_counter.flop_registry,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _cpu_attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _cpu_attention_backward,
}
_KNOWN_PARAMETERS = {"Parameter", "Tensor", "DTensor", "FlatParameter"}
_LEFT: list[Any] = []  # modes that stay: torch 2.4 crashes where one is taken off that nobody else holds
_NOT_EXECUTED = {"FakeTensor", "FunctionalTensor"}  # shapes that are only worked out
_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float64": "fp64"}


class _Counter(TorchDispatchMode):  # type: ignore[misc]  # torch is not followed
    supports_higher_order_operators = True  # passed on like any other

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
            return NotImplemented  # it unwraps itself, and this rank's part of the work comes here again
        out = func(*args, **(kwargs or {}))
        if self.is_on and not kinds & _NOT_EXECUTED:
            self.num_operators += 1
            formula = _FORMULAS.get(getattr(func, "_overloadpacket", None))
            if formula is not None:
                self._count(formula, args, kwargs or {}, out)
        return out

    def _count(self, formula: Callable[..., int], args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> None:
        try:
            # Overloads with an output type (`addmm.dtype`) have it behind the tensors; the formulas do not know it.
            shaped = tuple(arg for arg in args if not isinstance(arg, torch.dtype))
            self.flops[self._operand_type(args)] += int(formula(*shaped, **kwargs, out_val=out))
        except Exception:  # noqa: BLE001 - a shape that the formula does not foresee
            LOG.error("flops")
            self.is_on = False

    def _operand_type(self, args: tuple[Any, ...]) -> str:
        """`bf16`, `fp32`, ... of the first tensor."""
        tensor = next((arg for arg in args if isinstance(arg, torch.Tensor)), None)
        name = "other" if tensor is None else str(tensor.dtype).removeprefix("torch.")
        return "fp8" if name.startswith("float8") else {**_NAMES, "float32": self._fp32}.get(name, name)


class FlopsStep:
    """Counts between `begin` and `end`, both called between two steps."""

    def __init__(self) -> None:
        self.reason: str | None = None  # why there is no count
        self._counter: _Counter | None = None

    def begin(self, optimizers: Iterable[Any] = ()) -> None:
        self.reason = why_not(optimizers)
        if self.reason is None:
            self._counter = _Counter()
            self._counter.__enter__()

    def end(self) -> tuple[dict[str, int], int] | None:
        """(FLOPs by operand type, number of operators), or None with the reason set."""
        counter, self._counter = self._counter, None
        if counter is None:
            return None
        if _python_dispatch._get_current_dispatch_mode() is counter:
            counter.__exit__(None, None, None)
        else:  # a mode of the script's lies above: ours stays below it and only passes on
            self.reason = "another dispatch mode was active at the end of the step"
            _LEFT.append(counter)
        was_on, counter.is_on = counter.is_on, False
        if self.reason is None and not was_on:
            self.reason = "a formula of torch's flop counter failed"
        return None if self.reason else (dict(counter.flops), counter.num_operators)


def why_not(optimizers: Iterable[Any] = ()) -> str | None:
    """The reason not to count now, or None."""
    if os.environ.get(Variable.FLOPS) == "0":
        return f"{Variable.FLOPS}=0 was set"
    kinds = {
        type(parameter).__name__ for one in optimizers for group in one.param_groups for parameter in group["params"]
    }
    if kinds - _KNOWN_PARAMETERS:
        return f"parameters are of a tensor subclass that is not known: {min(kinds - _KNOWN_PARAMETERS)}"
    if _python_dispatch._get_current_dispatch_mode() is not None:
        return "a dispatch mode of the script is active"
    if "torch._dynamo" in sys.modules and _has_compiled():
        return "the script uses torch.compile"
    return None


def _has_compiled() -> bool:
    counters = sys.modules["torch._dynamo.utils"].counters if "torch._dynamo.utils" in sys.modules else {}
    return bool(counters.get("frames") or counters.get("stats"))


def _uses_tf32() -> bool:
    """Whether fp32 matrix products on the GPU may round their operands."""
    try:
        return bool(torch.cuda.is_initialized() and torch.get_float32_matmul_precision() != "highest")
    except RuntimeError:  # the script has used torch's newer setting, which this one refuses to be mixed with
        return bool(getattr(torch.backends.cuda.matmul, "fp32_precision", "ieee") == "tf32")
