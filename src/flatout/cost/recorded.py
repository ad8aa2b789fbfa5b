"""Read from a recording of `flatout profile` the recorded attempt and the measured usage of its GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import fmean

from flatout.errors import InputError
from flatout.records.attempts import JobAttempt, Usage
from flatout.records.recording import GpuUse, HostRecording, HostUse, RankRecording, Recording

_SLURM = re.compile(r"slurm-(\d+)\.")
_ASKED_TO_END = {2, 15}  # SIGINT, SIGTERM
_LATEST_UNIX_S = 253_402_300_799.0  # the end of the year 9999, the last that a date can have


def recorded_attempt(recording: Recording, *, team: str | None = None) -> tuple[JobAttempt, Usage]:
    """Return the attempt and its usage. All of the command's time is charged, including before and after training.

    Raises InputError if the recording does not say how long the command ran.
    """
    start_s, end_s = _times(recording)
    num_gpus, gpu_types = _gpus(recording)
    job = _job(recording)
    own_gpus = list(_own_gpus(recording))
    attempt = JobAttempt(
        job=job,
        state=_state(recording.runs),
        elapsed_s=end_s - start_s,
        num_gpus=float(num_gpus),
        gpu_types=gpu_types,
        account=team,
        start_s=start_s,
        end_s=end_s,
        line=0,
    )
    usage = Usage(
        job=job,
        busy_share=_mean([gpu.busy_share for gpu in own_gpus], num_gpus),
        power_w=_mean([gpu.power_w for gpu in own_gpus], num_gpus),
    )
    return attempt, usage


def _times(recording: Recording) -> tuple[float, float]:
    """Return the start of the first and the end of the last run, in seconds since 1970."""
    starts = [run.start_unix_s for run in recording.runs]
    ends = [run.end_unix_s for run in recording.runs if run.end_unix_s is not None]
    if not starts or len(ends) < len(starts):
        raise InputError(
            f"`{recording.path}` does not say when its command ended, so its cost is unknown",
            hint="the command still runs, or was killed with its parent: pass the output of sacct for its job",
        )
    impossible_s = [time_s for time_s in (*starts, *ends) if not 0 <= time_s <= _LATEST_UNIX_S]
    if impossible_s:
        raise InputError(
            f"`{recording.path}`: its command must start and end between the years 1970 and 9999, but a time is"
            f" {impossible_s[0]:g} s since 1970",
            hint="the recording is damaged: copy it again",
        )
    return min(starts), max(ends)


def _gpus(recording: Recording) -> tuple[int, dict[str, float]]:
    """Return the number of GPUs in total and of each type."""
    names = [rank.device.name for rank in recording.ranks if rank.device is not None]
    if not names:
        return 0, {}
    num_gpus = max(rank.world_size for rank in recording.ranks)
    if len(set(names)) == 1:
        # A rank that was not recorded is assumed to be on the same type of GPU as the others.
        return num_gpus, {names[0]: float(num_gpus)}
    return num_gpus, {name: float(names.count(name)) for name in set(names)}


def _job(recording: Recording) -> str:
    slurm_job = _SLURM.match(recording.runs[0].run_id)
    return slurm_job[1] if slurm_job is not None else recording.path


def _state(runs: tuple[HostRecording, ...]) -> str:
    """Return the state that Slurm would give the attempt."""
    if all(run.exit_code == 0 for run in runs):
        return "COMPLETED"
    signals = {run.signal for run in runs if run.signal}
    return "CANCELLED" if signals and signals <= _ASKED_TO_END else "FAILED"


def _own_gpus(recording: Recording) -> Iterator[GpuUse]:
    """Yield the job's GPUs among the sampled ones: by identity or, without identities, all if each has its rank."""
    for host in recording.hosts:
        ranks = [rank for rank in recording.ranks if rank.hostname == host.hostname and rank.device is not None]
        identities = {rank.device.uuid for rank in ranks if rank.device is not None}
        own = [gpu for gpu in host.gpus if gpu.uuid and gpu.uuid in identities]
        yield from own or _all_if_ranked(host, ranks)


def _all_if_ranked(host: HostUse, ranks: list[RankRecording]) -> tuple[GpuUse, ...]:
    return host.gpus if len(host.gpus) == len(ranks) else ()


def _mean(values: list[float | None], num_gpus: int) -> float | None:
    """Return the mean; None if a GPU of the job was not sampled, since the others say nothing about it."""
    measured = [value for value in values if value is not None]
    has_all = num_gpus > 0 and len(measured) >= num_gpus
    return fmean(measured) if has_all else None
