"""The hooks of the heartbeat in torch: optimizer steps, batches, checkpoints, evaluation, process groups.

In: FLATOUT_HEARTBEAT, a folder. Out: see `beat` and `stacks`. The collectives of torch.distributed are not wrapped,
because compilers recognize these functions. The number of collectives that a rank has begun is read from torch's own
counters, which include those of DDP and FSDP. A thread reads them; it starts with the first process group, when torch
has already started threads in the process.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.nn
import torch.serialization
import torch.utils.data.dataloader
from torch.optim.optimizer import register_optimizer_step_post_hook

from flatout.inside.checkpoints.checkpoint_hooks import CheckpointHooks
from flatout.inside.exit_handlers import EXIT_HANDLERS
from flatout.inside.failure.exit_text import EXIT_TEXT
from flatout.inside.failure.stderr_tail import StderrTail
from flatout.inside.identity import find_identity, is_loader_worker
from flatout.inside.liveness.adapted_loader import AdaptedLoader
from flatout.inside.liveness.asked_trace import AskedTrace
from flatout.inside.liveness.beat import CHECKPOINT, COMPUTE, DATA, Beat
from flatout.inside.liveness.exchange import DdpExchanges, hook_ddp
from flatout.inside.liveness.stacks import give_stacks, is_ours, write_crashes
from flatout.inside.liveness.unsaved_order import UnsavedOrder
from flatout.inside.log import LOG, guarded
from flatout.inside.nested_steps import is_nested_step
from flatout.inside.protocol import File, Variable, partial_name
from flatout.inside.recording.batches import count_tensor, first_tensor

_COUNT_EVERY_S = 0.5
_LOOK_EVERY_NS = 1_000_000_000
_OTHERS_BEFORE_CHANGE = 64  # after this many steps of other optimizers, the latest optimizer is counted

_is_compiling: Callable[[], bool] = torch.compiler.is_dynamo_compiling
_ident = threading.get_ident


class _Heart:
    """The heartbeat of this process; a forked child starts from scratch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.beat: Beat | None = None
        self.thread = threading.main_thread().ident
        self.is_out = False
        self.counted: Callable[[], Any] = lambda: None  # the optimizer whose steps are counted as the job's
        self.num_others = 0
        self.next_look_ns = 0
        self.is_counting = False
        self.exchanges = DdpExchanges()
        self.asked_trace = AskedTrace(folder)
        self.adapted_loader = AdaptedLoader(folder)
        self.unsaved_order = UnsavedOrder(folder)

    def of_this_thread(self) -> Beat | None:
        if self.is_out or _ident() != self.thread:
            return None
        return self.beat if self.beat is not None else self.begin()

    def begin(self) -> Beat | None:
        if is_loader_worker():
            self.is_out = True
            return None
        self.beat = Beat(self.folder)
        self.beat.set("gives_stacks", int(give_stacks(self.folder)))
        write_crashes(self.folder)
        EXIT_TEXT.tail = StderrTail(self.folder)
        EXIT_HANDLERS.at_exit(self._ends)
        return self.beat

    def _ends(self) -> None:
        self.asked_trace.process_ends()
        # Exit handlers also run after an exception that the script did not catch.
        if self.beat is not None and self.beat.pid == os.getpid() and getattr(sys, "last_value", None) is None:
            self.beat.set("has_ended", time.monotonic_ns())

    def stepped(self, optimizer: Any) -> None:
        if self.is_out:
            return
        if self.thread != _ident():
            if self.beat is not None and self.beat.get("num_steps"):
                return
            self.thread = _ident()  # the script does not train in the main thread
        beat = self.beat if self.beat is not None else self.begin()
        if beat is None:
            return
        counted = self.counted()
        if counted is not optimizer:
            self.num_others += 1
            if counted is not None and self.num_others < _OTHERS_BEFORE_CHANGE:
                beat.happened()
                return
            self.counted = weakref.ref(optimizer)
        self.num_others = 0
        now = beat.stepped()
        step = beat.get("num_steps")
        if self.exchanges.is_due(step):
            self.exchanges.stepped(beat, step)
        if self.asked_trace.is_active:
            self.asked_trace.stepped(step)
        if now >= self.next_look_ns:
            self.next_look_ns = now + _LOOK_EVERY_NS
            self.look(beat, optimizer)
            self.asked_trace.look(step, beat.get("rank"))

    def look(self, beat: Beat, optimizer: Any | None = None) -> None:
        """Update the fields that seldom change."""
        identity = find_identity()
        beat.is_rank(identity.rank, identity.world_size)
        beat.set("has_gpu", int(torch.cuda.is_initialized()))
        beat.set("gives_stacks", int(beat.get("gives_stacks") and is_ours()))
        _CHECKPOINTS.look()
        if optimizer is not None and beat.get("has_gpu") and not beat.get("gpu"):
            beat.is_on(_gpu_uuid())
        if optimizer is not None and beat.get("num_steps") == 1:
            steps = _steps_made(optimizer)
            beat.set("base_step", -1 if steps is None else steps - 1)

    def counts_collectives(self) -> None:
        """Start the thread that reads torch's counters; not with `threading`, as the script could see it there."""
        if not self.is_counting and self.beat is not None:
            self.is_counting = True
            _thread.start_new_thread(_count, (self, self.beat))


