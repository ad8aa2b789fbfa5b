"""Disturb the weights after the first update by as much as rounding does, to show how far that carries in this job.

In: `Variable.OTHER_ROUNDING`. Out: each weight that an optimizer updates is multiplied by 1 + e once, right after the
optimizer's first step, where e is random and at most what the device's usual arithmetic rounds by. The weights at the
start, the first loss and the first gradients stay as they are. All ranks draw the same numbers, so that copies of a
weight stay equal.

Trainings differ: in some, such a disturbance stays as small as it is; in others (a high learning rate at the start) the
losses of the fifth step differ by a third. A change that only adds up in another order does there what this does.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from flatout.inside.log import LOG
from flatout.inside.protocol import Variable

_ON_GPU = 2.0**-8  # as coarse as bf16; TF32, in which GPUs multiply 32-bit numbers by default, is finer by 2 to 3 bits
_ON_CPU = 2.0**-20  # some roundings of a sum of 32-bit numbers
_SEED = 20_260_101


def round_otherwise() -> Callable[[], None] | None:
    """Disturb the weights of each optimizer after its first step, if the trial asks for it."""
    if os.environ.get(Variable.OTHER_ROUNDING) != "1":
        return None
    disturbed: set[int] = set()

    def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if id(optimizer) in disturbed or torch.compiler.is_dynamo_compiling():
            return
        disturbed.add(id(optimizer))
        try:
            _disturb(optimizer)
        except Exception:  # noqa: BLE001 - an error of ours is never the job's
            LOG.error("other rounding")

    handle = register_optimizer_step_post_hook(after_step)
    return lambda: handle.remove()


def _disturb(optimizer: Any) -> None:
    generators: dict[torch.device, torch.Generator] = {}
    with torch.no_grad():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
                if not local.is_floating_point() or local.layout != torch.strided or not local.numel():
                    continue
                if local.device not in generators:
                    generators[local.device] = torch.Generator(device=local.device).manual_seed(_SEED)
                noise = torch.empty_like(local).uniform_(-1.0, 1.0, generator=generators[local.device])
                local.addcmul_(local, noise, value=_relative(local))


def _relative(values: torch.Tensor) -> float:
    """Return the rounding of the device's usual arithmetic; at least that of the numbers' own type."""
    of_device = _ON_CPU if values.device.type == "cpu" else _ON_GPU
    return max(of_device, float(torch.finfo(values.dtype).eps))
