"""GPUs of one process idle while another GPU of the same process works.

What it means
    One process drives several GPUs (`DataParallel`, or a model that is split over GPUs with `device_map`), and some of
    them have nothing to do while others work.

Why it costs
    A model that is split layer by layer runs on one GPU at a time. `DataParallel` computes the loss and the update on
    its first GPU, copies the weights to all others in each step, and launches everything from one Python process.

Evidence
    For each GPU of the process, the share of the step in which it works and in which it idles for another one; whether
    the GPUs work in turn or at the same time.

Change to try
    Start one process per GPU with `torchrun` and use `DistributedDataParallel`. If the model does not fit on one GPU,
    use FSDP, or a pipeline with several microbatches.

When this is wrong
    Memory, not speed, may be the reason for the split: then the idle time is the price of a larger model. The cost
    assumes that all GPUs can work at the same time; the communication that this takes is not subtracted.
"""

from __future__ import annotations

import numpy as np

from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.finding import finding, is_reportable, rank_words
from flatout.records.diagnosis import Finding, Part
from flatout.units import percent, rank_ranges

CODE = "F16"
NAME = "idle-devices"
BUSY = (Part.COMPUTE, Part.TRANSFER, Part.COMMUNICATION_UNSPLIT, Part.MEMORY_COPY)
MIN_IDLE_SHARE = 0.5  # of the longest idle time: the GPUs that the title names
MAX_OVERLAP = 0.1  # of the time in which a GPU works; below, the GPUs are said to work in turn


def find(context: DiagnosisContext) -> list[Finding]:
    waits_s = {t.rank: context.waits_for_own_devices_s(t.rank) for t in context.ranks if t.devices}
    if not waits_s:
        return []
    wanted_s = sum(waits_s.values()) / len(context.ranks)
    if not is_reportable(context, wanted_s):
        return []
    cost = context.claim(Part.WAIT, wanted_s)
    worst = max(waits_s, key=lambda rank: waits_s[rank])
    ranks = tuple(sorted(rank for rank, wait_s in waits_s.items() if wait_s >= MIN_IDLE_SHARE * waits_s[worst]))
    busy = _shares(context, worst, BUSY)
    idle = _shares(context, worst, (Part.WAIT,))
    works_in_turn = _works_in_turn(context, worst)
    num_unused = _num_unused(context, worst, len(busy))
    return finding(
        context,
        code=CODE,
        name=NAME,
        title=_title(context, ranks, busy, idle, works_in_turn=works_in_turn, num_unused=num_unused),
        ranks=ranks,
        cost_s=cost,
        evidence={
            "rank": worst,
            "num_devices": len(busy),
            "num_unused_devices": num_unused,
            "busy_share": {f"GPU {device}": share for device, share in busy.items()},
            "idle_share": {f"GPU {device}": share for device, share in idle.items()},
            "devices_work_in_turn": works_in_turn,
        },
        changes=(
            "one process per GPU: torchrun with DistributedDataParallel",
            "FSDP, or a pipeline with several microbatches, if the model does not fit on one GPU",
        ),
        safety="exact",
        confidence="medium",
    )


def _title(
    context: DiagnosisContext,
    ranks: tuple[int, ...],
    busy: dict[int, float],
    idle: dict[int, float],
    *,
    works_in_turn: bool,
    num_unused: int,
) -> str:
    """Say how the GPUs of a rank work, and which of them idle most; the shares are those of its GPUs."""
    idlest = [device for device, share in idle.items() if share >= MIN_IDLE_SHARE * max(idle.values())]
    busy_share = float(np.mean(list(busy.values())))
    idle_share = float(np.mean([idle[device] for device in idlest]))
    drive = "drives" if len(ranks) == 1 else "drive"
    how = "in turn" if works_in_turn else "unevenly"
    gpus_idle = f"GPU {idlest[0]} idles" if len(idlest) == 1 else f"GPUs {rank_ranges(idlest)} idle"
    period = "step" if context.num_steps else "recording"
    title = (
        f"{rank_words(ranks, len(context.ranks))} {drive} {len(busy)} GPUs that work {how},"
        f" {percent(busy_share)} of the time on average: {gpus_idle} for {percent(idle_share)} of the {period} while"
        " another one works"
    )
    if num_unused:
        title += f"; {num_unused} more that it sees {'is' if num_unused == 1 else 'are'} not used"
    return title


def _shares(context: DiagnosisContext, rank: int, parts: tuple[Part, ...]) -> dict[int, float]:
    """Return the share of the rank's steps that each of its GPUs spends in the parts."""
    timeline = context.ranks[context.row[rank]]
    shares = {}
    for device, segments in context.job.device_segments[rank].items():
        spent_ns = segments.between_ns(timeline.first_step_ns, timeline.window_end_ns)
        shares[device] = float(spent_ns[list(parts)].sum() / spent_ns.sum())
    return shares


def _num_unused(context: DiagnosisContext, rank: int, num_used: int) -> int:
    """Return the number of GPUs that the only process of a job sees and does not use; 0 for a job of several."""
    if (context.job.world_size or 1) > 1 or len(context.ranks) > 1:
        return 0
    return max(context.ranks[context.row[rank]].meta.num_devices - num_used, 0)


def _works_in_turn(context: DiagnosisContext, rank: int) -> bool:
    """Whether at most one of the rank's GPUs works at a time."""
    timeline = context.ranks[context.row[rank]]
    of_rank = context.job.segments[rank].between_ns(timeline.first_step_ns, timeline.window_end_ns)
    any_busy = float(of_rank[[*BUSY, Part.WAIT, Part.BUBBLE]].sum() / of_rank.sum())
    return sum(_shares(context, rank, BUSY).values()) <= (1 + MAX_OVERLAP) * any_busy
