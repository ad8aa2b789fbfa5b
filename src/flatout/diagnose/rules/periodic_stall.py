"""Some steps take much longer than the regular step.

What it means
    Most steps take about the same time, and a few of them much longer, often at regular intervals: something happens
    there that is not part of the training step itself. Its cause is given where the recorder measured it: the start of
    a loader in the middle of an epoch, late batches, compilation, logging, or retries of the GPU's allocator.

Why it costs
    The median step hides it, and a trace of three steps misses it, but the job waits for every one of these steps. In a
    job with collectives all ranks wait for the rank that stalls.

Evidence
    How many of the job's steps stalled (`num_stalled_steps`), the steps from one stall to the next (`period_steps`,
    null if irregular), the share of the recorded time in these steps, the time beyond the regular step (`total_s`), and
    examples of their numbers. The rank is known where its own measurements explain the time.

Change to try
    Look at what the script does every `period_steps` steps. Log and print less often and without waiting for the GPU,
    keep shapes fixed so that nothing is compiled again, and start loaders once.

When this is wrong
    Other processes on the same machine, a network that is shared, or a throttled clock stall a job too, mostly at
    irregular steps. Batches that come late at least once in as many steps as the loader has workers are not counted
    here: the workers deliver together, and the loader is too slow in every step (`data-loading`). A host that launches
    many steps before it waits for the GPU has one long step at each wait, which costs nothing. It is not counted where
    the trace shows a GPU that works all the time, for as long per step as the mean step; the data quality says so.
"""

from __future__ import annotations

from flatout.diagnose.calls import is_pooled
from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.host_evidence import busy_cores
from flatout.diagnose.loader_advice import keep_workers, more_workers
from flatout.diagnose.stalls import ends_an_epoch, ranks_in_words, stall_finding, stalls_of
from flatout.records.diagnosis import Finding
from flatout.records.job_log import StallCause

CODE = "F20"
NAME = "periodic-stall"
HOST_EVIDENCE = (busy_cores,)
_WHAT = {
    StallCause.LOADER_START: "a loader is started again",
    StallCause.LOADER: "batches come late",
    StallCause.LOGGING: "the training waits for logging",
    StallCause.COMPILATION: "code is compiled again",
    StallCause.ALLOCATOR: "the GPU's allocator empties its cache and tries again",
    StallCause.UNKNOWN: "steps take longer than the regular step, for a cause that was not recorded",
}
_CHANGES = {
    StallCause.LOADER_START: ("make the loader's iterator once",),
    StallCause.LOADER: ("data on faster storage",),
    StallCause.LOGGING: ("log less often", "log in the background"),
    StallCause.COMPILATION: ("fixed shapes, or torch.compile(dynamic=True)",),
    StallCause.ALLOCATOR: ("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "a smaller batch"),
    StallCause.UNKNOWN: (
        "look at what the script does at regular intervals: logging, printing, saving, synchronising",
    ),
}


def find(context: DiagnosisContext) -> list[Finding]:
    if context.log is None:
        return []
    is_epoch = ends_an_epoch(context.log)
    findings = []
    for cause, what in _WHAT.items():
        stalls = stalls_of(context, cause, where=lambda stall: not is_epoch(stall))
        if stalls is None or stalls.steps == [int(context.log.number[0])]:  # the first step's wait for its batch
            continue
        if cause == StallCause.UNKNOWN and is_pooled(context):  # the time between the ends of calls that overlap
            continue
        is_one_rank = cause != StallCause.UNKNOWN and len(context.log.ranks) > 1
        on = f" on {ranks_in_words(stalls)}" if is_one_rank else ""
        changes = _CHANGES[cause]
        if cause == StallCause.LOADER_START:
            changes += keep_workers(context.job_facts)
        if cause == StallCause.LOADER:
            changes = (more_workers(context.job_facts, "more workers or a larger prefetch_factor"), *changes)
        findings += stall_finding(stalls, code=CODE, name=NAME, what=f"{what}{on}", changes=changes)
    return findings
