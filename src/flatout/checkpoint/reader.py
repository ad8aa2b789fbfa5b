"""Read a committed checkpoint for torch's distributed checkpointing: tensors from safetensors, the rest from JSON.

In: a folder and its ranks' records. Out: a `StorageReader` for `torch.distributed.checkpoint.load`, whose planner finds
the parts that each rank needs, whatever number of ranks wrote them with whatever sharding. Nothing is unpickled.
torch's own reader unpickles its metadata; this reader has no such metadata.
"""

from __future__ import annotations

import mmap
import warnings
from collections.abc import Mapping, Sequence
from inspect import signature
from math import prod
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as distributed_checkpoint
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.futures import Future

from flatout.checkpoint.problems import CheckpointError, DamagedError
from flatout.checkpoint.safetensors import Place, read_header, view


class Saved:
    """The content of a checkpoint. `tensors`: shape, dtype and device by name; `chunks`: the parts by tensor name."""

    def __init__(self, path: Path, records: Mapping[int, Mapping[str, Any]], rank: int) -> None:
        self.path = path
        self.world_size: int = next(iter(records.values()))["world_size"]
        self.has_own = rank in records
        self.own_rank = rank if self.has_own else min(records)
        self.values: Mapping[str, Any] = records[self.own_rank]["values"]
        self.tensors: dict[str, dict[str, Any]] = {}
        self.chunks: dict[str, list[tuple[str, str, list[int], list[int]]]] = {}  # file, key in it, offsets, sizes
        self.own: dict[str, tuple[str, str]] = {}  # tensors of this rank alone: file and key
        seen = set()
        for of, record in records.items():
            for file, index in record["tensors"].items():
                for key, one in index.items():
                    if one["own"]:
                        if of == self.own_rank:
                            self.own[one["name"]] = file, key
                            self.tensors[one["name"]] = one
                    elif (where := (one["name"], *one["offsets"])) not in seen:
                        chunks = self.chunks.setdefault(one["name"], [])
                        self.tensors[one["name"]] = one
                        if prod(one["sizes"]):  # a rank without a part of the tensor writes an empty one
                            seen.add(where)
                            chunks.append((file, key, one["offsets"], one["sizes"]))
        for record in records.values():
            for name, other in record["aliases"].items():
                if other in self.tensors:
                    self.tensors[name] = self.tensors[other]
                    if other in self.own:
                        self.own[name] = self.own[other]
                    else:
                        self.chunks[name] = self.chunks[other]

    def trained(self) -> dict[str, dict[str, Any]]:
        """Return the tensors of the model and the optimizers, excluding the tensors in values."""
        return {name: one for name, one in self.tensors.items() if one["kind"] != "value"}

    def own_parameter(self) -> str | None:
        """Return the name of a parameter, or of an optimizer's state, that differed between ranks."""
        return next((name for name in self.own if self.tensors[name]["kind"] == "parameter"), None)

    def check_covers(self, destinations: Mapping[str, Any]) -> None:
        """Raise DamagedError unless the files have all local parts of these tensors; unknown names are ignored.

        A host's folder has only the parts of that host's ranks, and torch's planner silently skips missing parts.
        """
        for name, tensor in destinations.items():
            for box in _boxes(tensor) if name in self.chunks else []:
                covered = sum(_overlap(box, (offsets, sizes)) for _, _, offsets, sizes in self.chunks[name])
                if covered != prod(box[1]):
                    raise DamagedError(
                        f"its files hold {covered} of the {prod(box[1])} elements of `{name}` needed here"
                    )

    def read(self, destinations: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Read into these tensors, and return the tensors in values."""
        shared = {name: tensor for name, tensor in destinations.items() if name not in self.own}
        if shared:
            self.check_covers(shared)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns that the ranks do not communicate; they need not
                try:
                    distributed_checkpoint.load(dict(shared), storage_reader=SafetensorsReader(self), **_ALONE)
                except CheckpointException as error:  # it is not an `Exception`, and its text is a traceback
                    cause = next((failure[0] for failure in error.failures.values()), error)
                    raise cause if isinstance(cause, CheckpointError) else DamagedError(_one_line(cause)) from error
        found = dict(destinations)
        files = _Files(self.path)
        with torch.no_grad():
            for name, (file, key) in self.own.items():
                tensor = files.tensor(file, key, self.tensors[name])
                if name in destinations:
                    _local(destinations[name]).copy_(tensor)
                else:
                    found[name] = tensor.clone()
        return found


class SafetensorsReader(distributed_checkpoint.StorageReader):  # type: ignore[misc]
    def __init__(self, saved: Saved) -> None:
        self._saved = saved

    def reset(self, checkpoint_id: Any = None) -> None:
        pass

    def read_metadata(self, *_: Any, **__: Any) -> Any:
        return Metadata(
            {
                name: TensorStorageMetadata(
                    properties=TensorProperties(dtype=getattr(torch, self._saved.tensors[name]["dtype"])),
                    size=torch.Size(self._saved.tensors[name]["shape"]),
                    chunks=[
                        ChunkStorageMetadata(offsets=torch.Size(offsets), sizes=torch.Size(sizes))
                        for _, _, offsets, sizes in chunks
                    ],
                )
                for name, chunks in self._saved.chunks.items()
            }
        )

    def set_up_storage_reader(self, metadata: Any, is_coordinator: bool, *_: Any, **__: Any) -> None:
        self._files = {
            MetadataIndex(name, offsets): (file, key)
            for name, chunks in self._saved.chunks.items()
            for file, key, offsets, _ in chunks
        }

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        files = _Files(self._saved.path)
        with torch.no_grad():
            for item in plan.items:
                index = MetadataIndex(item.storage_index.fqn, item.storage_index.offset)
                part = files.tensor(*self._files[index], self._saved.tensors[index.fqn])
                for dimension, (begin, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                    part = part.narrow(dimension, begin, length)
                target = planner.resolve_tensor(item).detach()
                target.copy_(part)
                planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return False


class _Files:
    """The files, mapped into memory. A file is closed when the last tensor that shares its memory is gone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, tuple[mmap.mmap, dict[str, Place], int]] = {}

    def tensor(self, file: str, key: str, described: Mapping[str, Any]) -> torch.Tensor:
        """Return a view of the file's memory, or of a copy of it."""
        if file not in self._open:
            path = self._folder / file
            places, begin = read_header(path)
            with path.open("rb") as opened:
                # torch requires writable memory; this is a private copy on write.
                self._open[file] = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY), places, begin
        data, places, begin = self._open[file]
        tensor = view(data, places[key], begin)
        if described["dtype"].startswith("complex"):
            # Copy first: torch assumes that the address of a complex128 is a multiple of 16 bytes, and crashes
            # otherwise.
            return torch.view_as_complex(tensor.clone())
        return tensor


# Older versions of torch lack this option, and make the ranks compare their plans.
_ALONE = {"no_dist": True} if "no_dist" in signature(distributed_checkpoint.load).parameters else {}
_Box = tuple[Sequence[int], Sequence[int]]  # offsets and sizes


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][:200]


def _boxes(tensor: Any) -> list[_Box]:
    """Return the parts of the whole tensor that this rank has."""
    if not hasattr(tensor, "device_mesh"):
        return [((0,) * tensor.dim(), tensor.shape)]
    if tensor.device_mesh.get_coordinate() is None:
        return []
    return [(chunk.offsets, chunk.sizes) for chunk in tensor.__create_chunk_list__()]


def _overlap(one: _Box, other: _Box) -> int:
    """Return the number of elements that two boxes share."""
    spans = zip(*one, *other, strict=True)
    return prod(max(min(a + long, b + wide) - max(a, b), 0) for a, long, b, wide in spans)


def _local(tensor: Any) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "device_mesh") else tensor
