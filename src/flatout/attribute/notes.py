"""Describe what is missing from a rank's trace, and how this affects its parts.

In: counts from the attribution of one rank. Out: `Quality` notes.
"""

from __future__ import annotations

from flatout.attribute.launches import GpuWork
from flatout.records.events import Quality, TraceFormat
from flatout.units import percent

MIN_UNLINKED_SHARE = 0.25  # this share occurs if a host runs one step ahead and three steps are recorded
# Launches without a kernel, as a share of all launches; public traces have none.
MEDIUM_LOST_SHARE = 0.01
# How steps are marked, and how the GPU is recorded, by the format of the trace.
STEP_MARKS = {
    TraceFormat.KINETO: "ProfilerStep marks",
    TraceFormat.NSYS: "NVTX ranges of steps, such as `step 12`",
    TraceFormat.ROCPROF: "ROCTX ranges of steps, such as `step 12`",
    TraceFormat.ROCPD: "ROCTX ranges of steps, such as `step 12`",
    TraceFormat.HOROVOD: "tensor that is reduced more than once, so that no steps are known",
}
RECORD_GPU = {TraceFormat.KINETO: " with ProfilerActivity.CUDA"}
INCONCLUSIVE_LOST_SHARE = 0.05


def rank_notes(
    work: GpuWork, trace_format: TraceFormat, *, has_steps: bool, num_lost: int, sign_of_gpu: str | None
) -> list[Quality]:
    """Return the notes on one rank; `num_lost` launches have no kernel, and `sign_of_gpu` shows an unseen GPU."""
    notes = []
    if not has_steps:
        notes.append(
            Quality(
                problem=f"the trace has no {STEP_MARKS.get(trace_format, 'marks of steps')}",
                effect="costs are for the whole recording, not per step, and include the time before the first step",
            )
        )
    if sign_of_gpu is not None:
        notes.append(
            Quality(
                problem=f"the trace has no GPU events, but {sign_of_gpu}",
                effect="what the device did is unknown; of the host's time, only loading data and checkpoints are"
                f" attributed: record again{RECORD_GPU.get(trace_format, ', with the GPU')}",
                max_confidence="inconclusive",
            )
        )
    elif not len(work):
        notes.append(Quality(problem="the trace has no GPU events", effect="the time is split as for a CPU job"))
    else:
        notes += _launch_notes(work, num_lost)
    return notes


def _launch_notes(work: GpuWork, num_lost: int) -> list[Quality]:
    notes = []
    if num_lost:
        notes.append(_lost_note(work, num_lost))
    num_unlinked = int((~work.is_linked).sum())
    if num_unlinked == len(work):
        notes.append(
            Quality(
                problem="no GPU event has a launching call in the trace",
                effect="idle time cannot be split into host work and launch latency",
            )
        )
    elif num_unlinked >= MIN_UNLINKED_SHARE * len(work):
        notes.append(
            Quality(
                problem=f"{num_unlinked:,} of {len(work):,} GPU events were launched before the recording",
                effect="they are counted as work; their launch calls are unknown",
            )
        )
    return notes


def _lost_note(work: GpuWork, num_lost: int) -> Quality:
    num_launches = num_lost + len(set(work.launch[work.is_linked].tolist()))
    share = num_lost / num_launches
    limit = None
    if share >= INCONCLUSIVE_LOST_SHARE:
        limit = "inconclusive"
    elif share >= MEDIUM_LOST_SHARE:
        limit = "medium"
    return Quality(
        problem=f"{num_lost:,} of {num_launches:,} launches ({percent(share)}) have no kernel in the trace:"
        " the profiler lost them",
        effect="compute and communication are understated; time in which the lost kernels can have run is unattributed",
        max_confidence=limit,
    )
