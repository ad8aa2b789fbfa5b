"""Read facts on the job's communication from its traces: sizes, element size, backend. They are part of `JobFacts`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from flatout.records.change import JobFacts
from flatout.records.job import JobAttribution
from flatout.records.timeline import CommunicationCall

REDUCTIONS = ("all_reduce", "reduce_scatter")


def with_collectives(facts: JobFacts, job: JobAttribution) -> JobFacts:
    """Return the facts with those that the traces show; the others stay unchanged."""
    calls = [call for timeline in job.timelines for call in timeline.communication.calls if call.num_bytes]
    reductions = [call for call in calls if call.operation in REDUCTIONS and call.num_elements]
    shown = {
        "num_ranks": job.world_size,
        "backend": next((timeline.meta.backend for timeline in job.timelines if timeline.meta.backend), None),
        "device": _device(job),
        "collective_bytes": _typical_bytes(calls),
        "gradient_bytes": _gradient_bytes(reductions, job),
        "gradient_element_bytes": _element_bytes(reductions),
    }
    known = {name: value for name, value in shown.items() if value is not None}
    return msgspec.structs.replace(facts, **known)


def _device(job: JobAttribution) -> str | None:
    if any(timeline.has_gpu for timeline in job.timelines):
        return "cuda"
    is_known = job.timelines and all(timeline.is_device_known for timeline in job.timelines)
    return "cpu" if is_known else None


def _gradient_bytes(reductions: Sequence[CommunicationCall], job: JobAttribution) -> int | None:
    """Return the reduced bytes per rank and step."""
    if not reductions:
        return None
    num_steps = max(len(timeline.steps) for timeline in job.timelines) or 1
    total = sum(call.num_bytes or 0 for call in reductions)
    return round(total / len(job.timelines) / num_steps) or None


def _typical_bytes(calls: Sequence[CommunicationCall]) -> int | None:
    """Return the size below which half of all bytes are moved, so that a few large collectives outweigh many small."""
    if not calls:
        return None
    sizes = np.sort(np.array([call.num_bytes or 0 for call in calls], dtype=np.int64))
    return int(sizes[np.searchsorted(np.cumsum(sizes), sizes.sum() / 2)])


def _element_bytes(reductions: Sequence[CommunicationCall]) -> int | None:
    """Return the bytes per element of the largest reduction."""
    if not reductions:
        return None
    largest = max(reductions, key=lambda call: call.num_bytes or 0)
    return round((largest.num_bytes or 0) / (largest.num_elements or 1)) or None
