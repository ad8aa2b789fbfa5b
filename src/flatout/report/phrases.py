"""Phrases that all reports share: the job, a cost and its unit, the names of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from flatout import units
from flatout.records.diagnosis import Diagnosis, JobSummary
from flatout.records.recording import Measured

# The peak rates that an MFU is a share of. Older recordings do not have this.
MFU_AGAINST = {"measured": " of the measured ceiling", "vendor": " of the vendor's peak"}
MIN_FIRST_WAIT = 0.05  # of the time of all steps


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
    elif job.ranks_of_unknown_device:
        facts.append("device unknown")
    return facts + recorded_facts(job) + _traced(diagnosis)


def _traced(diagnosis: Diagnosis) -> list[str]:
    """Return the facts of the traced window."""
    job = diagnosis.job
    if not job.num_steps and job.traced_share == 0.0:
        return ["no trace"]
    if not job.num_steps or job.step_s is None:
        window_s = max((rank.window_s for rank in diagnosis.ranks), default=0.0)
        return ["no steps marked", f"{units.seconds(window_s)} recorded"]
    step = f"{units.seconds(job.step_s)} per step"
    if isinstance(job.mean_step_s, float):
        return [f"{counted(job.num_steps, 'step')} traced, {step}"]
    facts = [counted(job.num_steps, "step"), f"{step} of the traced window"]
    if job.untraced_step_s:
        facts.append(f"{units.seconds(job.untraced_step_s)} untraced")
    return facts


def recorded_facts(job: JobSummary | Measured) -> list[str]:
    """Return the facts that only a recording has: its steps, rates, MFU and memory.

    Each is a total of the recording; the same of the regular step follows in parentheses.
    """
    facts = []
    num_steps = job.num_recorded_steps if isinstance(job, JobSummary) else job.num_steps
    if isinstance(job.mean_step_s, float) and isinstance(num_steps, int):
        facts.append(counted(num_steps, "step"))
        step = f"{units.seconds(job.mean_step_s)} per step{_regular(job.regular_step_s, units.seconds)}"
        facts.append(step + _first_wait(job.first_wait_s, num_steps * job.mean_step_s))
    if isinstance(job.samples_per_s, float):
        facts.append(f"{_rate(job.samples_per_s)} samples/s{_regular(job.regular_samples_per_s, _rate)}")
    if isinstance(job.tokens_per_s, float):
        facts.append(f"{_rate(job.tokens_per_s)} tokens/s{_regular(job.regular_tokens_per_s, _rate)}")
    if isinstance(job.mfu, float):
        against = MFU_AGAINST.get(job.mfu_against or "", "")
        facts.append(f"MFU {units.percent(job.mfu)}{against}{_regular(job.regular_mfu, units.percent)}")
    if isinstance(job.peak_memory_bytes, int):
        facts.append(f"peak memory {units.num_bytes(job.peak_memory_bytes)}")
    return facts


def _first_wait(first_wait_s: float | msgspec.UnsetType | None, total_s: float) -> str:
    """Return the wait for the first batch, if it makes a recording of this length look slower than a longer one."""
    if not isinstance(first_wait_s, float) or first_wait_s < MIN_FIRST_WAIT * total_s:
        return ""
    return f", {units.percent(first_wait_s / total_s)} of all steps' time waiting for the first batch"


def _regular(value: float | msgspec.UnsetType | None, shown: Callable[[float], str]) -> str:
    return f" (regular {shown(value)})" if isinstance(value, float) else ""


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}"


def cost(diagnosis: Diagnosis, cost_s: float) -> str:
    """Return the cost of a finding with its base: per step, or in total if no steps are marked."""
    return f"{units.seconds(cost_s)} {cost_base(diagnosis)}"


def cost_base(diagnosis: Diagnosis) -> str:
    """Return what a cost refers to: `per step`, or `in total` if no steps are marked."""
    has_steps = bool(diagnosis.job.num_steps) or isinstance(diagnosis.job.num_recorded_steps, int)
    return "per step" if has_steps else "in total"


def ranks_of_job(ranks: Iterable[int], diagnosis: Diagnosis) -> str:
    """Name the ranks; `all ranks` or `both ranks` only if no rank of the job is missing."""
    return ranks_text(ranks, max(diagnosis.job.num_ranks, diagnosis.job.world_size or 0))


def ranks_text(ranks: Iterable[int], num_ranks: int) -> str:
    """Name the ranks: `rank 2`, `ranks 0-2, 5`, `both ranks`, `all ranks`; without any rank, `the job`."""
    named = sorted(set(ranks))
    if not named:
        return "the job"
    if len(named) == num_ranks and num_ranks > 1:
        return "both ranks" if num_ranks == 2 else "all ranks"
    noun = "rank" if len(named) == 1 else "ranks"
    return f"{noun} {units.rank_ranges(named)}"


def counted(count: int, noun: str) -> str:
    """Return the count with its noun: `1 step`, `3 steps`."""
    plural = "" if count == 1 else "s"
    return f"{count:,} {noun}{plural}"
