"""Measure the norms of the first steps' gradients, just before each optimizer uses them, if a trial requests them.

In: FLATOUT_GRADIENTS=1, and optimizers before each step. Out: `gradients-rank<R>.json`, the L2 norm of each parameter's
gradient in the first `NUM_STEPS` steps of each optimizer, before the warm-up is over. Wrong gradients affect the norms
at once, even if the learning rate is still near 0 and the loss is unaffected. Norms stay on their device until the
process ends; nothing waits for them, and no random numbers are drawn. A parameter without a gradient has the norm 0,
just like a parameter whose gradient is zero.

The norms of a step are unknown (null) if a GradScaler skipped the step, if a gradient is sparse, not reduced yet
(DTensor's Partial) or of a tensor class that only a library knows, and during the capture of a CUDA graph. If a fused
optimizer has to undo a GradScaler's scale, the norms are divided by that scale. They include what the script does to
gradients before the step. If the script clips with `torch.nn.utils.clip_grad_norm_`, the norms before clipping are also
written (`clipping.py`); null if nothing was clipped, or if they are unknown. The state in which each optimizer began
(`start_state.py`) is written too.
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
from flatout.inside.checks.start_state import start_state
from flatout.inside.live_objects import parameters_of
from flatout.inside.log import LOG
from flatout.inside.protocol import File
from flatout.inside.recording.step_rows import json_number

SCHEMA, VERSION = "flatout/gradients", 1
NUM_STEPS = 5
_MAX_OPTIMIZERS = 16  # a script with an optimizer per layer or per parameter can have hundreds
_DIGITS = 8
# The attribute by which FullyShardedDataParallel marks the parameters that it shards as plain tensors
# (torch.distributed.fsdp._common_utils).
_FSDP1 = "_fsdp_flattened"
_Changed = tuple[tuple[Any, ...], dict[str, Any]]


_NormsOfSome = tuple[list[int], torch.Tensor]  # positions of parameters, and their norms


class _StepNorms(NamedTuple):
    """The norms of one step."""

    num_parameters: int
    sharded: list[int]  # positions of the sharded parameters: each rank holds a part
    used: list[_NormsOfSome]  # the norms as used, one entry for each device and type
    unclipped: list[_NormsOfSome] | None  # the norms before clipping; None: nothing was clipped, or unknown
    found_inf: torch.Tensor | None  # a GradScaler's flag for a fused optimizer: not 0 if the step will change nothing

    def fetch(self) -> tuple[list[float] | None, list[float] | None]:
        """Return the norm of each parameter, as used and before clipping; this synchronizes with the device."""
        if self.found_inf is not None and float(self.found_inf.item()):
            return None, None
        unclipped = None if self.unclipped is None else self._by_parameter(self.unclipped)
        return self._by_parameter(self.used), unclipped

    def _by_parameter(self, parts: list[_NormsOfSome]) -> list[float]:
        norms = [0.0] * self.num_parameters
        for positions, values in parts:
            for position, value in zip(positions, values.tolist(), strict=True):
                norms[position] = value
        return norms


class _SameKind(NamedTuple):
    """The gradients on one device and of one type."""

    positions: list[int]
    norms: list[torch.Tensor]
    unclipped: list[torch.Tensor]


class _OptimizerNorms:
    """The norms of one optimizer's steps."""

    def __init__(self, optimizer: object) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.steps: list[_StepNorms | None] = []
        self.start = _start(optimizer)

    def as_json(self) -> dict[str, Any]:
        counts = [norms.num_parameters for norms in self.steps if norms is not None]
        # Positions are those of the first step, as groups can be added later, or stepped one by one (DeepSpeed).
        steps = [norms if norms is not None and norms.num_parameters == counts[0] else None for norms in self.steps]
        measured = [norms for norms in steps if norms is not None]
        fetched = [(None, None) if norms is None else norms.fetch() for norms in steps]
        return {
            "num_parameters": counts[0] if counts else None,
            # From all steps, as a parameter without a gradient in the first step can get a gradient later.
            "sharded": sorted({position for norms in measured for position in norms.sharded}),
            "steps": [_numbers(used) for used, _ in fetched],
            "unclipped": [_numbers(unclipped) for _, unclipped in fetched],
            "start": self.start,
        }


def _start(optimizer: object) -> dict[str, Any] | None:
    try:
        with torch.no_grad():
            return start_state(optimizer)
    except Exception:  # noqa: BLE001 - an error of ours is never the job's
        LOG.error("start state")
        return None


