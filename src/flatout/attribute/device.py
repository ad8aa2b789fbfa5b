"""Decide which kind of device a rank ran on: a GPU, the CPU, or a device that its trace does not show.

A trace without GPU events belongs to a CPU job only if nothing in it indicates a GPU: the profiler may have lost the
GPU's events, or may not have recorded them.
"""

from __future__ import annotations

import re

import numpy as np

from flatout.attribute import names
from flatout.attribute.launches import GpuWork
from flatout.records.diagnosis import Part
from flatout.records.events import EventTable, Kind
from flatout.records.timeline import CommunicationKernels, Segments

_DEVICE_BACKENDS = frozenset({"nccl", "rccl", "xccl", "hccl"})
_DEVICE_COLLECTIVE = re.compile(r"^(?:nccl|rccl|xccl|hccl):")
_HOST_COLLECTIVE = re.compile(r"^(?:gloo|mpi|xla):")
_DEVICE_OPERATOR = re.compile(r"^aten::_?(?:cudnn|miopen)_")
# The host's parts that are certain for a rank without GPU events, whatever its device did meanwhile.
_HOST_PARTS = (Part.DATA_LOADING, Part.CHECKPOINT)


def sign_of_unseen_gpu(table: EventTable, work: GpuWork, num_lost_launches: int) -> str | None:
    """Return the evidence that the rank used, or may have used, a GPU whose events its trace lacks.

    Return None if there is no such evidence.
    """
    if len(work):
        return None
    if num_lost_launches:
        return f"the host launched {num_lost_launches:,} kernels: the profiler lost them"
    if table.is_kind(Kind.GPU_ANNOTATION, Kind.SYNC).any():
        return "it has step marks on a GPU timeline"
    is_annotation = table.kind == Kind.USER_ANNOTATION
    if _has(table, _DEVICE_COLLECTIVE, is_annotation):
        return "its collectives come from a GPU library"
    if _has(table, _HOST_COLLECTIVE, is_annotation):
        return None
    if table.is_kind(Kind.RUNTIME).any():
        return "the host called the GPU runtime"
    if _has(table, _DEVICE_OPERATOR, table.kind == Kind.CPU_OP):
        return "it has operators that only run on a GPU"
    backends = set(re.split(r"[:,]", table.meta.backend or "")) - {"", "cuda", "xpu", "hpu"}
    if backends and backends <= _DEVICE_BACKENDS:
        return f"its backend is {table.meta.backend}"
    if table.meta.num_devices:
        return "its machine has GPUs"
    return None


def _has(table: EventTable, pattern: re.Pattern[str], rows: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> bool:
    return bool((names.matching(table.names, pattern)[table.name] & rows).any())


def of_unknown_device(segments: Segments) -> Segments:
    """Return a host's segments; time in which an unseen device may have worked becomes unattributed."""
    is_kept = np.isin(segments.part, _HOST_PARTS)
    part = np.where(is_kept, segments.part, Part.UNATTRIBUTED).astype(np.uint8)
    return Segments(start_ns=segments.start_ns, end_ns=segments.end_ns, part=part)


def no_communication() -> CommunicationKernels:
    """Return an empty list of communication, for a device that the trace does not show."""
    none = np.zeros(0, dtype=np.int64)
    return CommunicationKernels(start_ns=none, end_ns=none, launched_ns=none, stream=none, calls=())
