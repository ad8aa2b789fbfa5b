"""Collect and restore the training state: model, optimizers, scheduler, data position, random state, user objects.

In: the live objects. Out: `Collected`, with tensors by name and everything else as JSON; and the way back, `restore`.
Names are those of the model without its wrappers (DDP, torch.compile, activation checkpointing), so that a checkpoint
fits the same model in different wrappers.

Optimizers are read and set directly, by their parameters' names. torch's own `get_optimizer_state_dict` makes a step
with zero gradients if there is no state yet: Adam's step count is then 1, which changes the training.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import torch

from flatout.checkpoint.gradient_hooks import hook_states, loss_scale, restore_hooks, restore_loss_scale
from flatout.checkpoint.gradients import set_gradients, waiting_gradients
from flatout.checkpoint.loader_random import restore_after_next_iterator
from flatout.checkpoint.problems import CheckpointError, as_damage
from flatout.checkpoint.values import decode, encode, numpy

_RECORD = "its record of the training"
_T = TypeVar("_T")
_WRAPPERS = {"_orig_mod", "_checkpoint_wrapped_module"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingState:
    """The live objects, by their names in a checkpoint."""

    model: Any
    optimizers: Mapping[str, Any] = field(default_factory=dict)
    stateful: Mapping[str, Any] = field(default_factory=dict)  # scheduler, data, and the user's own objects


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    # of the model and the optimizers; other ranks have the same names, or parts of the tensors
    tensors: dict[str, torch.Tensor]
    parameters: set[str]  # names of tensors that only optimizer steps change: equal on all ranks that have them
    own: dict[str, torch.Tensor]  # tensors in this rank's values
    values: dict[str, Any]  # JSON, of this rank


def check(training: TrainingState) -> None:
    """Refuse objects that cannot be saved, before the first step rather than after the first hour."""
    for module in training.model.modules():
        if type(module).__name__ == "FullyShardedDataParallel":
            raise CheckpointError(
                "the model is wrapped in FullyShardedDataParallel, whose flat parameters lack their own names",
                hint="use torch.distributed.fsdp.fully_shard instead (FSDP2)",
            )
    for name, value in training.stateful.items():
        if not (hasattr(value, "state_dict") and hasattr(value, "load_state_dict")):
            raise CheckpointError(
                f"`{name}` is a {type(value).__qualname__} without state_dict() and load_state_dict()",
                hint="pass an object that has both, or omit it",
            )


def collect(training: TrainingState) -> Collected:
    """Return references to the live tensors; nothing is copied yet."""
    tensors: dict[str, torch.Tensor] = {}
    own: dict[str, torch.Tensor] = {}
    values: dict[str, Any] = {"model": {}, "optimizers": {}, "stateful": {}}
    for name, value in training.model.state_dict().items():
        clean = f"model.{_clean(name, training.model)}"
        if isinstance(value, torch.Tensor):
            tensors[clean] = value.detach()
        else:
            values["model"][clean.removeprefix("model.")] = encode(value, clean, own)
    names = _parameter_names(training.model)
    parameters = {f"model.{name}" for name in names.values()}
    for name, optimizer in training.optimizers.items():
        state, groups = _optimizer_state(optimizer, name, names)
        tensors |= state
        parameters |= set(state)
        values["optimizers"][name] = {
            "groups": encode(groups, name, own),
            "state": _optimizer_values(optimizer, name, names, own),
        }
    for name, value in training.stateful.items():
        values["stateful"][name] = encode(value.state_dict(), name, own)
    waiting = waiting_gradients(training.optimizers.values(), names)
    if waiting:
        values["gradients"] = encode(waiting, "gradients", own)
    hooks = hook_states(training.model, _clean)
    if hooks:
        values["gradient_hooks"] = encode(hooks, "gradient_hooks", own)
    scale = loss_scale(training.model)
    if scale is not None:
        values["loss_scale"] = encode(scale, "loss_scale", own)
    values["random"] = encode(_random_state(), "random", own)
    return Collected(tensors=tensors, parameters=parameters, own=own, values=values)


def model_tensors(training: TrainingState) -> dict[str, torch.Tensor]:
    """Return the model's live tensors by their names in a checkpoint."""
    return {
        f"model.{_clean(name, training.model)}": value.detach()
        for name, value in training.model.state_dict().items()
        if isinstance(value, torch.Tensor)
    }