class GradientRecorder:
    """Records gradient norms. Call `before_step`, `skipped` etc. as the events happen, and `write` at the end."""

    def __init__(self, warmup: int | None) -> None:
        """Set `warmup`, the number of steps before steps are measured; None: until they are stable, at least ten."""
        self.is_over = False  # steps are now measured, so no step may be disturbed
        self._num_steps = NUM_STEPS if warmup is None else min(NUM_STEPS, warmup + 1)
        self._watched: list[_OptimizerNorms] = []
        self._by_id: dict[int, _OptimizerNorms] = {}
        self._clipping = ClippedGradients()

    def clips(self, parameters: Sequence[Any]) -> bool:
        """Measure the gradients of these parameters before they are clipped; return whether `clipped` must follow."""
        if self.is_over or self._has_all_steps():
            return False
        return self._guarded(lambda: self._clipping.begins(parameters))

    def _has_all_steps(self) -> bool:
        return bool(self._watched) and all(len(watched.steps) >= self._num_steps for watched in self._watched)

    def clipped(self) -> None:
        self._guarded(self._clipping.ended)

    def unscales(self, optimizer: Any) -> None:
        """Note that a GradScaler is about to change the optimizer's gradients; tensors do not count this change."""
        if not self.is_over:
            self._guarded(lambda: self._clipping.forget(parameters_of([optimizer])))

    def before_step(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Changed | None:
        """Measure the gradients before the step, as a torch hook; return changed arguments if the step has a closure.

        `args` begins with the optimizer. A closure computes the gradients, so they are measured after it has run.
        """
        watched = self._watch(optimizer)
        if watched is None:
            return None
        if "grad_scaler" in kwargs:  # the step itself unscales the gradients
            watched.steps.append(None)
            return None
        if "closure" in kwargs:
            closure = kwargs["closure"]
        else:
            closure = args[1] if len(args) > 1 else None
        if not callable(closure):
            self._measure(watched, optimizer)
            return None
        measured = self._measured(closure, watched, optimizer)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": measured}
        return (args[0], measured, *args[2:]), kwargs

    def skipped(self, optimizer: object) -> None:
        """Note that a GradScaler has skipped the optimizer's step."""
        if (watched := self._watch(optimizer)) is not None:
            watched.steps.append(None)

    def write(self, folder: Path, rank: int) -> None:
        """Write all measured norms. This waits for the device, so call it only after the device has finished."""
        if not self._watched:
            return
        optimizers = [watched.as_json() for watched in self._watched]
        content = {"schema": SCHEMA, "version": VERSION, "rank": rank, "optimizers": optimizers}
        text = json.dumps(content, separators=(",", ":")) + "\n"
        (folder / File.GRADIENTS.of(rank)).write_text(text, encoding="utf-8")

    def _watch(self, optimizer: object) -> _OptimizerNorms | None:
        if self.is_over:
            return None
        watched = self._by_id.get(id(optimizer))
        if watched is None or watched.optimizer() is not optimizer:  # a new optimizer can have the same address
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
            if not is_done:  # L-BFGS calls the closure more than once per step
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


def _norms(optimizer: Any, clipping: ClippedGradients) -> _StepNorms | None:
    """Return the norms of the current gradients without synchronizing; None if a norm is unknown."""
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return None
    scale = getattr(optimizer, "grad_scale", None)
    if scale is not None and not isinstance(scale, torch.Tensor):
        return None
    parameters = parameters_of([optimizer])
    # Even those without a gradient here: other ranks' parts may have one.
    sharded = [position for position, parameter in enumerate(parameters) if _is_sharded(parameter)]
    measured = _by_kind(parameters, clipping)
    if measured is None:
        return None
    kinds, clipped_norms = measured
    used = [(kind.positions, _stacked(kind.norms, scale)) for kind in kinds]
    unclipped = None
    if clipped_norms and all(before is not None for before in clipped_norms):
        unclipped = [(kind.positions, _stacked(kind.unclipped, scale)) for kind in kinds]
    found_inf = getattr(optimizer, "found_inf", None)
    flag = found_inf.detach().clone() if isinstance(found_inf, torch.Tensor) else None
    return _StepNorms(len(parameters), sharded, used, unclipped, flag)


def _is_sharded(parameter: torch.Tensor) -> bool:
    held = parameter if parameter.grad is None else parameter.grad
    return is_sharded(held) or bool(getattr(parameter, _FSDP1, False))


def _by_kind(
    parameters: list[Any], clipping: ClippedGradients
) -> tuple[list[_SameKind], list[torch.Tensor | None]] | None:
    """Return the norms by device and type, and those of clipped gradients before clipping; None if one is unknown."""
    clipped_norms: list[torch.Tensor | None] = []
    kinds: dict[tuple[torch.device, torch.dtype], _SameKind] = {}
    for position, parameter in enumerate(parameters):
        gradient = parameter.grad
        if gradient is None:
            continue
        norm = norm_of(gradient)
        if norm is None:
            return None
        was_clipped, before = clipping.take(gradient)
        if was_clipped:
            clipped_norms.append(before)
        kind = kinds.setdefault((norm.device, norm.dtype), _SameKind([], [], []))
        kind.positions.append(position)
        kind.norms.append(norm)
        kind.unclipped.append(norm if before is None else before)
    return list(kinds.values()), clipped_norms


def _stacked(norms: list[torch.Tensor], scale: torch.Tensor | None) -> torch.Tensor:
    """Stack the norms, divided by the scale of a GradScaler if the step itself has to undo the scale."""
    stacked = torch.stack(norms)
    return stacked if scale is None else stacked / scale.to(stacked.device, non_blocking=True)


def _numbers(norms: list[float] | None) -> list[float | str | None] | None:
    return None if norms is None else [json_number(float(f"{norm:.{_DIGITS}g}")) for norm in norms]
