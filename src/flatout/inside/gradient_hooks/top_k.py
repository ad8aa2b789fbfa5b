"""Send the largest entries of each gradient alone; the rest is added to the next step's (error feedback).

Each rank sends its entries and their places to all (all-gather), and all add them up in the order of the ranks. The
bytes grow with the number of ranks: 1 % of the entries are more than fp32 by a ring with 100 ranks or more,
10 % with 10 or more.

With momentum correction (Deep Gradient Compression, arXiv:1712.01887), the momentum of SGD is applied to each rank's
own gradients before entries are chosen: if it were applied after the exchange, an entry that was delayed by many steps
would arrive at once, and momentum would repeat it. Small parameters are sent whole. The first step is reduced plainly.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

import torch

from flatout.inside.gradient_hooks.gradient_hook import Gradient, GradientHook, all_gather, annotate, finite
from flatout.inside.gradient_hooks.sgd_momentum import find_momentum

WHOLE = 1024  # entries: parameters of at most this many (biases, norms) are sent whole
_LARGEST_INDEX = 2**31 - 1


class TopKHook(GradientHook):
    kind = "topk"

    def __init__(self, ddp: Any, *, percent: int, corrects_momentum: bool) -> None:
        super().__init__(ddp)
        self._share = percent / 100
        self.momentum = find_momentum(ddp) if corrects_momentum else None
        self._errors: dict[str, torch.Tensor] = {}
        self._velocities: dict[str, torch.Tensor] = {}

    def is_plain_step(self, step: int) -> bool:
        return step == 0 and self.momentum is None

    def reduce(self, buffer: torch.Tensor, gradients: list[Gradient]) -> None:
        if buffer.numel() > _LARGEST_INDEX:
            self.reduce_plainly(buffer)
            return
        values, places = [], []
        for gradient in gradients:
            entries, chosen = self._choose(gradient)
            values.append(entries)
            places.append(chosen + gradient.entries.storage_offset() - buffer.storage_offset())
        count = sum(map(len, values))
        sent = torch.cat([*values, torch.cat(places).to(torch.int32).view(torch.float32)])
        gathered = torch.empty(self.world_size * 2 * count, dtype=torch.float32, device=buffer.device)
        all_gather(gathered, sent, group=self.group)
        buffer.zero_()
        for entries, chosen in gathered.view(self.world_size, 2, count):
            # The places of one rank are unique: no two additions race, and all ranks get the same bits.
            where = chosen.contiguous().view(torch.int32).long()
            buffer[where] = buffer[where] + entries
        buffer.div_(self.world_size)

    def _choose(self, gradient: Gradient) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the entries to send of one parameter and their places in it; keep the rest."""
        own = gradient.entries
        if self.momentum is not None:
            own = self._with_momentum(gradient, own)
        if own.numel() <= WHOLE:
            return own, torch.arange(own.numel(), device=own.device)
        error = self._errors.get(gradient.name)
        whole = own.clone() if error is None else own + error
        count = ceil(self._share * whole.numel())
        places = torch.topk(whole.abs(), count, sorted=False).indices
        entries = whole[places]
        whole[places] = 0
        self._errors[gradient.name] = finite(whole)
        velocity = self._velocities.get(gradient.name)
        if velocity is not None:
            velocity[places] = 0  # else the momentum of what was sent late would be sent again
        return entries, places

    def _with_momentum(self, gradient: Gradient, own: torch.Tensor) -> torch.Tensor:
        assert self.momentum is not None
        rule = self.momentum.rule_of(gradient.parameter)
        if rule is None:
            return own
        decayed = own + rule.weight_decay * _laid_out(gradient.parameter, gradient.values)
        velocity = self._velocities.get(gradient.name)
        velocity = decayed.clone() if velocity is None else velocity.mul_(rule.momentum).add_(decayed)
        self._velocities[gradient.name] = finite(velocity)
        return decayed + rule.momentum * velocity if rule.is_nesterov else velocity

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"own": {"errors": dict(self._errors), "velocities": dict(self._velocities)}}

    def load_own(self, own: Mapping[str, Any]) -> None:
        self._errors = {name: error.clone() for name, error in own["errors"].items()}
        self._velocities = {name: velocity.clone() for name, velocity in own["velocities"].items()}

    def remove(self) -> None:
        if self.momentum is not None:
            self.momentum.remove()


def _laid_out(parameter: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return a parameter's entries in the order in which another tensor of its shape has them in memory."""
    entries = torch.empty(parameter.numel(), dtype=parameter.dtype, device=parameter.device)
    entries.as_strided(like.shape, like.stride()).copy_(parameter.detach())
    return entries


@annotate
def top_k_hook(state: TopKHook, bucket: Any) -> Any:
    return state.run(bucket)
