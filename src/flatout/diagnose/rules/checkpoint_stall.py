"""A rank writes a checkpoint while the training waits.

What it means
    The GPU of a rank is idle while its host writes a checkpoint, and the other ranks wait for that rank at the next
    collective. In a trace their waiting looks like communication.

Why it costs
    `torch.save` copies the state to the host, then serialises and writes it, all in the training loop. Every rank of
    the job waits, not only the one that writes.

Evidence
    Of a recording: `torch.save` and its like, measured in every step of the job, the ranks that wait, and the number of
    steps from one checkpoint to the next. Of a plain trace: the idle time of the writing rank (`checkpoint_s`), its
    copies to the host (`copies_s`), the ranks that wait for it, and the steps in which it happened. There a checkpoint
    is recognised by a series of pageable device-to-host copies, more than 64 MiB in total, followed by a time in which
    the profiler sees no activity of the host.

Change to try
    Write in the background (`torch.distributed.checkpoint.async_save`, or a thread after a copy to pinned memory),
    write sharded instead of on one rank, or write less often.

When this is wrong
    In a plain trace, large tensors that are copied to the host for another reason (evaluation results, a debug dump)
    look the same, and the cost is a mean over the traced steps: if one of three has a checkpoint but the job writes one
    every thousand steps, the true cost is smaller by that ratio. A recording has all steps.
"""

from __future__ import annotations

from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.finding import cost_words, finding, rank_words
from flatout.diagnose.stalls import Stalls, ranks_in_words, stall_finding, stalls_of
from flatout.records.diagnosis import Finding, Part
from flatout.records.job_log import StallCause

CODE = "F04"
NAME = "checkpoint-stall"


CHANGES = (
    "write in the background: torch.distributed.checkpoint.async_save",
    "write a sharded checkpoint: each rank writes its own part",
    "write less often",
)


def find(context: DiagnosisContext) -> list[Finding]:
    stalls = stalls_of(context, StallCause.CHECKPOINT)
    if stalls is not None:
        context.claim(Part.CHECKPOINT, context.available(Part.CHECKPOINT))  # the same time, as the trace shows it
        return _of_the_log(stalls)
    return _of_the_trace(context)


def _of_the_log(stalls: Stalls) -> list[Finding]:
    log_s = stalls.log.spent_s[StallCause.CHECKPOINT]
    return stall_finding(
        stalls,
        code=CODE,
        name=NAME,
        what=f"{ranks_in_words(stalls)} {_writes(stalls.ranks)} while the training waits",
        changes=CHANGES,
        evidence={"checkpoint_s": float(log_s.max(axis=0).sum()) / stalls.log.num_steps},
    )


def _writes(ranks: tuple[int, ...]) -> str:
    return "writes a checkpoint" if len(ranks) == 1 else "write checkpoints"


def _of_the_trace(context: DiagnosisContext) -> list[Finding]:
    if context.available(Part.CHECKPOINT) <= 0:
        return []
    rank = context.busiest_rank(Part.CHECKPOINT)
    own_s = float(context.own[context.row[rank], Part.CHECKPOINT])
    copies_s = context.per_step(context.facts(rank).checkpoint_copy_s)
    cost = context.claim(Part.CHECKPOINT, context.available(Part.CHECKPOINT)) + context.claim(
        Part.MEMORY_COPY, copies_s
    )
    ranks = context.ranks_with_most(Part.CHECKPOINT)
    job = context.job
    steps = sorted(
        {
            step.number
            for t in context.ranks
            for step in t.steps
            if job.segments[t.rank].between_ns(step.start_ns, step.end_ns)[Part.CHECKPOINT] > 0
        }
    )
    return finding(
        context,
        code=CODE,
        name=NAME,
        title=(
            f"{rank_words(ranks, len(context.ranks))} {_writes(ranks)} while the training waits:"
            f" {cost_words(context, cost)}"
        ),
        ranks=ranks,
        cost_s=cost,
        evidence={
            "checkpoint_s": own_s,
            "copies_s": copies_s,
            "num_bytes": context.facts(rank).copy_bytes.get("DtoH"),
            "steps": steps,
            "waiting_ranks": sorted({w for (w, late, _) in context.blamed if late == rank}),
        },
        changes=CHANGES,
        safety="exact",
    )
