"""Activations of repeated blocks are computed again in backward, with the same random states.

The blocks are the members of the largest list of one class in the model. Models of the transformers library have it
built in, and theirs is used: their blocks write to caches.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from flatout.inside.patches.models import MODELS, around_forward
from flatout.inside.patches.report import Report

_MARK = "_flatout_checkpointed"
_FEWEST = 2


def activation_checkpointing(report: Report, *, every: int = 1) -> None:
    report.waits("no model was found")
    is_compiling = torch.compiler.is_compiling

    def around(forward: Any, module: Any, args: Any, kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or not module.training:
            return forward(module, *args, **kwargs)
        if not is_compiling():
            report.did("forwards")
        return checkpoint(forward, module, *args, use_reentrant=False, preserve_rng_state=True, **kwargs)

    def found(model: Any) -> None:
        if hasattr(model, "gradient_checkpointing_enable"):
            report.did("blocks", _built_in(model, every))
            return
        blocks = repeated_blocks(model)
        if not blocks:
            report.note("a model has no repeated blocks")
            return
        for block in blocks[::every]:
            around_forward(block, _MARK, around)
        report.did("blocks", len(blocks[::every]))

    MODELS.on_model(report, found)


def repeated_blocks(model: Any) -> list[Any]:
    """Of all lists and sequences in the model, the members of one class that hold most parameters, in order."""
    best: list[Any] = []
    most = 0
    for module in model.modules():
        if not isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
            continue
        members = list(module)
        if not members:
            continue
        kind = Counter(type(one) for one in members).most_common(1)[0][0]
        alike = [one for one in members if type(one) is kind]
        size = sum(parameter.numel() for one in alike for parameter in one.parameters())
        if len(alike) >= _FEWEST and size > most:
            best, most = alike, size
    return best


def _built_in(model: Any, every: int) -> int:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    blocks = [one for one in repeated_blocks(model) if getattr(one, "gradient_checkpointing", False)]
    for index, block in enumerate(blocks):
        block.gradient_checkpointing = index % every == 0
    return max(len(blocks[::every]), 1)
