"""Change DataLoaders: the number of worker processes and how they start, prefetching, pinned memory, workers kept.

All loaders that the process creates, of any subclass, get the values at their creation. The loaded samples and their
order stay the same: the base seed is drawn in each epoch, as it is without kept workers. An iterable dataset gives
every worker all of its samples unless it splits them itself, so it gets one worker at most. If the first batch of an
iterator fails with our settings, the script's own settings are used from the same random state.
"""

from __future__ import annotations

import inspect
import io
import multiprocessing
import sys
import weakref
from functools import wraps
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data import dataloader as loaders

from flatout.inside.patches.arguments import Construct, hook_constructor, value
from flatout.inside.patches.report import Report

_MAX_DEPTH, _MAX_LOOKED_AT = 4, 200
_CONTEXT = "multiprocessing_context"
_SETTINGS = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers", _CONTEXT)
_FALLBACK = "_flatout_fallback"


def dataloader(
    report: Report,
    *,
    num_workers: int | None = None,
    prefetch_factor: int | None = None,
    pin_memory: bool | None = None,
    persistent_workers: bool | None = None,
    multiprocessing_context: str | None = None,
) -> None:
    asked = {
        "num_workers": num_workers,
        "prefetch_factor": prefetch_factor,
        "pin_memory": pin_memory,
        "persistent_workers": persistent_workers,
        _CONTEXT: multiprocessing_context,
    }
    own_settings: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
    report.waits("no DataLoader was made")
    _patch_init(report, {name: wanted for name, wanted in asked.items() if wanted is not None}, own_settings)
    _patch_iterators(report, own_settings)


def _patch_init(report: Report, asked: dict[str, Any], own_settings: Any) -> None:
    @report.guarded
    def changed(bound: Any) -> dict[str, Any]:
        """Change the arguments; return the script's own values of the changed settings."""
        wanted = _legal(report, asked, bound)
        own = {name: value(bound, name) for name in _SETTINGS}
        if all(own[name] == setting for name, setting in wanted.items()):
            # Trainers create their loader from the script's loader, which already has our values.
            dataset = bound.arguments.get("dataset")
            return next((one for loader, one in list(own_settings.items()) if loader.dataset is dataset), {})
        bound.arguments.update(wanted)
        return own

    def make(made: Any, bound: Any, construct: Construct) -> None:
        given = dict(bound.arguments)
        own = changed(bound)
        if not own:
            bound.arguments = given
            construct(bound)
            return
        before = _random_states(value(bound, "generator"))
        try:
            construct(bound)
        except Exception:  # noqa: BLE001 - if the script's own way fails too, it says so
            _restore(before, value(bound, "generator"))
            report.failed("making a loader")
            bound.arguments = given
            construct(bound)
            return
        remember(made, own)

    @report.guarded
    def remember(self: Any, own: dict[str, Any]) -> None:
        own_settings[self] = own
        report.details["workers"] = max(int(report.details.get("workers", 0)), self.num_workers)
        report.did("loaders")

    hook_constructor(DataLoader, make)


def _legal(report: Report, asked: dict[str, Any], bound: Any) -> dict[str, Any]:
    """Return the requested settings that this loader can have."""
    own = int(value(bound, "num_workers"))
    wanted = dict(asked)
    if "num_workers" in wanted:
        wanted["num_workers"] = _legal_workers(report, wanted["num_workers"], own, bound)
    if wanted.get("num_workers", own) == 0:
        _without_workers(report, wanted, own)
    if _CONTEXT in wanted:
        _with_start_method(report, wanted, bound)
    if wanted.get("pin_memory") and not _has_gpu():
        del wanted["pin_memory"]
        report.note("pin_memory needs a GPU")
    return wanted


def _legal_workers(report: Report, asked: int, own: int, bound: Any) -> int:
    """Return how many workers the loader can have, if it has its own number and is to have another."""
    dataset = bound.arguments.get("dataset")
    problem = _why_no_workers(dataset, bound) if own == 0 else None
    num_workers = asked
    if isinstance(dataset, IterableDataset) and asked != own:
        gets_first = own == 0 and asked > 0
        num_workers = 1 if gets_first else own
        report.note("an iterable dataset keeps its number of workers, or gets one: more would load samples twice")
    if problem is not None:
        report.note(problem)
        return own
    num_batches = _num_batches(dataset, bound)
    if num_batches is None or num_batches >= num_workers:
        return num_workers
    return max(num_batches, own)


def _without_workers(report: Report, wanted: dict[str, Any], own: int) -> None:
    """Omit the settings that a loader without workers cannot have."""
    for name in ("prefetch_factor", "persistent_workers", _CONTEXT):
        if wanted.pop(name, None) is not None:
            report.note(f"{name} requires workers, but a loader has none")
    if own > 0:  # the script's settings for workers are not allowed without workers
        wanted.update(prefetch_factor=None, persistent_workers=False)


def _with_start_method(report: Report, wanted: dict[str, Any], bound: Any) -> None:
    """Prepare the server that forks the workers; omit the setting if they are not spawned."""
    if _start_method(bound) != "spawn":
        del wanted[_CONTEXT]
        report.note("the workers of a loader are not spawned, so they start as before")
        return
    # Python before 3.12.8 means to import the script in the server, and does not (python/cpython#126631).
    dataset = bound.arguments.get("dataset")
    multiprocessing.set_forkserver_preload(["__main__", *_imported_by_script(dataset)])


def _has_gpu() -> bool:
    return bool(torch.cuda.is_initialized() or torch.cuda.device_count() > 0)


