"""Scale the loss for a backward pass in fp16, and skip steps whose gradients overflowed.

In: backward passes of losses in fp32, after a forward pass in fp16. `torch.autograd.backward` starts from the scale in
place of 1, so the script's own losses are unchanged. Each parameter divides its gradient before it is added to `.grad`:
clipping, accumulation, reductions and whatever else reads gradients see true ones. The scale is a power of 2, so both
are exact. A step whose gradients are not finite is skipped and halves the scale; 2,000 good ones double it, as in
torch's GradScaler. Nothing is scaled where a tensor outside the optimizers needs gradients, in a backward pass that
is differentiated itself, or where the script scales its losses itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from flatout.inside.patches.report import Report
from flatout.inside.protocol import LOSS_SCALE

FIRST_SCALE = 2.0**16
SMALLEST_SCALE = 2.0**-24
GROWTH_INTERVAL = 2000
_MOST_NODES = 1_000_000  # of a graph that is searched for its leaves


class LossScaler:
    """The scale of one process, and how many steps went well since it last changed."""

    def __init__(self) -> None:
        # The model holds it too, for checkpoints: a plain dictionary, so that a pickled model needs no Flatout.
        self.state: dict[str, Any] = {"scale": FIRST_SCALE, "good_steps": 0}
        self.num_skipped = 0
        self.is_active = False  # a backward pass that starts from the scale is running
        self._is_judged = True  # the scale has already been judged by the gradients of the last backward pass

    @property
    def scale(self) -> float:
        return float(self.state["scale"])

    def begins(self) -> None:
        self.is_active, self._is_judged = True, False

    def judge(self, *, is_finite: bool) -> None:
        """Change the scale by the gradients of one step; those of a second optimizer count once."""
        if not is_finite:
            self.num_skipped += 1
        if self._is_judged:
            return
        self._is_judged = True
        if not is_finite:
            self.state.update(scale=max(self.scale / 2, SMALLEST_SCALE), good_steps=0)
            return
        self.state["good_steps"] += 1
        if self.state["good_steps"] >= GROWTH_INTERVAL:
            self.state.update(scale=self.scale * 2, good_steps=0)


def scale_losses(report: Report) -> Callable[[Any], bool]:
    """Install the scaling; return what says, before each forward pass of a model, whether it may run in fp16."""
    scaler = LossScaler()
    scaling = _Scaling(report, scaler)
    scaling.hook_backward()
    scaling.hook_optimizers()
    scaling.yield_to_scalers()

    def begins(model: Any) -> bool:
        if scaling.is_off:
            return False
        scaling.has_forward = True
        scaler.state = model.__dict__.setdefault(LOSS_SCALE, scaler.state)  # a restored one, if there is one
        return True

    return begins


class _Scaling:
    """What is hooked in one process."""

    def __init__(self, report: Report, scaler: LossScaler) -> None:
        self.report, self.scaler = report, scaler
        self.has_forward = False  # in fp16
        self.is_off = False
        self._hooked: set[int] = set()
        self._has_looked = False
        self._depth = 0  # a reentrant backward pass runs within another, also in another thread
        report.before_writing = self._tell

    def _tell(self) -> None:
        if self.scaler.num_skipped:
            self.report.details["skipped_steps"] = self.scaler.num_skipped

    def _leave(self, reason: str) -> None:
        self.is_off = True
        self.report.is_applied = False
        self.report.note(reason)

    def hook_backward(self) -> None:
        original = torch.autograd.backward

        @wraps(original)
        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            started = self.report.guarded(self._starts)(tensors, grad_tensors, args, kwargs)
            if started is None:
                return original(tensors, grad_tensors, *args, **kwargs)
            self._depth += 1
            self.scaler.begins()
            try:
                return original(tensors, started, *args, **kwargs)
            finally:
                self._depth -= 1
                self.scaler.is_active = False

        torch.autograd.backward = backward

    def _starts(self, tensors: Any, grad_tensors: Any, args: Any, kwargs: Any) -> list[Any] | None:
        """Return the scaled gradients that the pass starts from; None if it is to start as the script says."""
        is_in_use = self.report.is_on and self.has_forward and not self.is_off
        if self._depth or not is_in_use:
            return None
        losses = _listed(tensors)
        own = [] if grad_tensors is None else _listed(grad_tensors)
        own += [None] * (len(losses) - len(own))
        starts = list(zip(losses, own, strict=True))
        is_differentiated = kwargs.get("create_graph") or any(args[1:2])
        if is_differentiated:
            self.report.note("a backward pass is differentiated itself")
            return None
        if any(loss.dtype is torch.float16 for loss in losses):
            self.report.note("a loss is in fp16 itself")
            return None
        if any(given is None and loss.numel() != 1 for loss, given in starts):
            return None  # torch says what is wrong
        if self._reaches_other_leaves(losses):
            return None
        scale = self.scaler.scale
        return [torch.full_like(loss, scale) if given is None else given * scale for loss, given in starts]

    def _reaches_other_leaves(self, losses: Sequence[Any]) -> bool:
        """Look at the first pass only; if it has leaves outside the optimizers, leave the job as it is."""
        if self._has_looked:
            return False
        self._has_looked = True
        if not self._has_other_leaves(losses):
            return False
        self._leave("a tensor outside the optimizers needs gradients")
        return True

    def _has_other_leaves(self, losses: Sequence[Any]) -> bool:
        """Whether the pass reaches a tensor whose gradient nothing would divide."""
        waiting = [loss.grad_fn for loss in losses if loss.grad_fn is not None]
        seen = set(waiting)
        while waiting and len(seen) < _MOST_NODES:
            node = waiting.pop()
            leaf = getattr(node, "variable", None)
            if leaf is not None and id(leaf) not in self._hooked:
                return True
            for after, _ in node.next_functions:
                if after is not None and after not in seen:
                    seen.add(after)
                    waiting.append(after)
        return False

    def hook_optimizers(self) -> None:
        original, original_add = Optimizer.__init__, Optimizer.add_param_group

        @wraps(original)
        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self.report.guarded(self._hook_step)(type(optimizer))

        @wraps(original_add)
        def add_param_group(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original_add(optimizer, *args, **kwargs)
            self.report.guarded(self._hook_parameters)(optimizer.param_groups[-1]["params"])

        Optimizer.__init__, Optimizer.add_param_group = init, add_param_group

    def _hook_parameters(self, parameters: Sequence[Any]) -> None:
        if any(type(parameter).__name__ == "DTensor" for parameter in parameters):
            self._leave("the parameters are sharded")  # each rank would see its own gradients, and skip other steps
            return
        for parameter in parameters:
            if parameter.requires_grad and id(parameter) not in self._hooked:
                self._hooked.add(id(parameter))
                parameter.register_hook(self._divided)

    def _divided(self, gradient: Any) -> Any:
        if not self.scaler.is_active:
            return gradient
        return gradient * (1.0 / self.scaler.scale)

    def _hook_step(self, kind: Any) -> None:
        original = kind.step
        if getattr(original, "_flatout_scales", False):
            return

        @wraps(original)
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if self.is_off or not self.has_forward or args or kwargs:  # a closure runs its own passes
                return original(optimizer, *args, **kwargs)
            is_finite = self.report.guarded(_is_finite)(optimizer)
            if is_finite is None:
                return original(optimizer)
            self.scaler.judge(is_finite=is_finite)
            if not is_finite:
                return None
            self.report.did("steps")
            return original(optimizer)

        step._flatout_scales = True  # type: ignore[attr-defined]
        kind.step = step

    def yield_to_scalers(self) -> None:
        kind = torch.amp.grad_scaler.GradScaler
        original = kind.scale

        @wraps(original)
        def scale(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            if scaler.is_enabled() and not self.is_off:
                self._leave("the script scales its losses itself")
            return original(scaler, *args, **kwargs)

        kind.scale = scale


def _is_finite(optimizer: Any) -> bool:
    """Whether all gradients of the optimizer are finite: one number comes from the device."""
    by_place: dict[Any, list[Any]] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is not None:
                gradient = gradient.coalesce()._values() if gradient.is_sparse else gradient
                by_place.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    for gradients in by_place.values():
        # The largest magnitude is finite if all are, and cannot overflow, as a sum of squares can.
        norms = torch._foreach_norm(gradients, float("inf"))
        if not bool(torch.stack(list(norms)).isfinite().all()):
            return False
    return True


def _listed(tensors: Any) -> list[Any]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
