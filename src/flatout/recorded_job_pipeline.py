"""What a recording of a job adds to the diagnosis of its traces: facts, ceilings, the step log, the second trace.

In: the folder of a recording, or the `Recording` read from it. Out: the values that `diagnose` takes. This module
composes the stages `profile`, `step_log`, `loading` and `attribute` and contains no rules itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from flatout.attribute.recorded_time import recorded_time
from flatout.attribute.stall_activity import stalled_rank
from flatout.diagnose.recorder import Untraced
from flatout.errors import InputError
from flatout.inside.protocol import File
from flatout.loading.causes import causes_of_slowness
from flatout.rank_executor import map_ranks
from flatout.read import TraceSource, open_sources, read_trace
from flatout.records.job_log import JobLog, StallCause
from flatout.records.stall_trace import StalledRank, StallTrace
from flatout.step_log.job_log import job_log
from flatout.storage_pipeline import loading_of

if TYPE_CHECKING:
    from flatout.records.ceilings import Ceilings
    from flatout.records.change import JobFacts
    from flatout.records.recorded_time import RecordedTime
    from flatout.records.recording import Recording

# A warm-up can compile code, collect garbage and retry allocations: these causes alone show no recurrence.
_RECURRING_CAUSES = frozenset(
    {
        StallCause.LOADER_START,
        StallCause.LOADER,
        StallCause.EVALUATION,
        StallCause.CHECKPOINT,
        StallCause.LOGGING,
    }
)


def has_step_log(recording: Recording) -> bool:
    """Whether the recording has steps that can be told apart, which have findings without a trace."""
    return job_log(recording.ranks) is not None


def recording_at(paths: Sequence[Path], ceilings: Path | None) -> Recording | None:
    """Read the recording of `flatout profile`, if the only path is the folder of one."""
    if len(paths) != 1 or not (paths[0] / File.RECORDING).is_file():
        return None
    from flatout.profile.read_recording import read_recording

    return with_known_ceilings(read_recording(paths[0]), ceilings)


def recorded_time_of(recording: Recording, log: JobLog | None = None) -> RecordedTime | None:
    """Return the parts of the whole recording's time, by its log if there is one; None if it has no ordinary step."""
    log = log or job_log(recording.ranks)
    return None if log is None else recorded_time(recording, log)


def with_known_ceilings(recording: Recording, ceilings: Path | None = None) -> Recording:
    """Add the MFU of the recording, from the file `ceilings` or from what `flatout bench` saved for its hosts.

    Without ceilings for its hosts, the recording is returned unchanged.
    """
    from flatout.profile.measure import with_ceilings

    ceilings_by_host = known_ceilings_of({rank.hostname for rank in recording.ranks}, ceilings)
    if not ceilings_by_host:
        return recording
    return with_ceilings(recording, ceilings_by_host)


def known_ceilings_of(hosts: set[str], ceilings: Path | None) -> dict[str, Ceilings]:
    from flatout.probe.ceilings.saved import known_ceilings, load_ceilings

    if ceilings is None:
        return known_ceilings(hosts)
    return dict.fromkeys(hosts, load_ceilings(ceilings))


def untraced_of(recording: Recording) -> Untraced | None:
    measured = recording.measured
    if measured.step_s is None:
        return None
    return Untraced(
        step_s=measured.step_s,
        spread_s=measured.step_spread_s,
        num_steps=measured.num_untraced_steps,
        spike_share=measured.spike_share or 0.0,
    )


def _with_loader_cause(facts: JobFacts, recording: Recording) -> JobFacts:
    """Return the facts with the cause for which the slowest rank's batches take their time, if stages were timed.

    Where the rank waits for files, the counters of the file systems name the cause.
    """
    profile = loading_of(recording)
    slowest = next((loading for loading in profile.ranks if loading.rank == profile.slowest_rank), None)
    if slowest is None:
        return facts
    if profile.causes:
        first = profile.causes[0]
        return msgspec.structs.replace(
            facts,
            loader_cause=first.name.value,
            loader_stage=first.stage,
            loader_stage_share=first.share_of_sample,
        )
    cause, stage = causes_of_slowness(slowest)[0]
    return msgspec.structs.replace(
        facts,
        loader_cause=cause.value,
        loader_stage=stage.name if stage is not None else None,
        loader_stage_share=stage.share if stage is not None else None,
    )


def facts_of(recording: Recording | None) -> JobFacts | None:
    """Return the recording's facts about the job; None without a recording, or if its facts cannot be read."""
    if recording is None:
        return None
    from flatout.profile.read_facts import read_facts

    try:
        return _with_loader_cause(read_facts(Path(recording.path), recording), recording)
    except InputError:
        return None


def stall_trace_of(recording: Recording, engine: str) -> StallTrace | None:
    """Return what the second trace of the recording shows; None if no such trace can be read."""
    paths = [Path(path) for _, path in recording.stall_traces]
    window = next((rank.stall_window for rank in recording.ranks if rank.stall_window is not None), None)
    if not paths or window is None:
        return None
    with open_sources(paths) as sources:
        found = map_ranks(_read_stall, sources, engine=engine, unpacked=[])
    ranks = [
        msgspec.structs.replace(stalled, rank=rank)
        for (rank, _), stalled in zip(recording.stall_traces, found, strict=True)
        if stalled is not None
    ]
    return StallTrace(step=window.due, period_steps=window.period, ranks=tuple(ranks)) if ranks else None


def _read_stall(source: TraceSource) -> StalledRank | None:
    try:
        return stalled_rank(read_trace(source, num_workers=1), rank=0)
    except InputError:
        return None


def recurring_steps(log: JobLog) -> frozenset[int]:
    """Return the numbers of the steps that stall for a measured cause that recurs in the course of a job."""
    return frozenset(stall.step for stall in log.stalls if stall.cause in _RECURRING_CAUSES)