HEART: _Heart | None = None


def _count(heart: _Heart, beat: Beat) -> None:
    try:
        while heart.beat is beat and not beat.get("has_ended"):
            beat.counts(_sequences())
            if (heart.folder / File.FLIGHT_REQUEST).exists():
                _write_flight(heart.folder, beat)
            time.sleep(_COUNT_EVERY_S)
    except Exception:  # noqa: BLE001 - never the job's problem; without counts, the heartbeat shows none
        LOG.error("counting collectives")


def _write_flight(folder: Path, beat: Beat) -> None:
    """Write torch's flight record of the collectives, once; write an empty object if its recorder is off."""
    path = folder / File.FLIGHT.of(beat.name)
    if path.exists():
        return
    module: Any = torch._C._distributed_c10d
    dump = getattr(module, "_dump_nccl_trace_json", None) if beat.get("has_gpu") else None
    if dump is None:
        dump = getattr(module, "_dump_fr_trace_json", None)
    content = dump() if dump is not None else b"{}"
    partial = folder / partial_name(path.name)
    partial.write_bytes(content if isinstance(content, bytes) else content.encode())
    partial.replace(path)


def _sequences() -> dict[str, int]:
    """Return the number of collectives begun in each process group."""
    world = torch.distributed.distributed_c10d._world
    counts = {}
    for group, name in list(world.pg_names.items()):
        try:
            counts[str(name)] = int(group._get_sequence_number_for_group())
        except (RuntimeError, AttributeError):  # the backend does not count collectives
            continue
    return counts


def _gpu_uuid() -> bytes:
    """Return the UUID of this process's GPU; 16 zero bytes if torch does not know it."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    uuid = bytes(getattr(getattr(properties, "uuid", None), "bytes", b""))
    return uuid if len(uuid) == 16 else bytes(16)


def _steps_made(optimizer: Any) -> int | None:
    """Return the step count in the optimizer's state, which a resuming script restores; None if there is no count."""
    state = next(iter(optimizer.state.values()), None)
    step = state.get("step") if isinstance(state, dict) else None
    if isinstance(step, torch.Tensor):
        is_readable = step.device.type == "cpu" and step.numel() == 1  # readable without waiting for a GPU
        return int(step) if is_readable else None
    return int(step) if isinstance(step, (int, float)) else None


@guarded
def _checkpoint_begins() -> Any:
    beat = HEART.of_this_thread() if HEART is not None and not _is_compiling() else None
    return None if beat is None else (beat, beat.enter(CHECKPOINT))


@guarded
def _checkpoint_ends(begun: Any) -> None:
    beat, before = begun
    beat.leave(before)
    if before != CHECKPOINT:
        beat.set("checkpoint_step", beat.get("num_steps"))
        beat.set("num_checkpoints", beat.get("num_checkpoints") + 1)


_CHECKPOINTS = CheckpointHooks(_checkpoint_begins, _checkpoint_ends)


def start_heartbeat() -> list[Callable[[], None]]:
    """Hook torch if FLATOUT_HEARTBEAT is set; return functions that remove the hooks."""
    global HEART
    folder = os.environ.get(Variable.HEARTBEAT)
    if not folder:
        return []
    if HEART is None:
        HEART = _Heart(Path(folder))
        os.register_at_fork(after_in_child=_after_fork)
    hooks = (_hook_optimizers, _hook_loaders, _hook_modules, _hook_loads, _hook_groups, _hook_checkpoints, _hook_ddp)
    return [undo for hook in hooks if (undo := guarded(hook)()) is not None]