def destinations(training: TrainingState, saved: Mapping[str, Mapping[str, Any]]) -> dict[str, torch.Tensor]:
    """Return the tensor into which each saved tensor is read: the model's memory, or new tensors for the optimizers.

    `saved` gives the shape, the dtype and the device of each tensor by name. Raise CheckpointError if the model or an
    optimizer differs from the saved one.
    """
    found = model_tensors(training)
    _compare("the model", set(found), {name for name in saved if name.startswith("model.")})
    for name, tensor in found.items():
        if list(tensor.shape) != list(saved[name]["shape"]):
            raise CheckpointError(
                f"`{name}` has the shape {list(saved[name]['shape'])} in the checkpoint"
                f" and {list(tensor.shape)} in the model",
                hint="build the model as it was saved, or use another folder",
            )
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype != saved[name]["dtype"]:
            raise CheckpointError(
                f"`{name}` is {saved[name]['dtype']} in the checkpoint and {dtype} in the model",
                hint="build the model as it was saved, convert it after resume(), or use another folder",
            )
    names = _parameter_names(training.model)
    entries = _by_parameter(saved)
    for name, optimizer in training.optimizers.items():
        for parameter, of in _optimizer_parameters(optimizer, names):
            for key, one in entries.get(f"{name}.{of}", {}).items():
                found[f"{name}.{of}.{key}"] = _like(parameter, one)
    unknown = set(saved) - set(found)
    optimizers = {name.split(".")[0] for name in unknown} & set(training.optimizers)
    if optimizers:
        _compare(f"`{min(optimizers)}`", set(found), set(saved))
    return found


def restore(
    training: TrainingState,
    values: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    *,
    is_own: bool,
    has_gradients: bool,
) -> None:
    """Restore the state that was not read in place.

    `is_own`: the values are this rank's, so its random state is restored too. `tensors` has the tensors of
    `destinations` and those in the values.
    """
    with as_damage(_RECORD):
        model_values = {_dirty(name, training.model): decode(value, tensors) for name, value in values["model"].items()}
    if model_values:
        training.model.load_state_dict(model_values, strict=False)
    names = _parameter_names(training.model)
    with as_damage(_RECORD):
        for name, optimizer in training.optimizers.items():
            saved = values["optimizers"].get(name)
            if saved is None:
                raise _missing(name)
            _restore_optimizer(optimizer, name, names, saved, tensors)
    for name, value in training.stateful.items():
        with as_damage(_RECORD):
            if name not in values["stateful"]:
                raise _missing(name)
            state = decode(values["stateful"][name], tensors)
        value.load_state_dict(state)  # the user's code: its errors are not those of the checkpoint
    with as_damage(_RECORD):
        hooks = decode(values.get("gradient_hooks", {}), tensors)
        scale = decode(values.get("loss_scale"), tensors)
    restore_hooks(training.model, hooks, _clean, is_own=is_own)
    restore_loss_scale(training.model, scale)
    if not is_own:
        return
    with as_damage(_RECORD):
        gradients = decode(values.get("gradients", {}), tensors) if has_gradients else {}
        set_gradients(((names[id(one)], one) for one in training.model.parameters() if id(one) in names), gradients)
        random_state = decode(values["random"], tensors)
        _set_random_state(random_state)
    if "data" in training.stateful:
        restore_after_next_iterator(training.stateful["data"], partial(_set_random_state, random_state))


def _missing(name: str) -> CheckpointError:
    return CheckpointError(f"the checkpoint has no `{name}`", hint="it was saved without it; use another folder")


def _clean(name: str, model: Any) -> str:
    parts = name.split(".")
    while _is_wrapper(model) and parts and parts[0] in {"module", *_WRAPPERS}:
        model = getattr(model, parts.pop(0))
    return ".".join(part for part in parts if part not in _WRAPPERS)


def _dirty(clean: str, model: Any) -> str:
    names: Iterable[str] = model.state_dict()
    return next(name for name in names if _clean(name, model) == clean)


