"""The norms of the first steps' gradients, as each optimizer is about to use them, where a trial asks for them.

With FLATOUT_GRADIENTS=1: of each optimizer's first `NUM_STEPS` steps, before step times have settled, the L2 norm of
each parameter's gradient. Wrong gradients show in them at once, also where the learning rate is still near 0 and no
loss could tell. Norms stay on their device until the process ends; nothing waits for them, and no random number is
drawn. A parameter without a gradient has the norm 0, as one with zeros has. Out: `gradients-rank<R>.json`.

A step is unknown (null) where a GradScaler left it out, where a gradient is sparse, of a tensor class that only a
library knows or not reduced yet (DTensor's Partial), and inside the capture of a CUDA graph. Of a fused optimizer that
is to undo a GradScaler's scale, that scale is divided out. What the script does to gradients before the step is in
them: where it clips, the scale that they had is not.
"""

from __future__ import annotations

import json
import math
import weakref
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import torch

from flatout.inside.log import LOG
from flatout.inside.step_rows import json_number

SCHEMA, VERSION = "flatout/gradients", 1
NUM_STEPS = 5
_MAX_OPTIMIZERS = 16  # one for each layer, or for each parameter, may be hundreds
_DIGITS = 8
# How FullyShardedDataParallel marks parameters that it shards by plain tensors (torch.distributed.fsdp._common_utils).
_FSDP1 = "_fsdp_flattened"
_Changed = tuple[tuple[Any, ...], dict[str, Any]]


class _Norms(NamedTuple):
    """Of one step."""

    num_parameters: int
    sharded: list[int]  # parameters of which each rank holds a part
    parts: list[tuple[list[int], torch.Tensor]]  # which parameters, and their norms: one for each device and type
    found_inf: torch.Tensor | None  # of a GradScaler, for a fused optimizer: not 0 where it will change nothing

    def fetch(self) -> list[float] | None:
        """With a synchronisation."""
        if self.found_inf is not None and float(self.found_inf.item()):
            return None
        norms = [0.0] * self.num_parameters
        for places, values in self.parts:
            for place, value in zip(places, values.tolist(), strict=True):
                norms[place] = value
        return norms


class _Watched:
    """One optimizer."""

    def __init__(self, optimizer: object) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.steps: list[_Norms | None] = []


