"""Save and restore what hooks that compress gradients keep between steps, such as what they did not send.

In: a model whose modules hold the hook of their DistributedDataParallel under `GRADIENT_HOOK`. Out: the states by the
module's name. A hook is put on at the first forward, so a state that is restored before waits on the module. Hooks that
a script registers itself are not saved.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from flatout.inside.protocol import GRADIENT_HOOK, GRADIENT_HOOK_STATE, LOSS_SCALE

LOG = logging.getLogger("flatout.checkpoint")
CleanName = Callable[[str, Any], str]
_HOLDS = {"DistributedDataParallel": "module", "DataParallel": "module", "OptimizedModule": "_orig_mod"}


def hook_states(model: Any, clean_name: CleanName) -> dict[str, Any]:
    """Return the states of the hooks in this model by the name of their module without the model's wrappers."""
    return {
        clean_name(name, model): hook.state_dict()
        for name, module in model.named_modules()
        if (hook := module.__dict__.get(GRADIENT_HOOK)) is not None
    }


def restore_hooks(model: Any, states: Mapping[str, Any], clean_name: CleanName, *, is_own: bool) -> None:
    """Give the hooks these states. Without `is_own` they are another rank's, whose errors are not taken."""
    modules = {clean_name(name, model): module for name, module in model.named_modules()}  # the innermost of a name
    for name, state in states.items():
        module = modules.get(name)
        if module is None:
            continue
        hook = module.__dict__.get(GRADIENT_HOOK)
        if hook is None:
            module.__dict__[GRADIENT_HOOK_STATE] = (state, is_own)
            continue
        try:
            hook.load_state_dict(state, is_own=is_own)
        except ValueError as error:
            LOG.warning("flatout.checkpoint: a hook on the gradients starts without its state: %s", error)


def loss_scale(model: Any) -> dict[str, Any] | None:
    """Return the scale of this model's losses; None if they are not scaled."""
    for module in model.modules():
        state = module.__dict__.get(LOSS_SCALE)
        if state is not None:
            return dict(state)
    return None


def restore_loss_scale(model: Any, state: Mapping[str, Any] | None) -> None:
    """Give the model the scale of its losses: its first forward pass in fp16 takes it over."""
    if state is None:
        return
    holders = [module for module in model.modules() if LOSS_SCALE in module.__dict__]
    for module in holders or [_innermost(model)]:
        module.__dict__.setdefault(LOSS_SCALE, {}).update(state)


def _innermost(model: Any) -> Any:
    """Return the model that a wrapper such as DistributedDataParallel holds."""
    while (name := _HOLDS.get(type(model).__name__)) is not None:
        model = getattr(model, name)
    return model