def _why_no_workers(dataset: Any, bound: Any) -> str | None:
    if multiprocessing.current_process().daemon:
        return "a loader is made in a process that is not allowed to have children"
    if holds_device_tensors(dataset):
        return "a dataset holds tensors on the GPU, which workers cannot use"
    if _start_method(bound) != "fork":
        try:
            for part in (dataset, value(bound, "collate_fn"), value(bound, "worker_init_fn")):
                ForkingPickler(_Nowhere()).dump(part)
        except Exception:  # noqa: BLE001 - whatever its own pickling raises
            return "a dataset cannot be sent to workers that are spawned"
    return None


def _imported_by_script(dataset: Any) -> list[str]:
    """Return the top-level modules that the script's names and its data set come from."""
    script = vars(sys.modules["__main__"])
    named = [
        thing.__name__ if inspect.ismodule(thing) else getattr(thing, "__module__", None) for thing in script.values()
    ]
    named += ["torch.utils.data", type(dataset).__module__]
    tops = {name.partition(".")[0] for name in named if isinstance(name, str)}
    return sorted(top for top in tops if top not in ("__main__", "__mp_main__") and top in sys.modules)


def _start_method(bound: Any) -> str:
    """Return how the workers start: `fork`, `spawn` or `forkserver`. A process that was spawned spawns its own."""
    method = value(bound, _CONTEXT) or multiprocessing.get_start_method(allow_none=True) or "fork"
    return method if isinstance(method, str) else str(method.get_start_method())


class _Nowhere(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return memoryview(data).nbytes


def _num_batches(dataset: Any, bound: Any) -> int | None:
    if isinstance(dataset, IterableDataset):
        return None
    try:
        batch_sampler, batch_size = value(bound, "batch_sampler"), value(bound, "batch_size")
        if batch_sampler is not None:
            return len(batch_sampler)
        sampler = value(bound, "sampler")
        return -(-len(dataset if sampler is None else sampler) // (batch_size or 1))
    except (TypeError, NotImplementedError):
        return None


def holds_device_tensors(found: Any, depth: int = _MAX_DEPTH) -> bool:
    """Whether a dataset holds tensors on a device, judging by its attributes and their first elements."""
    if isinstance(found, torch.Tensor):
        return bool(found.is_cuda)
    if depth == 0 or found is None or isinstance(found, (str, bytes, int, float, type)):
        return False
    parts: list[Any] = []
    if isinstance(found, dict):
        parts = list(found.values())[:_MAX_LOOKED_AT]
    elif isinstance(found, (list, tuple)):
        parts = list(found[:4])
    elif hasattr(found, "__dict__"):
        parts = list(vars(found).values())[:_MAX_LOOKED_AT]
    return any(holds_device_tensors(part, depth - 1) for part in parts)


def _patch_iterators(report: Report, own_settings: Any) -> None:
    base, several = loaders._BaseDataLoaderIter, loaders._MultiProcessingDataLoaderIter
    original_iter, original_next, original_reset = DataLoader._get_iterator, base.__next__, several._reset

    @wraps(original_iter)
    def get_iterator(self: Any) -> Any:
        own = _own(own_settings, self)
        if own is None:
            return original_iter(self)
        before = _random_states(self.generator)
        try:
            made = original_iter(self)
        except Exception:  # noqa: BLE001
            report.failed("starting workers")
            _give_back(self, own, own_settings)
            _restore(before, self.generator)
            return original_iter(self)
        made.__dict__[_FALLBACK] = (weakref.ref(self), before)
        return made

    @wraps(original_next)
    def next_batch(self: Any) -> Any:
        state = self.__dict__.get(_FALLBACK)
        if state is None:
            return original_next(self)
        if not isinstance(state, tuple):  # `state` is the iterator that took over
            return original_next(state)
        try:
            batch = original_next(self)
        except StopIteration:
            raise
        except Exception as error:
            loader = state[0]()
            own = None if loader is None else _own(own_settings, loader)
            if own is None:
                raise
            report.note(f"a loader failed with it and continued without: {type(error).__name__}")
            report.details["fallbacks"] = int(report.details.get("fallbacks", 0)) + 1
            _give_back(loader, own, own_settings)
            _restore(state[1], loader.generator)
            with_own = original_iter(loader)
            self.__dict__[_FALLBACK] = with_own
            return original_next(with_own)
        del self.__dict__[_FALLBACK]
        return batch

    @wraps(original_reset)
    def reset(self: Any, loader: Any, first_iter: bool = False) -> Any:
        own = None if first_iter else _own(own_settings, loader)
        if own is not None and self._persistent_workers and not own["persistent_workers"]:
            # A new iterator would draw the base seed here, and the script's next random numbers depend on that draw.
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
        return original_reset(self, loader, first_iter)

    DataLoader._get_iterator, base.__next__, several._reset = get_iterator, next_batch, reset


def _own(own_settings: Any, loader: Any) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] | None = own_settings.get(loader)
    except TypeError:  # a subclass that is not hashable
        return None
    return found


def _give_back(loader: Any, own: dict[str, Any], own_settings: Any) -> None:
    """Restore the loader's settings to the script's own."""
    del own_settings[loader]
    for name, setting in own.items():
        if name == _CONTEXT:
            loader.multiprocessing_context = setting  # a property
        else:
            loader.__dict__[name] = setting
    loader.__dict__["_iterator"] = None


def _random_states(generator: Any) -> tuple[Any, Any]:
    return torch.get_rng_state(), None if generator is None else generator.get_state()


def _restore(states: tuple[Any, Any], generator: Any) -> None:
    torch.set_rng_state(states[0])
    if generator is not None:
        generator.set_state(states[1])
