"""What the job is, as only its process knows: `facts-rank<R>.json` in the recording.

Looked at once, in steps that the recorder disturbs anyhow: from the FLOPs step to the end of the window, the first
`zero_grad` and the first `autocast` are noted; then the live objects are looked through for the model, its wrapper, the
optimizer and the loaders. Other steps cost nothing. In a trial of a tuning, whose steps are compared, this is at the
end, and nothing is noted before, but for the loaders after the first step: a job that ends before its trial has stopped
it has none any more. Unknown is null.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any

import torch
import torch.utils.data.dataloader as loaders
from torch.optim.optimizer import Optimizer

from flatout.inside.identity import Identity
from flatout.inside.protocol import File, partial_name

SCHEMA, VERSION = "flatout/facts", 1
_VARIABLES = ("NCCL_", "TORCH_", "PYTORCH_", "CUDA_", "OMP_", "MKL_", "KMP_", "GOMP_", "GLOO_")
_CONVOLUTIONS = ("Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d")


class FactsCollector:
    def __init__(self) -> None:
        self.zero_grad_sets_to_none: bool | None = None
        self.uses_autocast = False
        self._undo: list[Callable[[], None]] = []
        self._is_watching = False
        self._loaders: dict[str, Any] | None = None

    def watch(self) -> None:
        """Note what the following steps do, until `write`."""
        self._is_watching = True
        self._watch_zero_grad()
        self._watch_autocast()

    def look_at_loaders(self) -> None:
        """Once: what `write` falls back on where they are gone by then."""
        if self._loaders is None:
            self._loaders = _of_loaders(_live(loaders._BaseDataLoaderIter))

    def write(self, recording: Path, identity: Identity, optimizers: Iterable[Any]) -> None:
        for undo in self._undo:
            undo()
        self._undo.clear()
        content = {
            "schema": SCHEMA,
            "version": VERSION,
            "rank": identity.rank,
            "world_size": identity.world_size,
            "hostname": os.uname().nodename,
            "facts": {
                **_of_process(identity),
                **self._of_steps(),
                **(self._loaders or {}),
                **_of_objects(list(optimizers)),
            },
            "environment": {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)},
        }
        path = recording / File.FACTS.of(identity.rank)
        partial = path.with_name(partial_name(path.name))
        partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        partial.replace(path)

    def _of_steps(self) -> dict[str, Any]:
        is_seen = self._is_watching or self.uses_autocast
        return {
            "zero_grad_sets_to_none": self.zero_grad_sets_to_none,
            "is_autocast": (self.uses_autocast or torch.is_autocast_enabled()) if is_seen else None,
        }

    def _watch_zero_grad(self) -> None:
        for kind in (Optimizer, torch.nn.Module):
            original: Any = kind.zero_grad

            def zero_grad(one: Any, set_to_none: bool = True, *, _original: Any = original) -> None:
                if self.zero_grad_sets_to_none is not False:
                    self.zero_grad_sets_to_none = bool(set_to_none)
                _original(one, set_to_none)

            self._replace(kind, "zero_grad", wraps(original)(zero_grad))

    def _watch_autocast(self) -> None:
        original = torch.autocast.__enter__

        @wraps(original)
        def enter(one: Any) -> Any:
            if getattr(one, "_enabled", True):
                self.uses_autocast = True
            return original(one)

        self._replace(torch.autocast, "__enter__", enter)

    def _replace(self, holder: Any, name: str, ours: Any) -> None:
        before = getattr(holder, name)
        setattr(holder, name, ours)

        def undo() -> None:
            if getattr(holder, name) is ours:
                setattr(holder, name, before)

        self._undo.append(undo)


def _of_process(identity: Identity) -> dict[str, Any]:
    has_gpu = torch.cuda.is_initialized()
    capability = torch.cuda.get_device_capability() if has_gpu else None
    return {
        "torch": str(torch.__version__).partition("+")[0],
        "nccl": _nccl_version() if has_gpu else None,
        "backend": None
        if identity.backend is None
        else identity.backend.rpartition(":")[2]
        if "," not in identity.backend
        else _of_device(identity.backend, has_gpu),
        "threads_per_rank": torch.get_num_threads(),
        "gpu_arch": None if capability is None else capability[0] + capability[1] / 10,
        "is_deterministic": bool(torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic),
        "num_numa_nodes": len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or None,
    }


def _of_device(backends: str, has_gpu: bool) -> str:
    """Of `cpu:gloo,cuda:nccl` the one that carries gradients."""
    by_device = dict(item.partition(":")[::2] for item in backends.split(","))
    return by_device.get("cuda" if has_gpu else "cpu", backends)


def _nccl_version() -> str | None:
    try:
        version = torch.cuda.nccl.version()
    except Exception:  # noqa: BLE001 - a build without it
        return None
    return ".".join(map(str, version)) if isinstance(version, tuple) else None


def _of_objects(optimizers: list[Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    objects = _live(torch.nn.Module, loaders._BaseDataLoaderIter)
    parameters = [one for optimizer in optimizers for group in optimizer.param_groups for one in group["params"]]
    facts |= _of_optimizers(optimizers, parameters)
    facts |= _of_models([one for one in objects if isinstance(one, torch.nn.Module)], {id(one) for one in parameters})
    facts |= _of_loaders([one for one in objects if isinstance(one, loaders._BaseDataLoaderIter)])
    facts["device"] = parameters[0].device.type if parameters else ("cuda" if torch.cuda.is_initialized() else None)
    return facts


def _live(*kinds: type) -> list[Any]:
    return [one for one in gc.get_objects() if issubclass(type(one), kinds)]


def _of_optimizers(optimizers: list[Any], parameters: list[Any]) -> dict[str, Any]:
    if not optimizers:
        return {}
    largest = max(optimizers, key=lambda one: sum(p.numel() for group in one.param_groups for p in group["params"]))
    group = largest.param_groups[0]
    trained = [one for one in parameters if one.requires_grad]
    return {
        "optimizer": type(largest).__name__,
        "optimizer_is_fused": bool(group.get("fused")),
        "optimizer_is_foreach": group.get("foreach"),
        "gradient_bytes": sum(one.numel() * one.element_size() for one in trained) or None,
        "gradient_element_bytes": max((one.element_size() for one in trained), default=None),
    }


def _of_models(modules: list[Any], wanted: set[int]) -> dict[str, Any]:
    inner = {id(child) for module in modules for child in module.__dict__.get("_modules", {}).values()}
    roots = [one for one in modules if id(one) not in inner and any(id(p) in wanted for p in one.parameters())]
    if not roots:
        return {}
    trained = [module for root in roots for module in root.modules()]
    names = {base.__name__ for kind in {type(one) for one in trained} for base in kind.__mro__}
    ddp = [one for one in trained if isinstance(one, torch.nn.parallel.DistributedDataParallel)]
    facts: dict[str, Any] = {
        "wrapper": "fsdp2" if "FSDPModule" in names else "ddp" if ddp else None,
        "find_unused_parameters": bool(ddp[0].find_unused_parameters) if ddp else None,
        "has_convolutions": not names.isdisjoint(_CONVOLUTIONS),
        "has_batch_norm": "_BatchNorm" in names,
        "has_transformers": "transformers" in sys.modules and "PreTrainedModel" in names,
        "is_compiled": "OptimizedModule" in names
        or any(one._compiled_call_impl is not None for one in trained)
        or _has_compiled(),
    }
    sharded = [one for one in trained if "FSDPModule" in {base.__name__ for base in type(one).__mro__}]
    if sharded:
        facts["reshards_after_forward"] = _reshards(sharded)
    return facts


def _has_compiled() -> bool:
    """A compiled function that is no module."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters["stats"]["unique_graphs"])


def _reshards(units: list[Any]) -> bool | None:
    """Any unit but the root, which FSDP2 itself keeps gathered."""
    found = []
    for unit in units:
        state = unit._get_fsdp_state()
        group = getattr(state, "_fsdp_param_group", None)
        if group is not None and hasattr(group, "post_forward_mesh_info") and not getattr(state, "_is_root", False):
            found.append(group.post_forward_mesh_info is not None)
    return any(found) if found else None


def _of_loaders(iterators: list[Any]) -> dict[str, Any]:
    """Of the iterator that has given most batches."""
    if not iterators:
        return {}
    most = max(iterators, key=lambda one: one._num_yielded)
    workers = most._num_workers
    return {
        "loader_workers": workers,
        "loader_prefetch": getattr(most, "_prefetch_factor", None) if workers else None,
        "loader_pins_memory": bool(most._pin_memory),
        "loader_has_persistent_workers": bool(most._persistent_workers),
    }
