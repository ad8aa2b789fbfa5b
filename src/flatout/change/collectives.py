"""What the attributed job itself says of its communication: sizes, element size, backend. A part of `JobFacts`."""

from __future__ import annotations

import msgspec
import numpy as np

from flatout.records.change import JobFacts
from flatout.records.job import JobAttribution
from flatout.records.timeline import CommunicationCall

REDUCTIONS = ("all_reduce", "reduce_scatter")


def with_collectives(facts: JobFacts, job: JobAttribution) -> JobFacts:
    """The facts with what the traces show; what they do not show stays as it was."""
    calls = [call for t in job.timelines for call in t.communication.calls if call.num_bytes]
    reductions = [call for call in calls if call.operation in REDUCTIONS and call.num_elements]
    num_steps = max((len(t.steps) for t in job.timelines), default=0) or 1
    found = {
        "num_ranks": job.world_size,
        "backend": next((t.meta.backend for t in job.timelines if t.meta.backend), None),
        "device": ("cuda" if any(t.has_gpu for t in job.timelines) else "cpu") if job.timelines else None,
        "collective_bytes": _typical_bytes(calls),
        "gradient_bytes": round(sum(c.num_bytes or 0 for c in reductions) / len(job.timelines) / num_steps) or None
        if job.timelines
        else None,
        "gradient_element_bytes": _element_bytes(reductions),
    }
    return msgspec.structs.replace(facts, **{name: value for name, value in found.items() if value is not None})


def _typical_bytes(calls: list[CommunicationCall]) -> int | None:
    """The size below which half of all bytes are moved: a job's few large collectives count, not its many small."""
    if not calls:
        return None
    sizes = np.sort(np.array([call.num_bytes or 0 for call in calls], dtype=np.int64))
    return int(sizes[np.searchsorted(np.cumsum(sizes), sizes.sum() / 2)])


def _element_bytes(calls: list[CommunicationCall]) -> int | None:
    """Bytes an element of most of the reduced bytes."""
    if not calls:
        return None
    largest = max(calls, key=lambda call: call.num_bytes or 0)
    return round((largest.num_bytes or 0) / (largest.num_elements or 1)) or None
