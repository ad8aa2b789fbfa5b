"""A rank writes a checkpoint while the training waits.

What it means
    The GPU of a rank is idle while its host writes a checkpoint, and the other ranks wait for that rank at the next
    collective. In a trace their waiting looks like communication.

Why it costs
    `torch.save` copies the state to the host, then serialises and writes it, all in the training loop. Every rank of
    the job waits, not only the one that writes.

Evidence
    The idle time of the writing rank (`checkpoint_s`), its copies to the host (`copies_s`), the ranks that wait for it,
    and the steps in which it happened. In a plain trace a checkpoint is recognised by a series of pageable
    device-to-host copies, more than 64 MiB in total, followed by a time in which the profiler sees no activity of the
    host.

Change to try
    Write in the background (`torch.distributed.checkpoint.async_save`, or a thread after a copy to pinned memory),
    write sharded instead of on one rank, or write less often.

When this is wrong
    Large tensors that are copied to the host for another reason (evaluation results, a debug dump) look the same. The
    cost is a mean over the recorded steps: if one of three recorded steps has a checkpoint but the job writes one every
    thousand steps, the true cost is smaller by that ratio.
"""

from __future__ import annotations

from flatout.diagnose.case import Case
from flatout.diagnose.finding import cost_words, finding, rank_words
from flatout.records.diagnosis import Finding, Part

CODE = "F04"
NAME = "checkpoint-stall"


def find(case: Case) -> list[Finding]:
    if case.available(Part.CHECKPOINT) <= 0:
        return []
    rank = case.busiest_rank(Part.CHECKPOINT)
    own_s = float(case.own[case.row[rank], Part.CHECKPOINT])
    copies_s = case.per_step(case.facts(rank).checkpoint_copy_s)
    cost = case.claim(Part.CHECKPOINT, case.available(Part.CHECKPOINT)) + case.claim(Part.MEMORY_COPY, copies_s)
    ranks = case.ranks_with_most(Part.CHECKPOINT)
    job = case.job
    steps = sorted(
        {
            step.number
            for t in case.ranks
            for step in t.steps
            if job.segments[t.rank].between_ns(step.start_ns, step.end_ns)[Part.CHECKPOINT] > 0
        }
    )
    return finding(
        case,
        code=CODE,
        name=NAME,
        title=(
            f"{rank_words(ranks, len(case.ranks))} writes a checkpoint while the training waits:"
            f" {cost_words(case, cost)}"
        ),
        ranks=ranks,
        cost_s=cost,
        evidence={
            "checkpoint_s": own_s,
            "copies_s": copies_s,
            "num_bytes": case.facts(rank).copy_bytes.get("DtoH"),
            "steps": steps,
            "waiting_ranks": sorted({w for (w, late, _) in case.blamed if late == rank}),
        },
        changes=(
            "write in the background: torch.distributed.checkpoint.async_save",
            "write sharded, each rank its own part",
            "write less often",
        ),
        safety="exact",
    )
