"""Write the facts about the job that only its own process knows to `facts-rank<R>.json` in the recording.

In: the objects of the script. They are inspected once, in steps that the recorder disturbs anyway: from the FLOPs step
to the end of the trace window, the first `zero_grad` and the first `autocast` are noted; then the model, its wrapper,
the optimizers and the loaders are searched for among all live objects. Other steps cost nothing. A tuning compares the
steps of its trials, so in a trial everything happens at the end. Only the loaders are noted after the first step,
because a job that ends before its trace, or before its trial is stopped, no longer has them. Unknown values are null.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.utils.data.dataloader as loaders
from torch.optim.optimizer import Optimizer

from flatout.inside.collector import COLLECTOR
from flatout.inside.identity import Identity
from flatout.inside.live_objects import live_objects, parameters_of, root_modules
from flatout.inside.protocol import File, partial_name
from flatout.inside.random_seed import sets_own_seed
from flatout.inside.recording.forward_calls import FORWARD_CALLS
from flatout.inside.recording.loader_watch import WATCHES
from flatout.inside.recording.pickled_workers import PICKLED_WORKERS
from flatout.inside.recording.sampler_times import SAMPLER_TIMES
from flatout.inside.recording.session_calls import SESSION_CALLS
from flatout.inside.recording.thread_counts import THREAD_COUNTS
from flatout.secrets import masked_environment, write_private

SCHEMA, VERSION = "flatout/facts", 1
_VARIABLES = ("NCCL_", "TORCH_", "PYTORCH_", "CUDA_", "OMP_", "MKL_", "KMP_", "GOMP_", "GLOO_")
_PACKAGES = {
    "has_torchao": "torchao",
    "has_transformer_engine": "transformer_engine",
    "has_bitsandbytes": "bitsandbytes",
    "has_liger": "liger_kernel",
    "has_xformers": "xformers",
}
_ROWS_LOOKED_AT = 4096  # of an embedding's gradient
_CONVOLUTIONS = ("Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d")


class FactsCollector:
    """Collects the facts of the job. Call `watch` before the steps to be watched, and `write` once at the end."""

    def __init__(self) -> None:
        self.zero_grad_sets_to_none: bool | None = None
        self.uses_autocast = False
        self._undo: list[Callable[[], None]] = []
        self._is_watching = False
        self._loaders: dict[str, Any] | None = None

    def watch(self) -> None:
        """Note `zero_grad` and `autocast` until `write`."""
        self._is_watching = True
        self._watch_zero_grad()
        self._watch_autocast()

    def look_at_loaders(self) -> None:
        """Note the facts of the loaders once; `write` uses them if the loaders no longer exist."""
        if self._loaders is None:
            self._loaders = _loader_facts(live_objects(loaders._BaseDataLoaderIter))

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
                **_process_facts(identity),
                **self._step_facts(),
                **(self._loaders or {}),
                **_object_facts(list(optimizers)),
            },
            "environment": masked_environment(
                {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)}
            ),
        }
        path = recording / File.FACTS.of(identity.rank)
        partial = path.with_name(partial_name(path.name))
        write_private(partial, json.dumps(content, indent=1) + "\n")
        partial.replace(path)

    def _step_facts(self) -> dict[str, Any]:
        uses_autocast: bool | None = self.uses_autocast
        if not uses_autocast:
            uses_autocast = torch.is_autocast_enabled() if self._is_watching else None
        return {"zero_grad_sets_to_none": self.zero_grad_sets_to_none, "is_autocast": uses_autocast}

    def _watch_zero_grad(self) -> None:
        for kind in (Optimizer, torch.nn.Module):
            original: Any = kind.zero_grad

            def zero_grad(holder: Any, set_to_none: bool = True, *, _original: Any = original) -> None:
                if self.zero_grad_sets_to_none is not False:
                    self.zero_grad_sets_to_none = bool(set_to_none)
                _original(holder, set_to_none)

            self._replace(kind, "zero_grad", wraps(original)(zero_grad))

    def _watch_autocast(self) -> None:
        original = torch.autocast.__enter__

        @wraps(original)
        def enter(context: Any) -> Any:
            if getattr(context, "_enabled", True):
                self.uses_autocast = True
            return original(context)

        self._replace(torch.autocast, "__enter__", enter)

    def _replace(self, holder: Any, name: str, ours: Any) -> None:
        before = getattr(holder, name)
        setattr(holder, name, ours)

        def undo() -> None:
            if getattr(holder, name) is ours:
                setattr(holder, name, before)

        self._undo.append(undo)


def _process_facts(identity: Identity) -> dict[str, Any]:
    has_gpu = torch.cuda.is_initialized()
    capability = torch.cuda.get_device_capability() if has_gpu else None
    num_numa_nodes = len(list(Path("/sys/devices/system/node").glob("node[0-9]*")))
    return {
        "torch": str(torch.__version__).partition("+")[0],
        "nccl": _nccl_version() if has_gpu else None,
        "python": ".".join(map(str, sys.version_info[:3])),
        "cuda": torch.version.cuda,
        "driver": _driver_version() if has_gpu else None,
        "backend": _gradient_backend(identity.backend, has_gpu),
        "threads_per_rank": torch.get_num_threads(),
        "script_sets_threads": THREAD_COUNTS.is_set_by_script,
        "cores_of_machine": os.cpu_count(),
        "cpu_has_bf16": _cpu_has_bf16(),
        "gpu_arch": None if capability is None else capability[0] + capability[1] / 10,
        "is_deterministic": bool(torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic),
        "num_numa_nodes": num_numa_nodes or None,
        "collects_automatically": COLLECTOR.is_automatic(),
        "sets_own_seed": sets_own_seed(),
    }


def _cpu_has_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool | None:
    """Whether the processor multiplies matrices of bf16 (AVX-512 BF16, AMX, or Arm's extension); None: unknown."""
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    if flags is None:
        return None
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags[1].split())


