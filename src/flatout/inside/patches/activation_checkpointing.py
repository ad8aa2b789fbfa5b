"""Recompute the activations of repeated blocks in backward, with the same random states.

The blocks are of the class that holds the most parameters in lists and sequences anywhere in the model. Models of the
transformers library have activation checkpointing built in, which is used, because their blocks write to caches. The
second forward does not update the running statistics of batch norms, because the first has already counted the batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from flatout.inside.patches.models import MODELS, around_forward
from flatout.inside.patches.report import Report

_MARK = "_flatout_checkpointed"
_FEWEST = 2
_LISTS = (torch.nn.ModuleList, torch.nn.Sequential)


def activation_checkpointing(report: Report, *, every: int = 1) -> None:
    report.waits("no model was found")
    is_compiling = torch.compiler.is_compiling

    def around(forward: Any, module: Any, args: Any, kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or not module.training:
            return forward(module, *args, **kwargs)
        if not is_compiling():
            report.did("forwards")
        return checkpoint(
            forward,
            module,
            *args,
            use_reentrant=False,
            preserve_rng_state=True,
            context_fn=partial(_contexts, module),
            **kwargs,
        )

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
    """Return the members of lists and sequences whose class holds the most parameters."""
    blocks: dict[type, dict[int, Any]] = {}
    for module in model.modules():
        if not isinstance(module, _LISTS):
            continue
        for kind, count in Counter(type(one) for one in module).items():
            if count >= _FEWEST and not issubclass(kind, _LISTS):  # a list of lists: the inner ones have the blocks
                blocks.setdefault(kind, {}).update((id(one), one) for one in module if type(one) is kind)
    return max(([*alike.values()] for alike in blocks.values()), key=_num_parameters, default=[])


def _num_parameters(modules: list[Any]) -> int:
    return sum(parameter.numel() for one in modules for parameter in one.parameters())


def _contexts(module: Any) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of the first and the second forward."""
    return nullcontext(), _without_running_statistics(module)


@contextmanager
def _without_running_statistics(module: Any) -> Iterator[None]:
    """Preserve running statistics with a momentum of 0.

    Without them, forward would save fewer tensors, which torch refuses.
    """
    norms = [one for one in module.modules() if isinstance(one, _BatchNorm) and one.training]
    before = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, (momentum, num_batches) in zip(norms, before, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, num_batches


def _built_in(model: Any, every: int) -> int:
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    blocks = [one for one in repeated_blocks(model) if getattr(one, "gradient_checkpointing", False)]
    for index, block in enumerate(blocks):
        block.gradient_checkpointing = index % every == 0
    return max(len(blocks[::every]), 1)
