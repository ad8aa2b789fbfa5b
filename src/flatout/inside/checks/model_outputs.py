"""Keep a digest of the first outputs of a model that is used without gradients, for the gate of trials.

In: what each call returned. Out: a file of this rank with, for each call, its tensors: shape, norm, a few entries at
fixed places, and the places of the largest entry along the last dimension, which are a classifier's answers or a
language model's tokens. Of the first samples, which are the rows of a tensor, a few entries each are kept too: they are
the same samples with another size of the batch. Nothing of an output is kept after its call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch

from flatout.inside.log import LOG
from flatout.inside.protocol import File

MAX_CALLS = 16
MAX_TENSORS = 4  # of one call
MAX_ENTRIES = 64
MAX_ANSWERS = 64
MAX_SAMPLES = 256  # of all calls, so that runs with other sizes of the batch, which lack their first call, share some
MAX_SAMPLE_ENTRIES = 4
_MAX_DEPTH = 3


class ModelOutputRecorder:
    """Call `take` with the result of each call, and `write` at the end."""

    def __init__(self) -> None:
        self._calls: dict[int, list[dict[str, Any]]] = {}
        self._num_samples = 0

    def take(self, call: int, output: object) -> None:
        """Keep the digest of the call with this number, if it is one of the first."""
        if call >= MAX_CALLS and self._num_samples >= MAX_SAMPLES:
            return
        try:
            tensors = []
            for tensor in _tensors(output, _MAX_DEPTH):
                tensors.append(_digest(tensor, MAX_SAMPLES - self._num_samples, is_whole=call < MAX_CALLS))
                if len(tensors) == MAX_TENSORS:
                    break
            self._num_samples += max((len(tensor.get("samples", ())) for tensor in tensors), default=0)
            self._calls[call] = tensors or [{"shape": []}]  # no tensors: a call whose output is unknown
        except Exception:  # noqa: BLE001 - an error of ours is never the job's
            LOG.error("model output")

    def write(self, folder: Path, rank: int) -> None:
        if not self._calls:
            return
        path = folder / File.MODEL_OUTPUTS.of(rank)
        path.write_text(json.dumps({"rank": rank, "calls": self._calls}), encoding="utf-8")


def _tensors(value: object, depth: int) -> Iterator[torch.Tensor]:
    """Yield the tensors within an output, in a fixed order."""
    if isinstance(value, torch.Tensor):
        yield value
        return
    if depth == 0:
        return
    inner: list[Any] = []
    if isinstance(value, Mapping):
        inner = [value[key] for key in sorted(value, key=str)]
    elif isinstance(value, list | tuple):
        inner = list(value)
    elif is_dataclass(value) and not isinstance(value, type):
        inner = [getattr(value, field.name) for field in fields(value)]
    for each in inner:
        yield from _tensors(each, depth - 1)


def _digest(tensor: torch.Tensor, most_samples: int, *, is_whole: bool) -> dict[str, Any]:
    """Return the digest; of a call that is not one of the first, its samples alone."""
    shape = list(tensor.shape)
    if tensor.is_nested or tensor.is_sparse or tensor.is_complex() or not tensor.numel():
        return {"shape": shape}
    samples = _samples(tensor.detach()[:most_samples]) if tensor.dim() > 0 and most_samples > 0 else []
    if not is_whole:
        return {"shape": shape, "samples": samples}
    flat = tensor.detach().reshape(-1)
    count = min(MAX_ENTRIES, flat.numel())
    places = torch.linspace(0, flat.numel() - 1, count, dtype=torch.float64).long().to(flat.device)
    values = flat[places].to(torch.float64).tolist()
    digest: dict[str, Any] = {
        "shape": shape,
        "norm": str(float(torch.linalg.vector_norm(flat.to(torch.float64)))),
        "entries": [str(value) for value in values],  # as text: JSON has no infinity
    }
    if tensor.is_floating_point() and tensor.dim() > 1 and shape[-1] > 1:
        rows = tensor.detach().reshape(-1, shape[-1])[:MAX_ANSWERS]
        digest["answers"] = rows.argmax(dim=1).tolist()
    if samples:
        digest["samples"] = samples
    return digest


def _samples(tensor: torch.Tensor) -> list[list[str]]:
    """Return entries of each row at places that do not depend on the number of rows, and the row's mean size."""
    rows = tensor.reshape(len(tensor), -1).to(torch.float64)
    count = min(MAX_SAMPLE_ENTRIES, rows.shape[1])
    places = torch.linspace(0, rows.shape[1] - 1, count, dtype=torch.float64).long().to(rows.device)
    sizes = rows.square().mean(1, keepdim=True).sqrt()
    return [[str(value) for value in row] for row in torch.cat([rows[:, places], sizes], 1).tolist()]
