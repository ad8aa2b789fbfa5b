"""Apply measured shares of a GPU to a job history: a job that asked for a share gets what such a share delivers.

In: a history, and results of `flatout bench --share --out FILE`. Out: the history with longer (or shorter) durations
of jobs that use a share. A duration in the history is taken as that of a job that gets the share that it asked for; how
busy the other jobs on its GPU are is not followed over time: each counts as working all the time, as in the
measurement.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import msgspec

from flatout.errors import InputError
from flatout.input_files import decode_json, read_bytes
from flatout.records.sharing import SharingResult
from flatout.schedule.jobs import ClusterJob, JobHistory

_SCHEMA, _VERSION = "flatout/sharing", 1
_HINT = "create one with `flatout bench --share --out FILE`"


class _Envelope(msgspec.Struct):
    schema: str
    version: int


def read_sharing(path: Path) -> SharingResult:
    """Read a measurement. Raises InputError if it is none, or one of two commands."""
    try:
        data = read_bytes(path)
        envelope = decode_json(data, type=_Envelope)
        if (envelope.schema, envelope.version) != (_SCHEMA, _VERSION):
            raise InputError(
                f"`{path}` must have the schema `{_SCHEMA}` {_VERSION}, but has `{envelope.schema}` {envelope.version}",
                hint=_HINT,
            )
        sharing = decode_json(data, type=SharingResult)
    except OSError as error:
        raise InputError(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}", hint=_HINT) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"`{path}` holds no measured shares: {error}", hint=_HINT) from None
    if not sharing.delivered:
        raise InputError(f"`{path}` must have measured shares, but compares two commands", hint=_HINT)
    if not all(0 < each.asked_share < 1 and 0 < each.delivered_share < 10 for each in sharing.delivered):
        raise InputError(f"`{path}` must have shares above 0 that were asked for and delivered", hint=_HINT)
    return sharing


def delivered_of_asked(sharings: Sequence[SharingResult]) -> tuple[tuple[float, float], ...]:
    """Return what shares deliver, as a part of what was asked for, by the share: the mean of all kinds of work."""
    by_asked: dict[float, list[float]] = {}
    for sharing in sharings:
        for each in sharing.delivered:
            by_asked.setdefault(each.asked_share, []).append(each.delivered_share / each.asked_share)
    return tuple(sorted((asked, fmean(parts)) for asked, parts in by_asked.items()))


def with_sharing(history: JobHistory, sharings: Sequence[SharingResult]) -> JobHistory:
    """Return the history with the durations that jobs with a share of a GPU have by the measurements."""
    table = delivered_of_asked(sharings)
    jobs = tuple(_stretched(job, table) for job in history.jobs)
    num_shares = sum(job.gpu_share < 1 for job in jobs)
    shown = ", ".join(f"{part:.2f} of what was asked for with {asked:.2f} of a GPU" for asked, part in table)
    note = f"{num_shares:,} jobs with a share of a GPU get, as measured, {shown}"
    return msgspec.structs.replace(history, jobs=jobs, notes=(*history.notes, note))


def _stretched(job: ClusterJob, table: Sequence[tuple[float, float]]) -> ClusterJob:
    if job.gpu_share >= 1:
        return job
    factor = 1 / _interpolated(job.gpu_share, table)
    return msgspec.structs.replace(
        job, duration_s=job.duration_s * factor, phases=tuple(phase_s * factor for phase_s in job.phases)
    )


def _interpolated(share: float, table: Sequence[tuple[float, float]]) -> float:
    """Return the part that is delivered, on the line between the nearest measured shares, and theirs beyond them."""
    below = [(asked, part) for asked, part in table if asked <= share]
    above = [(asked, part) for asked, part in table if asked >= share]
    if not below or not above:
        return (below or above)[-1 if below else 0][1]
    (low, low_part), (high, high_part) = below[-1], above[0]
    if high == low:
        return low_part
    return low_part + (high_part - low_part) * (share - low) / (high - low)
