"""Let each rank train alone for many steps, and average the weights of DistributedDataParallel's ranks in between.

Local SGD (arXiv:1805.09767) continues from the mean of the weights. DiLoCo (arXiv:2311.08105) treats what the ranks
have changed, on average, as a gradient, and takes a step of SGD with Nesterov momentum along it. Gradients are
exchanged in no step. This is another training, not another way to compute the same one: the ranks differ between two
averages, and a script that saves its model then saves what its rank has.

The model holds the state for the checkpoints of `flatout.checkpoint`: the weights of the last average, the momentum,
and how many steps ago it was.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from flatout.inside.live_objects import parameters_of
from flatout.inside.patches.report import Report
from flatout.inside.protocol import GRADIENT_HOOK, GRADIENT_HOOK_STATE

OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9  # the values of the paper


def local_sgd(report: Report, *, every: int = 32, outer: bool = False) -> None:
    if not dist.is_available():
        report.note("this torch has no torch.distributed")
        return
    from torch.nn.parallel import DistributedDataParallel

    report.waits("no DistributedDataParallel was trained")
    original = DistributedDataParallel.forward
    averages: weakref.WeakKeyDictionary[Any, WeightAverage] = weakref.WeakKeyDictionary()

    @report.guarded
    def put_on(ddp: Any) -> None:
        if ddp._comm_hooks:
            report.note("the script has its own hook")
            return
        average = WeightAverage(ddp, every=every, is_outer=outer)
        saved = ddp.module.__dict__.pop(GRADIENT_HOOK_STATE, None)
        if saved is not None:
            state, is_own = saved
            average.load_state_dict(state, is_own=is_own)
        ddp.module.__dict__[GRADIENT_HOOK] = averages[ddp] = average
        report.did("wrapped")

    @wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "_flatout_local_sgd" not in self.__dict__:
            self.__dict__["_flatout_local_sgd"] = True
            put_on(self)
        if self in averages:
            self.require_backward_grad_sync = False
        return original(self, *args, **kwargs)

    def after_step(optimizer: Any, *_: object) -> None:
        trained = {id(parameter) for parameter in parameters_of([optimizer])}
        for average in list(averages.values()):
            if average.is_trained_by(trained) and average.step():
                report.did("averages")

    DistributedDataParallel.forward = forward
    register_optimizer_step_post_hook(after_step)


class WeightAverage:
    """Averages the weights of the ranks after every `every` steps."""

    kind = "local_sgd"

    def __init__(self, ddp: Any, *, every: int, is_outer: bool) -> None:
        self._group = ddp.process_group
        self._world_size = dist.get_world_size(self._group)
        self._every = every
        self._parameters = {
            name: parameter for name, parameter in ddp.module.named_parameters() if parameter.requires_grad
        }
        self._num_steps = 0
        self._momentum: dict[str, torch.Tensor] = {}
        self._anchor: dict[str, torch.Tensor] = {}
        if is_outer:
            self._anchor = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}
            self._momentum = {name: torch.zeros_like(anchor) for name, anchor in self._anchor.items()}

    def __deepcopy__(self, memo: Any) -> None:
        """A copied model is not averaged."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def is_trained_by(self, parameter_ids: set[int]) -> bool:
        """Whether the optimizer of these parameters trains the last of the model's: one of several counts steps."""
        return id(list(self._parameters.values())[-1]) in parameter_ids

    def step(self) -> bool:
        """Count a step, and return whether the weights were averaged after it."""
        self._num_steps += 1
        if self._num_steps % self._every:
            return False
        with torch.no_grad():
            self._average()
        return True

    def _average(self) -> None:
        for name, parameter in self._parameters.items():
            mean = parameter.detach().div(self._world_size)
            dist.all_reduce(mean, group=self._group)
            if self._anchor:
                mean = self._outer_step(name, mean)
            parameter.copy_(mean)

    def _outer_step(self, name: str, mean: torch.Tensor) -> torch.Tensor:
        """Return the weights after a step of SGD with Nesterov momentum along the mean change of the ranks."""
        anchor, momentum = self._anchor[name], self._momentum[name]
        change = anchor - mean
        momentum.mul_(OUTER_MOMENTUM).add_(change)
        anchor.sub_(change.add_(momentum, alpha=OUTER_MOMENTUM), alpha=OUTER_RATE)
        return anchor

    def state_dict(self) -> dict[str, Any]:
        shared = {"num_steps": self._num_steps, "anchor": dict(self._anchor), "momentum": dict(self._momentum)}
        return {"kind": self.kind, "shared": shared, "own": {}}

    def load_state_dict(self, state: Mapping[str, Any], *, is_own: bool = True) -> None:
        """Restore a saved state. Raise ValueError if it is that of a hook on gradients."""
        del is_own
        if state["kind"] != self.kind:
            raise ValueError(f"the state is that of a hook `{state['kind']}`, and this is `{self.kind}`")
        shared = state["shared"]
        self._num_steps = shared["num_steps"]
        for own, saved in ((self._anchor, shared["anchor"]), (self._momentum, shared["momentum"])):
            own.update({name: saved[name].clone() for name in own if name in saved})