def _gradient_backend(backends: str | None, has_gpu: bool) -> str | None:
    """Return the backend that carries gradients, from e.g. `nccl` or `cpu:gloo,cuda:nccl`."""
    if backends is None:
        return None
    if "," not in backends:
        return backends.rpartition(":")[2]
    by_device = dict(item.partition(":")[::2] for item in backends.split(","))
    return by_device.get("cuda" if has_gpu else "cpu", backends)


def _nccl_version() -> str | None:
    try:
        version = torch.cuda.nccl.version()
    except Exception:  # noqa: BLE001 - a build without it
        return None
    return ".".join(map(str, version)) if isinstance(version, tuple) else None


def _driver_version() -> str | None:
    """Return the version of NVIDIA's driver; None for other drivers."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    match = re.search(r"\s(\d+\.\d+[.\d]*)\s", text)
    return match[1] if match else None


def _object_facts(optimizers: list[Any]) -> dict[str, Any]:
    objects = live_objects(torch.nn.Module, loaders._BaseDataLoaderIter)
    modules = [candidate for candidate in objects if isinstance(candidate, torch.nn.Module)]
    iterators = [candidate for candidate in objects if isinstance(candidate, loaders._BaseDataLoaderIter)]
    parameters = parameters_of(optimizers)
    models = root_modules(modules, {id(parameter) for parameter in parameters})
    called = None if FORWARD_CALLS.model is None else FORWARD_CALLS.model()
    if not optimizers and called is not None:
        models, parameters = [called], list(called.parameters())
    device = parameters[0].device.type if parameters else None
    if device is None and torch.cuda.is_initialized():
        device = "cuda"
    return {
        **_optimizer_facts(optimizers, parameters),
        **_model_facts(models),
        **_loader_facts(iterators),
        "device": device,
        **SESSION_CALLS.facts(),
    }


def _optimizer_facts(optimizers: list[Any], parameters: list[Any]) -> dict[str, Any]:
    """Return the facts of the optimizer with the most parameters, and of all gradients."""
    if not optimizers:
        return {}
    largest = max(optimizers, key=_num_elements)
    group = largest.param_groups[0]
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    gradient_bytes = sum(parameter.numel() * parameter.element_size() for parameter in trained)
    return {
        "optimizer": type(largest).__name__,
        "optimizer_is_fused": bool(group.get("fused")),
        "optimizer_is_foreach": group.get("foreach"),
        "gradient_bytes": gradient_bytes or None,
        "gradient_element_bytes": max((parameter.element_size() for parameter in trained), default=None),
    }


def _num_elements(optimizer: Any) -> int:
    return sum(parameter.numel() for parameter in parameters_of([optimizer]))


def _model_facts(models: list[Any]) -> dict[str, Any]:
    if not models:
        return {}
    modules = [module for model in models for module in model.modules()]
    class_names = {base.__name__ for kind in set(map(type, modules)) for base in kind.__mro__}
    ddp = [module for module in modules if isinstance(module, torch.nn.parallel.DistributedDataParallel)]
    fsdp2_units = [module for module in modules if _has_class(module, "FSDPModule")]
    return {
        **_wrapper_facts(ddp, fsdp2_units),
        "has_convolutions": not class_names.isdisjoint(_CONVOLUTIONS),
        "has_batch_norm": "_BatchNorm" in class_names,
        "has_transformers": "transformers" in sys.modules and "PreTrainedModel" in class_names,
        "is_compiled": "OptimizedModule" in class_names or _is_compiled(modules),
        **_embedding_facts(ddp),
        **{fact: find_spec(package) is not None for fact, package in _PACKAGES.items()},
        "has_onnx": find_spec("onnx") is not None and find_spec("onnxruntime") is not None,
    }


def _wrapper_facts(ddp: list[Any], fsdp2_units: list[Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {"wrapper": None, "find_unused_parameters": None}
    if ddp:
        facts["wrapper"] = "ddp"
        facts["find_unused_parameters"] = bool(ddp[0].find_unused_parameters)
    if fsdp2_units:
        facts["wrapper"] = "fsdp2"
        facts["reshards_after_forward"] = _reshards(fsdp2_units)
    return facts


def _embedding_facts(wrappers: list[Any]) -> dict[str, Any]:
    """Return the bytes of the largest embedding with dense gradients, and the share of its rows that a step uses."""
    modules = [module for wrapper in wrappers for module in wrapper.modules()]
    embeddings = [module for module in modules if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag)]
    weights = [module.weight for module in embeddings if module.weight.requires_grad and not module.sparse]
    if not weights:
        return {}
    largest = max(weights, key=lambda weight: weight.numel())
    return {
        "embedding_bytes": largest.numel() * largest.element_size(),
        "embedding_rows_used": _share_of_rows_used(largest.grad),
    }


def _share_of_rows_used(gradient: torch.Tensor | None) -> float | None:
    """Return the share of the rows with a gradient, of some thousand rows at equal distances; None without one."""
    if gradient is None or gradient.layout is not torch.strided or not len(gradient):
        return None
    distance = -(-len(gradient) // _ROWS_LOOKED_AT)
    is_used = (gradient.detach()[::distance] != 0).any(dim=1)
    return float(is_used.sum().item()) / len(is_used)


def _has_class(module: Any, name: str) -> bool:
    return any(base.__name__ == name for base in type(module).__mro__)


def _is_compiled(modules: list[Any]) -> bool:
    """Whether a module was compiled in place, or a plain function was compiled."""
    if any(module._compiled_call_impl is not None for module in modules):
        return True
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters["stats"]["unique_graphs"])


def _reshards(units: list[Any]) -> bool | None:
    """Whether a unit frees its weights after forward, excluding the root, which FSDP2 itself keeps gathered."""
    answers = []
    for unit in units:
        state = unit._get_fsdp_state()
        group: Any = getattr(state, "_fsdp_param_group", None)
        if getattr(state, "_is_root", False) or not hasattr(group, "post_forward_mesh_info"):
            continue
        answers.append(group.post_forward_mesh_info is not None)
    return any(answers) if answers else None


def _loader_facts(iterators: list[Any]) -> dict[str, Any]:
    """Return the facts of the loader that has yielded the most batches."""
    if not iterators:
        return {}
    busiest = max(iterators, key=lambda iterator: iterator._num_yielded)
    num_workers = busiest._num_workers
    return {
        "loader_batches": _num_batches(busiest),
        "loader_is_iterable": busiest._dataset_kind == loaders._DatasetKind.Iterable,
        **(WATCHES[0].facts_of(busiest) if WATCHES else {}),
        "loader_workers": num_workers,
        "loader_prefetch": getattr(busiest, "_prefetch_factor", None) if num_workers else None,
        "loader_pins_memory": bool(busiest._pin_memory),
        "loader_has_persistent_workers": bool(busiest._persistent_workers),
        "loader_start_method": _start_method(busiest) if num_workers else None,
        **PICKLED_WORKERS.facts(),
        **SAMPLER_TIMES.facts_of(busiest),
    }


def _start_method(iterator: Any) -> str | None:
    """Return how the workers of a loader were started: `fork`, `spawn` or `forkserver`."""
    workers = getattr(iterator, "_workers", ())
    if not workers:
        return None
    return getattr(workers[0], "_start_method", None) or multiprocessing.get_start_method(allow_none=True)


def _num_batches(iterator: Any) -> int | None:
    """Return the batches of one epoch; None if the loader does not know, as with most iterable data sets."""
    if iterator._dataset_kind == loaders._DatasetKind.Iterable:
        return None
    try:
        return len(iterator)
    except (TypeError, NotImplementedError):
        return None
