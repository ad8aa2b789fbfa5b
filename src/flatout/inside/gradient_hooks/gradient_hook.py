"""What all hooks share: a bucket's gradients with their parameters' names, the plain reduction, and the saved state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from flatout.inside.gradient_hooks.lane import lane_of

_WRAPPERS = {"_orig_mod", "_checkpoint_wrapped_module"}


@dataclass(frozen=True, slots=True)
class Gradient:
    """One parameter's gradient: views into its bucket."""

    name: str
    parameter: torch.Tensor
    values: torch.Tensor  # in the parameter's shape
    entries: torch.Tensor  # the same, in one dimension, in the order of memory


def gradients_of(buffer: torch.Tensor, views: Iterable[tuple[str, torch.Tensor, torch.Tensor]]) -> list[Gradient]:
    """Return the gradients in a buffer, given each one's name, parameter and view."""
    gradients = []
    for name, parameter, values in views:
        place = values.storage_offset() - buffer.storage_offset()
        gradients.append(Gradient(name, parameter, values, buffer[place : place + values.numel()]))
    return gradients


class GradientHook:
    """The state of a hook: what it keeps between steps, and how it reduces a bucket."""

    kind = ""

    def __init__(self, ddp: Any) -> None:
        self._lane = lane_of(ddp)
        self.group = self._lane.group
        self.world_size = dist.get_world_size(self.group)
        self.num_steps = 0
        self._names = {id(parameter): _own_name(name) for name, parameter in ddp.module.named_parameters()}

    def __deepcopy__(self, memo: Any) -> None:
        """A copied model has no hook: a hook belongs to one reducer."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    def run(self, bucket: Any) -> Any:
        """Begin to reduce a bucket of DDP's, and return the future of its buffer."""
        buffer = bucket.buffer()
        step = self.num_steps
        self.num_steps += bool(bucket.is_last())
        is_plain = buffer.dtype != torch.float32 or buffer.layout != torch.strided
        if is_plain or self.is_plain_step(step):
            return self._lane.run(buffer, lambda: self.reduce_plainly(buffer))
        parameters = bucket.parameters()
        names = [self._names[id(parameter)] for parameter in parameters]
        gradients = gradients_of(buffer, zip(names, parameters, bucket.gradients(), strict=True))
        return self._lane.run(buffer, lambda: self.reduce(buffer, gradients))

    def is_plain_step(self, step: int) -> bool:
        """Whether this step, from 0, is reduced without compression."""
        del step
        return False

    def reduce_plainly(self, buffer: torch.Tensor) -> None:
        buffer.div_(self.world_size)
        dist.all_reduce(buffer, group=self.group)

    def reduce(self, buffer: torch.Tensor, gradients: list[Gradient]) -> None:
        """Replace the gradients by their mean over the ranks. `buffer` holds all of them."""
        raise NotImplementedError

    def remove(self) -> None:
        """Take back what the hook does outside of the reducer."""

    def state_dict(self) -> dict[str, Any]:
        """Return what the next steps need: `shared` is equal on all ranks, `own` is this rank's."""
        return {"kind": self.kind, "shared": {"num_steps": self.num_steps}, "own": {}}

    def load_state_dict(self, state: Mapping[str, Any], *, is_own: bool = True) -> None:
        """Restore a saved state. Without `is_own` it is another rank's, whose part is not taken.

        Raise ValueError if the state is another kind of hook's.
        """
        if state["kind"] != self.kind:
            raise ValueError(f"the state is that of a hook `{state['kind']}`, and this is `{self.kind}`")
        self.num_steps = state["shared"]["num_steps"]
        self.load_shared(state["shared"])
        if is_own:
            self.load_own(state["own"])

    def load_shared(self, shared: Mapping[str, Any]) -> None:
        del shared

    def load_own(self, own: Mapping[str, Any]) -> None:
        del own


def _own_name(name: str) -> str:
    """Return a parameter's name without the wrappers that another run of the same training may lack."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def annotate(hook: Any) -> Any:
    """Give a hook the annotations that DDP checks, as classes: those of this package's modules are text."""
    hook.__annotations__ = {"bucket": dist.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    return hook


def all_gather(output: torch.Tensor, own: torch.Tensor, *, group: Any) -> None:
    """Gather the tensors of all ranks into one, by the name that this torch does not warn about."""
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(output, own, group=group)


def finite(error: torch.Tensor) -> torch.Tensor:
    """Set entries that are not finite to zero, in place: an overflow that a scaler skips must not stay for good."""
    return error.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
