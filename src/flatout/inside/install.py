"""Install everything requested by environment variables, and the recorder's hooks in torch.

In: the environment. Out: torch with hooks on optimizer steps, backward passes, DataLoader batches, GradScaler and
checkpoints. `install` is called once per process, right after `import torch`. Nothing is recorded before the first
event, so a process without events (a launcher, an inspector) leaves no file. A forked child starts from scratch,
because it can be a rank itself.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from functools import wraps
from multiprocessing import parent_process
from multiprocessing import util as multiprocessing_util
from pathlib import Path
from typing import Any

import torch
import torch.amp.grad_scaler
import torch.optim
import torch.utils.data.dataloader
from torch.nn.utils import clip_grad
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from flatout.inside.blocks.block_run import BLOCKS
from flatout.inside.blocks.schedule import read_schedule
from flatout.inside.checkpoints.checkpoint_hooks import CheckpointHooks
from flatout.inside.checkpoints.safe_save import save_safely
from flatout.inside.data_cache.reads import hook_reads
from flatout.inside.equal_tables import hook_equal_tables
from flatout.inside.exit_handlers import EXIT_HANDLERS
from flatout.inside.failure.failure_hooks import note_failures
from flatout.inside.identity import is_loader_worker
from flatout.inside.liveness.heartbeat import start_heartbeat
from flatout.inside.loader_stages.batch_watch import hook_stages
from flatout.inside.log import LOG, guarded
from flatout.inside.nested_steps import is_nested_step
from flatout.inside.other_rounding import round_otherwise
from flatout.inside.overlay.redirect import redirect
from flatout.inside.packed_reads.reads import hook_packed_reads
from flatout.inside.patches.apply import apply_patches
from flatout.inside.protocol import Variable
from flatout.inside.random_seed import draw_other_samples, seed_random_numbers
from flatout.inside.recording.attempt import find_attempt
from flatout.inside.recording.batches import Count
from flatout.inside.recording.forward_calls import FORWARD_CALLS, Call, Listener
from flatout.inside.recording.loader_watch import hook_fetchers
from flatout.inside.recording.pickled_workers import hook_pickled_workers
from flatout.inside.recording.recorder import StepRecorder
from flatout.inside.recording.sampler_times import hook_samplers
from flatout.inside.recording.session_calls import SESSION_CALLS
from flatout.inside.recording.spell_hooks import LateHooks, hook_collections, hook_evaluations, hook_loader_starts
from flatout.inside.recording.start_times import START_TIMES, hook_process_groups
from flatout.inside.recording.thread_counts import THREAD_COUNTS
from flatout.inside.settings import RecorderSettings, read_settings

Undo = Callable[[], None]  # removes a hook

# Returns True while Dynamo compiles; otherwise it costs one call. `is_compiling` would also check TorchScript.
_is_compiling: Callable[[], bool] = torch.compiler.is_dynamo_compiling


class _Process:
    """The recorder of this process, created at its first event."""

    def __init__(self) -> None:
        self.recorder: StepRecorder | None = None
        self.active: StepRecorder | None = None  # the recorder, while it records
        self.is_out = False  # this process is not recorded, or is no longer recorded
        self.num_optimizer_steps = 0  # counted by the hook, to detect steps that a GradScaler skipped

    def begin(self) -> StepRecorder | None:
        """Create and return the recorder; None if this process is not recorded."""
        if self.is_out:
            return None
        settings = read_settings()
        if settings is not None:
            settings = None if is_loader_worker() else find_attempt(settings)
        if settings is None:
            self.is_out = True
            return None
        self.recorder = self.active = StepRecorder(settings, self.leave, between_steps=_look)
        LOG.on_silence = self.leave
        EXIT_HANDLERS.at_stop(_finish)
        atexit.register(_finish)
        if parent_process() is not None:  # a child of `multiprocessing` ends without atexit
            multiprocessing_util.Finalize(None, _finish, exitpriority=-1)
        return self.active

    def leave(self) -> None:
        """Stop recording in this process."""
        self.active, self.is_out = None, True


PROCESS = _Process()


@guarded
def _begin() -> StepRecorder | None:
    return PROCESS.begin()


@guarded
def _checkpoint_begins() -> Any:
    return None if PROCESS.active is None or _is_compiling() else PROCESS.active.checkpoint_begins()


@guarded
def _checkpoint_ends(begun: Any) -> None:
    if PROCESS.recorder is not None:
        PROCESS.recorder.checkpoint_ends(begun)


def _active() -> StepRecorder | None:
    return PROCESS.active


_CHECKPOINTS = CheckpointHooks(_checkpoint_begins, _checkpoint_ends)
_LATE_HOOKS = LateHooks(_active)


def _look() -> None:
    """Hook modules that the script has imported since the last call."""
    _CHECKPOINTS.look()
    _LATE_HOOKS.look()


@guarded
def _finish() -> None:
    if PROCESS.recorder is not None:
        PROCESS.recorder.finish()


@guarded
def _after_fork() -> None:
    global PROCESS
    EXIT_HANDLERS.forget_stop()
    START_TIMES.clear()
    if PROCESS.recorder is not None:
        PROCESS.recorder.forget()
    PROCESS = _Process()


def install() -> list[Undo]:
    """Install everything requested by environment variables; return functions that remove the hooks."""
    settings = read_settings()
    if settings is not None:
        LOG.folder = settings.recording
    undos = [*_prepare_process(), *_change_training(settings), *_watch_life(settings)]
    if settings is not None:
        undos += _record(settings)
    return [undo for undo in undos if undo is not None]


def _prepare_process() -> list[Undo | None]:
    """Install what decides which numbers are drawn, and what is read and written where."""
    guarded(seed_random_numbers)()
    guarded(redirect)(LOG.folder)
    guarded(save_safely)()
    drawn = [guarded(draw_other_samples)(), guarded(round_otherwise)()]
    return [*drawn, guarded(hook_reads)(), guarded(hook_packed_reads)()]


def _change_training(settings: RecorderSettings | None) -> list[Undo | None]:
    """Apply the changes to the training itself."""
    undos: list[Undo | None] = []
    if os.environ.get(Variable.NCCL_TABLE):
        undos.append(guarded(hook_equal_tables)())
    if settings is not None and settings.has_gradients:
        # Before the patches, so that their changes to gradients before clipping run first.
        undos.append(guarded(_hook_clipping)())
    guarded(apply_patches)(LOG.folder)
    if os.environ.get(Variable.COMPRESS):
        undos.append(guarded(_hook_first_model)())
    if settings is not None and settings.has_blocks:
        guarded(_prepare_blocks)()
    return undos


def _watch_life(settings: RecorderSettings | None) -> list[Undo | None]:
    """Say that this process lives, and note why it fails."""
    undos: list[Undo | None] = []
    heartbeat = os.environ.get(Variable.HEARTBEAT)
    if heartbeat:
        LOG.folder = LOG.folder or Path(heartbeat)
        undos += guarded(start_heartbeat)() or []
    failures = settings.recording if settings is not None else heartbeat
    if failures:
        guarded(note_failures)(Path(failures))
    return undos


def _record(settings: RecorderSettings) -> list[Undo | None]:
    """Install the hooks of the recorder."""
    os.register_at_fork(after_in_child=_after_fork)
    undos = [guarded(THREAD_COUNTS.install)(), guarded(SESSION_CALLS.install)()]
    if settings.watches_loaders:
        undos += [guarded(hook_fetchers)(settings.state), guarded(hook_pickled_workers)(), guarded(hook_samplers)()]
    if settings.times_loader_stages:
        undos.append(guarded(hook_stages)(settings.recording))
    hooks = [_hook_optimizers, _hook_backward, _hook_loaders, _hook_scalers, _hook_checkpoints, _hook_forward_calls]
    if settings.has_gradients:
        hooks.append(_hook_gradients)
    undos += [guarded(hook)() for hook in (*hooks, hook_process_groups)]
    undos += [guarded(hook)(_active) for hook in (hook_collections, hook_evaluations, hook_loader_starts)]
    return undos


def _hook_first_model() -> Undo | None:
    from flatout.inside.compression.apply import install_compression

    return install_compression(LOG.folder)


def _prepare_blocks() -> None:
    BLOCKS.prepare(read_schedule(os.environ[Variable.BLOCKS]))


def _hook_optimizers() -> Undo:
    def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if _is_compiling():
            return
        try:
            if is_nested_step(optimizer):
                return
            PROCESS.num_optimizer_steps += 1
            if (active := PROCESS.active or PROCESS.begin()) is not None:
                active.optimizer_stepped(optimizer, is_skipped=None)
        except Exception:  # noqa: BLE001 - an error of ours is never the job's
            LOG.error("optimizer step")

    handle = register_optimizer_step_post_hook(after_step)
    return lambda: handle.remove()


def _hook_gradients() -> Undo:
    """Measure gradients before a step. Installed after the patches, so that their changes to gradients run first."""

    def before_step(optimizer: Any, args: Any, kwargs: Any) -> Any:
        if _is_compiling():
            return None
        try:
            active = PROCESS.active or PROCESS.begin()
            if active is not None and active.gradients is not None and not is_nested_step(optimizer):
                return active.gradients.before_step(optimizer, args, kwargs)
        except Exception:  # noqa: BLE001 - an error of ours is never the job's
            LOG.error("gradients")
        return None

    handle = register_optimizer_step_pre_hook(before_step)
    return lambda: handle.remove()


def _hook_clipping() -> Undo:
    """Hook the function that scales gradients down; all clipping functions call it, even if imported by name before."""
    name, public = "_clip_grads_with_norm_", "clip_grads_with_norm_"
    if not hasattr(clip_grad, name):  # before torch 2.6 it was part of `clip_grad_norm_`
        name = public = "clip_grad_norm_"
    original = getattr(clip_grad, name)

    @wraps(original)
    def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_compiling():
            return original(parameters, *args, **kwargs)
        if not isinstance(parameters, (torch.Tensor, list, tuple)):
            parameters = list(parameters)  # an iterator can be read only once
        gradients = None
        try:
            if (active := PROCESS.active or PROCESS.begin()) is not None and active.gradients is not None:
                some = [parameters] if isinstance(parameters, torch.Tensor) else parameters
                gradients = active.gradients if active.gradients.clips(some) else None
        except Exception:  # noqa: BLE001 - an error of ours is never the job's
            LOG.error("clipping")
        result = original(parameters, *args, **kwargs)
        if gradients is not None:
            gradients.clipped()
        return result

    scaler_class = torch.amp.grad_scaler.GradScaler
    original_unscale = scaler_class.unscale_

    @wraps(original_unscale)
    def unscale_(self: Any, optimizer: Any) -> Any:
        active = PROCESS.active
        if self.is_enabled() and active is not None and active.gradients is not None:
            active.gradients.unscales(optimizer)
        return original_unscale(self, optimizer)

    setattr(clip_grad, name, clip)
    setattr(torch.nn.utils, public, clip)
    scaler_class.unscale_ = unscale_

    def undo() -> None:
        setattr(clip_grad, name, original)
        setattr(torch.nn.utils, public, original)
        scaler_class.unscale_ = original_unscale

    return undo


def _hook_backward() -> Undo:
    original = torch.autograd.backward

    @wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_compiling():
            try:
                if (active := PROCESS.active or PROCESS.begin()) is not None:
                    active.backward_begins(tensors)
            except Exception:  # noqa: BLE001
                LOG.error("backward")
        return original(tensors, *args, **kwargs)

    torch.autograd.backward = backward
    return lambda: setattr(torch.autograd, "backward", original)


def _hook_loaders() -> Undo:
    iterator = torch.utils.data.dataloader._BaseDataLoaderIter
    original = iterator.__next__

    @wraps(original)
    def next_batch(self: Any) -> Any:
        active = PROCESS.active or _begin()
        return original(self) if active is None else active.load(original, self)

    iterator.__next__ = next_batch
    return lambda: setattr(iterator, "__next__", original)


def _hook_scalers() -> Undo:
    scaler_class = torch.amp.grad_scaler.GradScaler
    original_scale, original_step = scaler_class.scale, scaler_class.step

    @guarded
    def scaled(result: object, outputs: object) -> None:
        if (active := PROCESS.active or PROCESS.begin()) is not None:
            active.loss_scaled(result, outputs)

    @guarded
    def skipped(optimizer: Any) -> None:
        if (active := PROCESS.active or PROCESS.begin()) is not None:
            if active.gradients is not None:
                active.gradients.skipped(optimizer)
            active.optimizer_stepped(optimizer, is_skipped=True)

    @wraps(original_scale)
    def scale(self: Any, outputs: Any) -> Any:
        result = original_scale(self, outputs)
        if not _is_compiling():
            scaled(result, outputs)
        return result

    @wraps(original_step)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before = PROCESS.num_optimizer_steps
        result = original_step(self, optimizer, *args, **kwargs)
        if PROCESS.num_optimizer_steps == before:
            skipped(optimizer)
        return result

    scaler_class.scale, scaler_class.step = scale, step

    def undo() -> None:
        scaler_class.scale, scaler_class.step = original_scale, original_step

    return undo


def _hook_forward_calls() -> Undo:
    def begins(model: int, count: Count) -> bool:
        active = PROCESS.active or PROCESS.begin()
        return active is not None and active.forward_begins(model, count)

    def ended(call: Call, output: object) -> None:
        active = PROCESS.active
        if active is None:
            return
        active.forward_ended(call)
        if active.model_outputs is not None:
            active.model_outputs.take(call.number, output)

    return FORWARD_CALLS.add(Listener(begins, ended))


def _hook_checkpoints() -> Undo:
    _CHECKPOINTS.install()
    return _CHECKPOINTS.remove
