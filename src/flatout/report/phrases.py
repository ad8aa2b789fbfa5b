"""The phrases that every report words alike: the job, a cost and its base, the ranks meant."""

from __future__ import annotations

from collections.abc import Iterable

from flatout import units
from flatout.records.diagnosis import Diagnosis

# Whose peak rates an MFU is of; older recordings do not tell.
MFU_AGAINST = {"measured": " of the measured ceiling", "vendor": " of the vendor's peak"}


def job_summary(diagnosis: Diagnosis) -> list[str]:
    """The job in a few facts: ranks, device, steps, step time."""
    job = diagnosis.job
    num_ranks = counted(job.num_ranks, "rank")
    if job.world_size and job.world_size > job.num_ranks:
        num_ranks = f"{job.num_ranks:,} of {job.world_size:,} ranks"
    if isinstance(job.hosts, tuple):
        num_ranks += f" on {len(job.hosts):,} hosts"
    facts = [num_ranks]
    if job.device:
        facts.append(job.device)
    if job.num_steps and job.step_s is not None:
        facts += [counted(job.num_steps, "step"), f"{units.seconds(job.step_s)} a step"]
        if job.untraced_step_s:
            facts.append(f"{units.seconds(job.untraced_step_s)} untraced")
    else:
        window_s = max((rank.window_s for rank in diagnosis.ranks), default=0.0)
        facts += ["no steps marked", f"{units.seconds(window_s)} recorded"]
    return facts + _measured(diagnosis)


def _measured(diagnosis: Diagnosis) -> list[str]:
    """What only a recording knows."""
    job = diagnosis.job
    facts = []
    for value, word in ((job.samples_per_s, "samples/s"), (job.tokens_per_s, "tokens/s")):
        if isinstance(value, float):
            facts.append(f"{value:,.0f} {word}")
    if isinstance(job.mfu, float):
        facts.append(f"MFU {units.percent(job.mfu)}{MFU_AGAINST.get(job.mfu_against or '', '')}")
    if isinstance(job.peak_memory_bytes, int):
        facts.append(f"peak memory {units.num_bytes(job.peak_memory_bytes)}")
    return facts


def cost(diagnosis: Diagnosis, cost_s: float) -> str:
    """The cost of a finding with its base: a step, or the recording where no steps are marked."""
    return f"{units.seconds(cost_s)} a step" if diagnosis.job.num_steps else f"{units.seconds(cost_s)} in all"


def ranks_of_job(ranks: Iterable[int], diagnosis: Diagnosis) -> str:
    """The ranks meant, `all ranks` only where no rank of the job is missing."""
    return ranks_text(ranks, max(diagnosis.job.num_ranks, diagnosis.job.world_size or 0))


def ranks_text(ranks: Iterable[int], num_ranks: int) -> str:
    """`rank 2`, `ranks 0-2, 5`, `all ranks`; the job as a whole where none is named."""
    named = sorted(set(ranks))
    if not named:
        return "the job"
    if len(named) == num_ranks and num_ranks > 1:
        return "all ranks"
    return ("rank " if len(named) == 1 else "ranks ") + units.rank_ranges(named)


def counted(count: int, noun: str) -> str:
    """`1 step`, `3 steps`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
