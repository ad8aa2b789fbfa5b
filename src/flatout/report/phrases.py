"""Phrases that all reports share: the job, a cost and its unit, the names of ranks."""

from __future__ import annotations

from collections.abc import Iterable

from flatout import units
from flatout.records.diagnosis import Diagnosis

# The peak rates that an MFU is a share of. Older recordings do not have this.
MFU_AGAINST = {"measured": " of the measured ceiling", "vendor": " of the vendor's peak"}


def job_summary(diagnosis: Diagnosis) -> list[str]:
    """Return the job in a few facts: ranks, device, steps, step time."""
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
        facts += [counted(job.num_steps, "step"), f"{units.seconds(job.step_s)} per step"]
        if job.untraced_step_s:
            facts.append(f"{units.seconds(job.untraced_step_s)} untraced")
    else:
        window_s = max((rank.window_s for rank in diagnosis.ranks), default=0.0)
        facts += ["no steps marked", f"{units.seconds(window_s)} recorded"]
    return facts + _measured(diagnosis)


def _measured(diagnosis: Diagnosis) -> list[str]:
    """Return the facts that only a recording has: rates, MFU, memory."""
    job = diagnosis.job
    facts = []
    for rate, unit in ((job.samples_per_s, "samples/s"), (job.tokens_per_s, "tokens/s")):
        if isinstance(rate, float):
            facts.append(f"{rate:,.0f} {unit}")
    if isinstance(job.mfu, float):
        facts.append(f"MFU {units.percent(job.mfu)}{MFU_AGAINST.get(job.mfu_against or '', '')}")
    if isinstance(job.peak_memory_bytes, int):
        facts.append(f"peak memory {units.num_bytes(job.peak_memory_bytes)}")
    return facts


def cost(diagnosis: Diagnosis, cost_s: float) -> str:
    """Return the cost of a finding with its base: per step, or in total if no steps are marked."""
    return f"{units.seconds(cost_s)} {cost_base(diagnosis)}"


def cost_base(diagnosis: Diagnosis) -> str:
    """Return what a cost refers to: `per step`, or `in total` if no steps are marked."""
    return "per step" if diagnosis.job.num_steps else "in total"


def ranks_of_job(ranks: Iterable[int], diagnosis: Diagnosis) -> str:
    """Name the ranks; `all ranks` only if no rank of the job is missing."""
    return ranks_text(ranks, max(diagnosis.job.num_ranks, diagnosis.job.world_size or 0))


def ranks_text(ranks: Iterable[int], num_ranks: int) -> str:
    """Name the ranks: `rank 2`, `ranks 0-2, 5`, `all ranks`; without any rank, `the job`."""
    named = sorted(set(ranks))
    if not named:
        return "the job"
    if len(named) == num_ranks and num_ranks > 1:
        return "all ranks"
    noun = "rank" if len(named) == 1 else "ranks"
    return f"{noun} {units.rank_ranges(named)}"


def counted(count: int, noun: str) -> str:
    """Return the count with its noun: `1 step`, `3 steps`."""
    plural = "" if count == 1 else "s"
    return f"{count:,} {noun}{plural}"