def _hook_checkpoints() -> Callable[[], None]:
    _CHECKPOINTS.install()
    return _CHECKPOINTS.remove


def _hook_ddp() -> Callable[[], None] | None:
    return hook_ddp(lambda module: HEART.exchanges.made(module) if HEART is not None else None)


def _after_fork() -> None:
    global HEART
    if HEART is not None:
        is_started = HEART.beat is not None
        HEART = _Heart(HEART.folder)
        HEART.thread = _ident()
        if is_started:
            guarded(_stacks_of_child)(HEART.folder)


def _stacks_of_child(folder: Path) -> None:
    """Give a loader worker its own file for stacks, because its rank may be waiting for the worker."""
    if is_ours():
        give_stacks(folder)


def _hook_optimizers() -> Callable[[], None]:
    def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if _is_compiling() or HEART is None:
            return
        try:
            if not is_nested_step(optimizer):
                HEART.stepped(optimizer)
        except Exception:  # noqa: BLE001 - an error of ours is never the job's
            LOG.error("heartbeat of a step")
            HEART.is_out = LOG.is_silenced

    handle = register_optimizer_step_post_hook(after_step)
    return lambda: handle.remove()


def _hook_loaders() -> Callable[[], None]:
    iterator = torch.utils.data.dataloader._BaseDataLoaderIter
    original = iterator.__next__

    @wraps(original)
    def next_batch(self: Any) -> Any:
        heart = HEART
        beat = None if heart is None or _ident() != heart.thread else heart.beat or _of_this_thread()
        if beat is None:
            return original(self)
        before = beat.enter(DATA)
        try:
            batch = original(self)
        finally:
            beat.leave(before)
        if before == COMPUTE:
            _count_batch(beat, batch)
        return batch

    loader = torch.utils.data.dataloader.DataLoader
    original_iterator = loader._get_iterator

    @wraps(original_iterator)
    def get_iterator(self: Any) -> Any:
        _epoch_begins(self)
        return original_iterator(self)

    iterator.__next__, loader._get_iterator = next_batch, get_iterator

    def undo() -> None:
        iterator.__next__, loader._get_iterator = original, original_iterator

    return undo


@guarded
def _epoch_begins(loader: Any) -> None:
    beat = _of_this_thread()
    if beat is not None and HEART is not None and beat.get("phase") == COMPUTE:
        HEART.adapted_loader.epoch_begins(loader, beat)
        HEART.unsaved_order.epoch_begins(loader)


@guarded
def _count_batch(beat: Beat, batch: object) -> None:
    tensor = first_tensor(batch)
    if tensor is not None:
        num_samples, num_tokens = count_tensor(tensor)
        beat.loaded(num_samples, num_tokens, tensor.numel())


@guarded
def _of_this_thread() -> Beat | None:
    return None if HEART is None else HEART.of_this_thread()


def _hook_modules() -> Callable[[], None]:
    original = torch.nn.Module.train

    @wraps(original)
    def train(self: Any, mode: bool = True) -> Any:
        if not _is_compiling() and HEART is not None and (beat := HEART.beat) is not None and _ident() == HEART.thread:
            beat.evaluates(not mode)
        return original(self, mode)

    torch.nn.Module.train = train
    return lambda: setattr(torch.nn.Module, "train", original)


def _hook_loads() -> Callable[[], None]:
    original = torch.serialization.load

    @wraps(original)
    def load(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        beat = _of_this_thread()
        if beat is not None and not beat.get("num_steps"):
            beat.set("has_loaded", 1)
        return result

    torch.serialization.load = torch.load = load

    def undo() -> None:
        torch.serialization.load = torch.load = original

    return undo


def _hook_groups() -> Callable[[], None] | None:
    """Note the rank when the process group is created, in case the rank never reaches its first step."""
    if not torch.distributed.is_available():
        return None
    original = torch.distributed.init_process_group

    @wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        _group_begins()
        result = original(*args, **kwargs)
        _group_begins(is_made=True)
        return result

    modules = (torch.distributed, torch.distributed.distributed_c10d)
    for module in modules:
        module.init_process_group = init_process_group

    def undo() -> None:
        for module in modules:
            module.init_process_group = original

    return undo


@guarded
def _group_begins(*, is_made: bool = False) -> None:
    beat = _of_this_thread()
    if beat is None or HEART is None:
        return
    HEART.look(beat)
    beat.happened()
    if is_made:
        HEART.counts_collectives()
