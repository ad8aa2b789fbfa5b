"""Apply `torch.compile` in place to the model in a wrapper, to the units that FSDP2 shards, or to the whole model.

If the compiler fails on a part, that part runs as before.
"""

from __future__ import annotations

from typing import Any

import torch

from flatout.inside.patches.models import MODELS, is_compiled
from flatout.inside.patches.report import Report


def compile(report: Report, *, mode: str = "default") -> None:
    report.waits("no model was found")
    asked: list[int] = []

    def found(model: Any) -> None:
        if is_compiled(model):
            report.note("the script compiles its model itself")
            return
        import torch._dynamo

        torch._dynamo.config.suppress_errors = True
        units = [module for module in model.modules() if module is not model and _is_sharded(module)]
        for module in units or [model]:
            _let_containers_compile(module)
            module.compile(mode=mode)
        asked.append(len(units or [model]))
        report.reason = "nothing was compiled yet"
        report.details["modules"] = sum(asked)

    def count() -> None:
        if not asked:
            return
        from torch._dynamo.utils import counters

        graphs = int(counters["stats"]["unique_graphs"])
        if graphs:
            report.is_applied, report.reason = True, None
            report.details["graphs"] = graphs
        else:
            report.reason = "nothing was compiled: the model is not called, or the compiler failed"

    MODELS.on_model(report, found)
    report.before_writing = report.guarded(count)


def _let_containers_compile(module: Any) -> None:
    """Let Dynamo begin at the call of a class of torch, such as `Sequential`: it compiles nothing there otherwise."""
    config: Any = torch._dynamo.config
    is_of_torch = type(module).forward.__module__.startswith("torch.")
    if is_of_torch and hasattr(config, "wrap_top_frame"):
        config.wrap_top_frame = True


def _is_sharded(module: Any) -> bool:
    return any(base.__name__ == "FSDPModule" for base in type(module).__mro__)
