"""Jobs of synthetic traces for the tests, and what came out of them in microseconds."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from flatout.attribute.job import attribute_job
from flatout.attribute.rank import attribute_rank
from flatout.diagnose.find import diagnose
from flatout.diagnose.recorder import Untraced
from flatout.records.diagnosis import PART_NAMES, Diagnosis, Finding, Part
from flatout.records.job import JobAttribution
from flatout.records.timeline import Segments
from flatout.testing import TraceBuilder


def attributed(*traces: TraceBuilder) -> JobAttribution:
    return attribute_job([attribute_rank(trace.to_table()) for trace in traces])


def diagnosed(*traces: TraceBuilder, untraced_step_us: float | None = None) -> Diagnosis:
    untraced = None if untraced_step_us is None else Untraced(step_s=untraced_step_us / 1e6)
    return diagnose(attributed(*traces), untraced=untraced)


def free_of_recorder_cost(*traces: TraceBuilder) -> Diagnosis:
    """The diagnosis of a job that is known to take as long without the recorder."""
    return diagnosed(*traces, untraced_step_us=1e12)


def totals_ns(segments: Segments) -> NDArray[np.int64]:
    """Nanoseconds by part; shape (NUM_PARTS,)."""
    return segments.between_ns(int(segments.start_ns[0]), int(segments.end_ns[-1]))


def parts_us(job: JobAttribution, rank: int) -> dict[str, float]:
    """Parts of the rank's window that have any time, in microseconds."""
    return {PART_NAMES[part]: ns / 1e3 for part, ns in enumerate(totals_ns(job.segments[rank]).tolist()) if ns}


def step_parts_us(job: JobAttribution, rank: int, step: int) -> dict[str, float]:
    """Parts of one step of the rank, in microseconds."""
    timeline = next(t for t in job.timelines if t.rank == rank)
    span = next(s for s in timeline.steps if s.number == step)
    spent = job.segments[rank].between_ns(span.start_ns, span.end_ns)
    return {PART_NAMES[part]: ns / 1e3 for part, ns in enumerate(spent.tolist()) if ns}


def exposed_wait_us(job: JobAttribution, rank: int) -> float:
    """Exposed wait of the rank in whole steps, in microseconds."""
    timeline = next(t for t in job.timelines if t.rank == rank)
    return float(job.segments[rank].between_ns(timeline.first_step_ns, timeline.window_end_ns)[Part.WAIT]) / 1e3


def blame_us(job: JobAttribution) -> dict[tuple[int, int, str], float]:
    """(waiting rank, blamed rank, part) -> microseconds in whole steps."""
    return {(b.waiting_rank, b.blamed_rank, b.part): round(b.wait_s * 1e6, 6) for b in job.blame}


def names(diagnosis: Diagnosis) -> list[str]:
    return [finding.name for finding in diagnosis.findings]


def found(diagnosis: Diagnosis, name: str) -> Finding:
    """The one finding of that name."""
    findings = [finding for finding in diagnosis.findings if finding.name == name]
    assert len(findings) == 1, f"{name} in {names(diagnosis)}"
    return findings[0]


def total_cost_s(findings: Iterable[Finding]) -> float:
    return sum(finding.cost_s_per_step for finding in findings)


STEP = 10_000  # us: 2 % of it, the least that is told, are 200
GEMM = "nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_NTT"  # a matrix product on tensor cores


def times(num_steps: int) -> Iterable[tuple[int, int]]:
    """Number and begin of each step of `STEP` us."""
    return ((number, (number - 1) * STEP) for number in range(1, num_steps + 1))


def costs_us(diagnosis: Diagnosis) -> dict[str, float]:
    """Name of each finding -> its cost a step in us."""
    return {finding.name: finding.cost_s_per_step * 1e6 for finding in diagnosis.findings}
