"""Lower the confidence of findings that rest on a damaged or incomplete trace.

In: findings and the data-quality notes of their ranks. Out: the findings, with no more confidence than the notes allow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from flatout.records.diagnosis import Finding
from flatout.records.events import Quality
from flatout.records.job import JobAttribution

_FROM_SURE_TO_UNSURE = ("high", "medium", "inconclusive")


def limited(findings: Iterable[Finding], job: JobAttribution, notes: Iterable[Quality]) -> list[Finding]:
    """Return the findings with the confidence that the job's notes and `notes`, which concern the input, allow."""
    of_rank = [msgspec.structs.replace(note, rank=t.rank) for t in job.timelines for note in t.quality]
    limits = [note for note in (*of_rank, *job.quality, *notes) if note.max_confidence is not None]
    return [_limited(finding, limits) for finding in findings]


def _limited(finding: Finding, limits: Sequence[Quality]) -> Finding:
    concerned = [note for note in limits if note.rank is None or note.rank in finding.ranks]
    confidences = [finding.confidence, *(note.max_confidence or "high" for note in concerned)]
    return msgspec.structs.replace(finding, confidence=max(confidences, key=_FROM_SURE_TO_UNSURE.index))
