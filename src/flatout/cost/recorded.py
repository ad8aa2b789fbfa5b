"""A recording of `flatout profile` -> the attempt that it was of, and what its sampler measured of the GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import fmean

from flatout.errors import InputError
from flatout.records.attempts import JobAttempt, Usage
from flatout.records.recording import GpuUse, HostUse, RankRecording, Recording

_SLURM = re.compile(r"slurm-(\d+)\.")


def recorded_attempt(recording: Recording, *, team: str | None = None) -> tuple[JobAttempt, Usage]:
    """The whole time of the command is charged, with what it did before and after training.

    InputError where the recording does not say how long the command ran.
    """
    ends = [run.end_unix_s for run in recording.runs if run.end_unix_s is not None]
    if not recording.runs or len(ends) < len(recording.runs):
        raise InputError(
            f"`{recording.path}` does not say when its command ended, and so not what it cost",
            hint="it still runs, or it was killed with its parent: give the sacct of its job",
        )
    start_s = min(run.start_unix_s for run in recording.runs)
    end_s = max(ends)
    on_gpus = [rank for rank in recording.ranks if rank.device is not None]
    num_gpus = max((rank.world_size for rank in recording.ranks), default=0) if on_gpus else 0
    kinds = [rank.device.name for rank in on_gpus if rank.device is not None]
    slurm = _SLURM.match(recording.runs[0].run_id)
    job = slurm[1] if slurm is not None else recording.path
    codes = [run.exit_code for run in recording.runs]
    signals = [run.signal for run in recording.runs if run.signal]
    is_over = all(code == 0 for code in codes)
    state = "COMPLETED" if is_over else "CANCELLED" if signals and set(signals) <= {2, 15} else "FAILED"
    used = list(_own_gpus(recording))
    attempt = JobAttempt(
        job=job,
        state=state,
        elapsed_s=end_s - start_s,
        num_gpus=float(num_gpus),
        # A rank that was not recorded is on the same type of GPU as the others, where those are of one.
        gpu_types={kinds[0]: float(num_gpus)}
        if len(set(kinds)) == 1
        else {k: float(kinds.count(k)) for k in set(kinds)},
        account=team,
        start_s=start_s,
        end_s=end_s,
        line=0,
    )
    return attempt, Usage(
        job=job,
        busy_share=_mean([gpu.busy_share for gpu in used], num_gpus),
        power_w=_mean([gpu.power_w for gpu in used], num_gpus),
    )


def _own_gpus(recording: Recording) -> Iterator[GpuUse]:
    """The job's among those that the sampler saw: by their identity, else all where each has its rank."""
    for host in recording.hosts:
        ranks = [rank for rank in recording.ranks if rank.hostname == host.hostname and rank.device is not None]
        identities = {rank.device.uuid for rank in ranks if rank.device is not None and rank.device.uuid}
        own = [gpu for gpu in host.gpus if gpu.uuid in identities]
        yield from own or _all_of(host, ranks)


def _all_of(host: HostUse, ranks: list[RankRecording]) -> tuple[GpuUse, ...]:
    return host.gpus if len(host.gpus) == len(ranks) else ()


def _mean(values: list[float | None], num_gpus: int) -> float | None:
    """None where a GPU of the job was not seen: the others say nothing of it."""
    known = [value for value in values if value is not None]
    return fmean(known) if num_gpus and len(known) >= num_gpus else None
