"""Take other steps than the script's Adam or AdamW: with LAMB's trust ratio, or with moments in 8 bits.

Both train something else than the script does: they are semantic changes.
"""

from __future__ import annotations

import sys
import weakref
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from flatout.inside.patches.report import Report

_KEYWORDS = ("params", "lr", "betas", "eps", "weight_decay", "amsgrad")
_SOURCES = {"bitsandbytes": "bitsandbytes.optim", "torchao": "torchao.optim"}


def lamb(report: Report) -> None:
    """Scale the update of each matrix so that it is as large, relative to the matrix, as the learning rate.

    You et al. (arXiv 1904.00962): the step of Adam, with its weight decay, times |weights| / |step / learning rate|.
    Vectors (biases, norms) keep Adam's step. The optimizer's state is Adam's own.
    """
    report.waits("no Adam or AdamW took a step")
    before: weakref.WeakKeyDictionary[Any, list[tuple[Any, Any, float]]] = weakref.WeakKeyDictionary()

    def keep(optimizer: Any, *_: Any) -> None:
        if report.is_on and type(optimizer) in (torch.optim.Adam, torch.optim.AdamW):
            before[optimizer] = [
                (parameter, parameter.detach().clone(), float(group["lr"]))
                for group in optimizer.param_groups
                for parameter in group["params"]
                if parameter.grad is not None and parameter.dim() > 1
            ]

    def scale(optimizer: Any, *_: Any) -> None:
        kept = before.pop(optimizer, None)
        if not kept:
            return
        with torch.no_grad():
            for parameter, old, rate in kept:
                scale_step(parameter, old, rate)
        report.did("steps")

    register_optimizer_step_pre_hook(report.guarded(keep))
    register_optimizer_step_post_hook(report.guarded(scale))


def scale_step(parameter: Any, old: Any, rate: float) -> None:
    step = parameter - old
    weights, update = old.norm(), step.norm() / max(rate, 1e-30)
    ratio = torch.where((weights > 0) & (update > 0), weights / update, torch.ones_like(weights))
    parameter.copy_(old + step * ratio)


def optimizer_8bit(report: Report, *, library: str = "bitsandbytes") -> None:
    """Make `torch.optim.Adam` and `AdamW` those of a package that keeps their moments in 8 bits."""
    report.waits("no Adam or AdamW was made")
    if find_spec(library) is None:
        report.note(f"the package {library} is not installed")
        return
    if torch.cuda.device_count() == 0:
        report.note("there is no GPU")
        return
    for name in ("Adam", "AdamW"):
        original = getattr(torch.optim, name)
        kind = _replacement(report, original, library, name)
        for module in (torch.optim, sys.modules.get("torch.optim.adam"), sys.modules.get("torch.optim.adamw")):
            if module is not None and getattr(module, name, None) is original:
                setattr(module, name, kind)


def _replacement(report: Report, original: Any, library: str, name: str) -> Any:
    """Return a class that makes the 8-bit optimizer if it takes the script's arguments, else the script's own."""

    class Replaced(original):  # type: ignore[misc]
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            made = None if cls is not Replaced else report.guarded(made_8bit)(report, library, name, args, kwargs)
            return super().__new__(cls) if made is None else made

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)

    Replaced.__name__, Replaced.__qualname__, Replaced.__module__ = name, name, original.__module__
    return Replaced


def made_8bit(report: Report, library: str, name: str, args: Any, kwargs: Any) -> Any:
    given = dict(zip(_KEYWORDS, args, strict=False)) | kwargs
    unknown = [
        key for key, value in given.items() if key not in _KEYWORDS and key not in ("fused", "foreach") and value
    ]
    if unknown or given.get("amsgrad"):
        report.note(f"{name} of {library} does not take {', '.join(unknown) or 'amsgrad'}")
        return None
    kept = {key: value for key, value in given.items() if key in _KEYWORDS[:5]}
    if name == "AdamW":
        kept.setdefault("weight_decay", 1e-2)
    optimizer: Optimizer = getattr(import_module(_SOURCES[library]), f"{name}8bit")(**kept)
    report.did("optimizers")
    return optimizer