def _is_wrapper(model: Any) -> bool:
    return type(model).__name__ in {"DistributedDataParallel", "DataParallel", "OptimizedModule"}


def _parameter_names(model: Any) -> dict[int, str]:
    return {id(parameter): _clean(name, model) for name, parameter in model.named_parameters()}


def _optimizer_parameters(optimizer: Any, names: Mapping[int, str]) -> list[tuple[Any, str]]:
    return [
        (parameter, names.get(id(parameter), f"group{group}_{place}"))
        for group, given in enumerate(optimizer.param_groups)
        for place, parameter in enumerate(given["params"])
    ]


def _optimizer_state(
    optimizer: Any, name: str, names: Mapping[int, str]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the optimizer's tensors by name, and its groups with the names of their parameters."""
    tensors = {
        f"{name}.{of}.{key}": value.detach()
        for parameter, of in _optimizer_parameters(optimizer, names)
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, torch.Tensor)
    }
    groups = []
    for place, group in enumerate(optimizer.param_groups):
        options = {key: value for key, value in group.items() if key != "params"}
        of = [names.get(id(one), f"group{place}_{number}") for number, one in enumerate(group["params"])]
        groups.append({"options": options, "params": of})
    return tensors, groups


def _optimizer_values(optimizer: Any, name: str, names: Mapping[int, str], own: dict[str, torch.Tensor]) -> Any:
    """Return the values of an optimizer's state that are not tensors: one entry per parameter with a state."""
    return {
        of: {
            key: encode(value, f"{name}.{of}.{key}", own)
            for key, value in optimizer.state[parameter].items()
            if not isinstance(value, torch.Tensor)
        }
        for parameter, of in _optimizer_parameters(optimizer, names)
        if parameter in optimizer.state
    }


def _restore_optimizer(
    optimizer: Any, name: str, names: Mapping[int, str], saved: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
) -> None:
    groups = decode(saved["groups"], tensors)
    _, present = _optimizer_state(optimizer, name, names)
    if [group["params"] for group in groups] != [group["params"] for group in present]:
        raise CheckpointError(
            f"`{name}` has different parameters or groups than when it was saved",
            hint="build it as it was saved, or use another folder",
        )
    for group, given in zip(optimizer.param_groups, groups, strict=True):
        group.update(given["options"])
    optimizer.state.clear()
    entries = _by_parameter(tensors)
    for parameter, of in _optimizer_parameters(optimizer, names):
        state: dict[str, Any] = dict(entries.get(f"{name}.{of}", {}))
        if of in saved["state"]:
            state |= {key: decode(value, tensors) for key, value in saved["state"][of].items()}
        if state:
            optimizer.state[parameter] = state


def _like(parameter: torch.Tensor, saved: Mapping[str, Any]) -> torch.Tensor:
    """Return an empty tensor for this entry of the state, sharded and placed like the parameter if shapes agree."""
    dtype = getattr(torch, saved["dtype"])
    if list(saved["shape"]) == list(parameter.shape) and parameter.dim() > 0:
        return torch.empty_like(parameter.detach(), dtype=dtype)
    return torch.empty(saved["shape"], dtype=dtype, device="cpu" if saved["device"] == "cpu" else parameter.device)


def _by_parameter(tensors: Mapping[str, _T]) -> dict[str, dict[str, _T]]:
    """Group tensors by parameter: `optimizer.fc.weight.exp_avg` -> `optimizer.fc.weight`: {`exp_avg`: ..}."""
    found: dict[str, dict[str, _T]] = {}
    for name, tensor in tensors.items():
        parameter, _, key = name.rpartition(".")
        found.setdefault(parameter, {})[key] = tensor
    return found


def _compare(what: str, present: set[str], saved: set[str]) -> None:
    for names, has, lacks in (
        (present - saved, what, "the checkpoint"),
        (saved - present, "the checkpoint", what),
    ):
        if names:
            more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            raise CheckpointError(
                f"{has} has `{min(names)}`{more}, which {lacks} does not have",
                hint="build the training as it was saved, or use another folder",
            )


def _random_state() -> dict[str, Any]:
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        state["numpy"] = numpy().random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: Mapping[str, Any]) -> None:
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        numpy().random.set_state(state["numpy"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