class Gradients:
    """`before_step` and `skipped` when it happens, `write` at the end."""

    def __init__(self, warmup: int | None) -> None:
        """`warmup`: after how many steps step times count; None: when they have settled, which takes ten or more."""
        self.is_over = False  # step times count from now on
        self._num_steps = NUM_STEPS if warmup is None else min(NUM_STEPS, warmup + 1)
        self._watched: list[_Watched] = []
        self._by_id: dict[int, _Watched] = {}

    def before_step(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Changed | None:
        """A hook of torch's, before the step: other arguments where it is given a closure, which makes the gradients.

        `args` begins with the optimizer.
        """
        watched = self._watch(optimizer)
        if watched is None:
            return None
        if "grad_scaler" in kwargs:  # the step itself unscales
            watched.steps.append(None)
            return None
        is_named = "closure" in kwargs
        closure = kwargs["closure"] if is_named else args[1] if len(args) > 1 else None
        if not callable(closure):
            self._measure(watched, optimizer)
            return None
        measured = self._measured(closure, watched, optimizer)
        return (args, {**kwargs, "closure": measured}) if is_named else ((args[0], measured, *args[2:]), kwargs)

    def skipped(self, optimizer: object) -> None:
        """A GradScaler has left the optimizer's step out."""
        if (watched := self._watch(optimizer)) is not None:
            watched.steps.append(None)

    def write(self, folder: Path, rank: int) -> None:
        """All that was measured. Only when the device has done its work: it waits for it."""
        if not self._watched:
            return
        made = []
        for watched in self._watched:
            counts = [norms.num_parameters for norms in watched.steps if norms is not None]
            # Places of parameters are of the first step's: groups may be added, or stepped one by one (DeepSpeed).
            steps = [one if one is not None and one.num_parameters == counts[0] else None for one in watched.steps]
            known = [norms for norms in steps if norms is not None]
            fetched = [None if norms is None else norms.fetch() for norms in steps]
            made.append(
                {
                    "num_parameters": counts[0] if counts else None,
                    # Of all steps: one that has no gradient in the first may get one later.
                    "sharded": sorted({place for norms in known for place in norms.sharded}),
                    "steps": [None if one is None else [_number(norm) for norm in one] for one in fetched],
                }
            )
        content = {"schema": SCHEMA, "version": VERSION, "rank": rank, "optimizers": made}
        (folder / f"gradients-rank{rank}.json").write_text(
            json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8"
        )

    def _watch(self, optimizer: object) -> _Watched | None:
        if self.is_over:
            return None
        watched = self._by_id.get(id(optimizer))
        if watched is None or watched.optimizer() is not optimizer:  # the next one may have the same address
            if len(self._watched) == _MAX_OPTIMIZERS:
                return None
            watched = self._by_id[id(optimizer)] = _Watched(optimizer)
            self._watched.append(watched)
        return watched if len(watched.steps) < self._num_steps else None

    def _measured(self, closure: Callable[..., Any], watched: _Watched, optimizer: Any) -> Callable[..., Any]:
        is_done = False

        @wraps(closure)
        def measured(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_done
            result = closure(*args, **kwargs)
            if not is_done:  # L-BFGS calls it more than once a step
                is_done = True
                self._measure(watched, optimizer)
            return result

        return measured

    def _measure(self, watched: _Watched, optimizer: Any) -> None:
        try:
            with torch.no_grad():
                watched.steps.append(_norms(optimizer))
        except Exception:  # noqa: BLE001 - an error of ours is never the job's, and one is enough
            self.is_over = True
            LOG.error("gradients")


def _norms(optimizer: Any) -> _Norms | None:
    """Of the gradients that are there now, without a synchronisation; None: not known."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return None
    scale = getattr(optimizer, "grad_scale", None)
    if scale is not None and not isinstance(scale, torch.Tensor):
        return None
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    sharded = []
    parts: dict[tuple[torch.device, torch.dtype], tuple[list[int], list[torch.Tensor]]] = {}
    for place, parameter in enumerate(parameters):
        gradient = parameter.grad
        if _is_sharded(parameter if gradient is None else gradient) or getattr(parameter, _FSDP1, False):
            sharded.append(place)  # also where this rank's part has no gradient, and those of others have
        if gradient is None:
            continue
        num_replicas = 1
        if hasattr(gradient, "placements"):
            if any(placement.is_partial() for placement in gradient.placements):
                return None
            if _is_sharded(gradient):
                num_replicas = _num_replicas(gradient)
            gradient = gradient.to_local()
        if type(gradient) is not torch.Tensor or gradient.layout is not torch.strided:
            return None
        is_short = gradient.is_floating_point() and gradient.element_size() < 4
        norm = torch.linalg.vector_norm(gradient, dtype=torch.float32 if is_short else None)
        if num_replicas > 1:
            norm = norm / math.sqrt(num_replicas)  # so that the squares of all ranks sum to that of the whole
        places, norms = parts.setdefault((norm.device, norm.dtype), ([], []))
        places.append(place)
        norms.append(norm)
    together = [(places, torch.stack(norms)) for places, norms in parts.values()]
    if scale is not None:
        together = [(places, norms / scale.to(norms.device, non_blocking=True)) for places, norms in together]
    found_inf = getattr(optimizer, "found_inf", None)
    flag = found_inf.detach().clone() if isinstance(found_inf, torch.Tensor) else None
    return _Norms(len(parameters), sharded, together, flag)


def _is_sharded(tensor: Any) -> bool:
    """Of a DTensor: whether each rank holds a part."""
    return not all(placement.is_replicate() for placement in getattr(tensor, "placements", ()))


def _num_replicas(gradient: Any) -> int:
    """How often each part of a DTensor is there: as with hybrid sharding."""
    sizes = [gradient.device_mesh.size(dim) for dim, one in enumerate(gradient.placements) if one.is_replicate()]
    return math.prod(sizes)


def _number(norm: float) -> float | str | None:
    return json_number(float(f"{norm:.{_DIGITS}g}"))
