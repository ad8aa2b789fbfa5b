"""The norms of the first steps' gradients, as each optimizer is about to use them, where a trial asks for them.

With FLATOUT_GRADIENTS=1: of each optimizer's first `NUM_STEPS` steps, before step times have settled, the L2 norm of
each parameter's gradient. Wrong gradients show in them at once, also where the learning rate is still near 0 and no
loss could tell. Norms stay on their device until the process ends; nothing waits for them, and no random number is
drawn. A parameter without a gradient has the norm 0, as one with zeros has. Out: `gradients-rank<R>.json`.

A step is unknown (null) where a GradScaler left it out, where a gradient is sparse, of a tensor class that only a
library knows or not reduced yet (DTensor's Partial), and inside the capture of a CUDA graph. Of a fused optimizer that
is to undo a GradScaler's scale, that scale is divided out. What the script does to gradients before the step is in
them. Where it clips by `torch.nn.utils.clip_grad_norm_`, the norms that they had before are there beside
(`clipping.py`); null: nothing was clipped, or it is not known.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

import torch

from flatout.inside.checks.clipping import ClippedGradients
from flatout.inside.checks.norms import is_sharded, norm_of
from flatout.inside.log import LOG
from flatout.inside.protocol import File
from flatout.inside.recording.step_rows import json_number

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
    unclipped: list[tuple[list[int], torch.Tensor]] | None  # before clipping; None: nothing was clipped, or not known
    found_inf: torch.Tensor | None  # of a GradScaler, for a fused optimizer: not 0 where it will change nothing

    def fetch(self) -> tuple[list[float] | None, list[float] | None]:
        """Of each parameter, as used and before clipping; with a synchronisation."""
        if self.found_inf is not None and float(self.found_inf.item()):
            return None, None
        return self._spread_out(self.parts), None if self.unclipped is None else self._spread_out(self.unclipped)

    def _spread_out(self, parts: list[tuple[list[int], torch.Tensor]]) -> list[float]:
        norms = [0.0] * self.num_parameters
        for places, values in parts:
            for place, value in zip(places, values.tolist(), strict=True):
                norms[place] = value
        return norms


class _Part(NamedTuple):
    """Of the parameters on one device and of one type."""

    places: list[int]
    norms: list[torch.Tensor]
    unclipped: list[torch.Tensor]


class _OptimizerNorms:
    """One optimizer."""

    def __init__(self, optimizer: object) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.steps: list[_Norms | None] = []


class GradientRecorder:
    """`before_step` and `skipped` when it happens, `write` at the end."""

    def __init__(self, warmup: int | None) -> None:
        """`warmup`: after how many steps step times count; None: when they have settled, which takes ten or more."""
        self.is_over = False  # step times count from now on
        self._num_steps = NUM_STEPS if warmup is None else min(NUM_STEPS, warmup + 1)
        self._watched: list[_OptimizerNorms] = []
        self._by_id: dict[int, _OptimizerNorms] = {}
        self._clipping = ClippedGradients()

    def clips(self, parameters: Sequence[Any]) -> bool:
        """Their gradients are about to be clipped: whether `clipped` is to follow."""
        if self.is_over or (self._watched and all(len(one.steps) >= self._num_steps for one in self._watched)):
            return False
        return self._guarded(lambda: self._clipping.begins(parameters))

    def clipped(self) -> None:
        self._guarded(self._clipping.ended)

    def unscales(self, optimizer: Any) -> None:
        """A GradScaler is about to change the optimizer's gradients, which no tensor counts."""
        if not self.is_over:
            self._guarded(lambda: self._clipping.forget(_parameters(optimizer)))

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
            fetched = [(None, None) if norms is None else norms.fetch() for norms in steps]
            made.append(
                {
                    "num_parameters": counts[0] if counts else None,
                    # Of all steps: one that has no gradient in the first may get one later.
                    "sharded": sorted({place for norms in known for place in norms.sharded}),
                    "steps": [_numbers(used) for used, _ in fetched],
                    "unclipped": [_numbers(unclipped) for _, unclipped in fetched],
                }
            )
        content = {"schema": SCHEMA, "version": VERSION, "rank": rank, "optimizers": made}
        (folder / File.GRADIENTS.of(rank)).write_text(
            json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8"
        )

    def _watch(self, optimizer: object) -> _OptimizerNorms | None:
        if self.is_over:
            return None
        watched = self._by_id.get(id(optimizer))
        if watched is None or watched.optimizer() is not optimizer:  # the next one may have the same address
            if len(self._watched) == _MAX_OPTIMIZERS:
                return None
            watched = self._by_id[id(optimizer)] = _OptimizerNorms(optimizer)
            self._watched.append(watched)
        return watched if len(watched.steps) < self._num_steps else None

    def _measured(self, closure: Callable[..., Any], watched: _OptimizerNorms, optimizer: Any) -> Callable[..., Any]:
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

    def _measure(self, watched: _OptimizerNorms, optimizer: Any) -> None:
        def measure() -> None:
            with torch.no_grad():
                watched.steps.append(_norms(optimizer, self._clipping))

        self._guarded(measure)

    def _guarded(self, measure: Callable[[], None]) -> bool:
        try:
            measure()
        except Exception:  # noqa: BLE001 - an error of ours is never the job's, and one is enough
            self.is_over = True
            LOG.error("gradients")
        return not self.is_over


def _norms(optimizer: Any, clipping: ClippedGradients) -> _Norms | None:
    """Of the gradients that are there now, without a synchronisation; None: not known."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return None
    scale = getattr(optimizer, "grad_scale", None)
    if scale is not None and not isinstance(scale, torch.Tensor):
        return None
    parameters = _parameters(optimizer)
    sharded, is_clipped, is_known = [], False, True
    parts: dict[tuple[torch.device, torch.dtype], _Part] = {}
    for place, parameter in enumerate(parameters):
        gradient = parameter.grad
        if is_sharded(parameter if gradient is None else gradient) or getattr(parameter, _FSDP1, False):
            sharded.append(place)  # also where this rank's part has no gradient, and those of others have
        if gradient is None:
            continue
        norm = norm_of(gradient)
        if norm is None:
            return None
        was_clipped, before = clipping.take(gradient)
        is_clipped, is_known = is_clipped or was_clipped, is_known and (before is not None or not was_clipped)
        part = parts.setdefault((norm.device, norm.dtype), _Part([], [], []))
        part.places.append(place)
        part.norms.append(norm)
        part.unclipped.append(norm if before is None else before)
    together = [(part.places, _stacked(part.norms, scale)) for part in parts.values()]
    unclipped = [(part.places, _stacked(part.unclipped, scale)) for part in parts.values()]
    found_inf = getattr(optimizer, "found_inf", None)
    flag = found_inf.detach().clone() if isinstance(found_inf, torch.Tensor) else None
    return _Norms(len(parameters), sharded, together, unclipped if is_clipped and is_known else None, flag)


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _stacked(norms: list[torch.Tensor], scale: torch.Tensor | None) -> torch.Tensor:
    """`scale`: of a GradScaler, where the step itself divides by it."""
    stacked = torch.stack(norms)
    return stacked if scale is None else stacked / scale.to(stacked.device, non_blocking=True)


def _numbers(norms: list[float] | None) -> list[float | str | None] | None:
    return None if norms is None else [json_number(float(f"{norm:.{_DIGITS}g}")) for norm in norms]
