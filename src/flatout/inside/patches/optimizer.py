"""Change optimizers: use fused or multi-tensor kernels, and drop gradients instead of zeroing them.

A torch class is patched if it has the keyword; its subclasses call the patched constructor. If torch refuses the
keyword for some parameters, the optimizer is created as the script asked. A loaded checkpoint does not switch it off.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import wraps
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from flatout.inside.patches.arguments import bind, parameters_of, value
from flatout.inside.patches.report import Report


def optimizer(report: Report, *, fused: bool = False, foreach: bool = False) -> None:
    keyword = "fused" if fused else "foreach"
    if not (fused or foreach):
        report.note("neither fused nor foreach is requested")
        return
    report.waits(f"no optimizer with the keyword `{keyword}` was made")
    for kind in {one for one in vars(torch.optim).values() if isinstance(one, type) and issubclass(one, Optimizer)}:
        if "__init__" in vars(kind) and keyword in parameters_of(vars(kind)["__init__"]).parameters:
            _patch_class(report, kind, keyword)


def _patch_class(report: Report, kind: Any, keyword: str) -> None:
    original = kind.__init__
    other = "foreach" if keyword == "fused" else "fused"

    @wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if self.__dict__.get("_flatout_is_making"):  # called by a subclass: AdamW is an Adam
            original(self, *args, **kwargs)
            return
        bound = _bind(original, self, args, kwargs)
        if bound is None or value(bound, keyword) or (keyword == "foreach" and value(bound, "fused")):
            original(self, *args, **kwargs)
            return
        if isinstance(bound.arguments["params"], Iterator):
            bound.arguments["params"] = list(bound.arguments["params"])
        bound.arguments["params"] = _copied(bound.arguments["params"])
        own = {name: value(bound, name) for name in (keyword, other) if name in bound.signature.parameters}
        own_groups = bound.arguments["params"]
        self.__dict__["_flatout_is_making"] = True
        try:
            bound.arguments["params"] = _copied(own_groups)
            bound.arguments[keyword] = True
            if other in own:
                bound.arguments[other] = None
            original(*bound.args, **bound.kwargs)
            if keyword == "fused" and (problem := _why_not_fused(self)) is not None:
                raise RuntimeError(problem)
        except Exception as error:  # noqa: BLE001 - if the script's own way fails too, it says so
            report.note(f"{kind.__name__} does not take it: {error}")
            bound.arguments.update(own, params=own_groups)
            original(*bound.args, **bound.kwargs)
            return
        finally:
            self.__dict__.pop("_flatout_is_making", None)
        keep(self)
        report.did("optimizers")

    @report.guarded
    def keep(self: Any) -> None:
        """Keep the setting in `load_state_dict`, because checkpoints contain the script's setting.

        Not if gradients are sparse.
        """

        def before_load(_: Any, state: Any) -> Any:
            groups = [
                {**group, keyword: True, **({other: None} if other in group else {})} for group in state["param_groups"]
            ]
            return {**state, "param_groups": groups}

        self.register_load_state_dict_pre_hook(before_load)
        if keyword == "fused":
            is_first = True

            def before_step(optimizer: Any, *_: Any) -> None:  # a hook must not remove itself
                nonlocal is_first
                if is_first:
                    is_first = False
                    _leave_sparse(report, optimizer)

            self.register_step_pre_hook(before_step)

    kind.__init__ = init


def _bind(original: Any, self: Any, args: Any, kwargs: Any) -> Any:
    try:
        return bind(original, (self, *args), kwargs)
    except TypeError:
        return None


def _copied(params: Any) -> Any:
    """Return a copy of the parameter groups, which are dictionaries that an optimizer writes to."""
    if not isinstance(params, (list, tuple)):
        return params
    groups = []
    for group in params:
        if isinstance(group, dict):
            members = group.get("params")
            groups.append({**group, "params": list(members) if isinstance(members, Iterator) else members})
            if isinstance(members, Iterator):
                group["params"] = groups[-1]["params"]
        else:
            groups.append(group)
    return groups


def _why_not_fused(optimizer: Any) -> str | None:
    from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

    supported = _get_fused_kernels_supported_devices()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not torch.is_floating_point(parameter):
                return "a parameter is not a floating-point tensor"
            if parameter.device.type not in supported:
                return f"no fused kernels for {parameter.device.type}"
        if group.get("differentiable"):
            return "it is differentiable"
    return None


def _leave_sparse(report: Report, optimizer: Any) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if any(one.grad is not None and one.grad.layout is not torch.strided for one in parameters):
        for group in optimizer.param_groups:
            group["fused"] = None
        report.note("gradients are sparse: fused kernels do not take them")


def zero_grad_to_none(report: Report) -> None:
    report.waits("nothing asked for zeros")
    for kind in (Optimizer, torch.nn.Module):
        _patch_zero_grad(report, kind)


def _patch_zero_grad(report: Report, kind: Any) -> None:
    original = kind.zero_grad
    is_compiling = torch.compiler.is_compiling

    @wraps(original)
    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        if not set_to_none and not is_compiling():
            report.did("calls")
        original(self, set_to_none=True)

    kind.zero_grad = zero_grad
