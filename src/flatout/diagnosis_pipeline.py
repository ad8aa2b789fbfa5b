"""The diagnosis of a job: read its traces, attribute its time, and name the causes of lost time.

In: trace files, folders, archives, or the folder of a recording. Out: a `Diagnosed`. This module composes the stages
`read`, `attribute` and `diagnose` and contains no rules itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from flatout.attribute.job import attribute_job
from flatout.attribute.rank import attribute_rank
from flatout.attribute.start import waited_at_start
from flatout.diagnose.find import diagnose
from flatout.diagnose.launched_ahead import without_waits_for_gpu
from flatout.diagnose.recorded import with_recording
from flatout.diagnose.recorder import Untraced
from flatout.errors import InputError
from flatout.inside.protocol import File
from flatout.rank_executor import map_ranks, num_cores
from flatout.read import RankPart, SeveralRanksError, TraceSource, assign_ranks, open_sources, read_trace
from flatout.recorded_job_pipeline import (
    facts_of,
    known_ceilings_of,
    recorded_time_of,
    recording_at,
    recurring_steps,
    stall_trace_of,
    untraced_of,
)
from flatout.records.diagnosis import Diagnosis
from flatout.records.events import Quality
from flatout.records.job import JobAttribution
from flatout.records.timeline import RankTimeline
from flatout.step_log.job_log import job_log
from flatout.units import NS_PER_S

if TYPE_CHECKING:
    from flatout.records.recording import Recording
    from flatout.report.perfetto import PerfettoRank

Progress = Callable[[int, int], None]  # traces read so far, and their total
_AttributeSource = Callable[..., "RankTimeline | _Unreadable | _SeveralRanks"]


class Diagnosed(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A diagnosis, together with the data it was made from."""

    diagnosis: Diagnosis
    job: JobAttribution
    sources: dict[int, TraceSource]  # by rank; files unpacked from an archive are deleted when `diagnose_paths` returns


def perfetto_ranks(done: Diagnosed) -> Iterator[PerfettoRank]:
    """Yield each rank's events, parts and blame on the common clock, to draw them. Reads the traces again."""
    from flatout.read.originals import Originals
    from flatout.report.perfetto import PerfettoRank

    for timeline in done.job.timelines:
        rank = timeline.rank
        offset_ns = done.job.clock_offset_ns.get(rank, 0)  # already included in the times of `timeline`
        yield PerfettoRank(
            rank=rank,
            originals=Originals(
                done.sources[rank],
                base_ns=timeline.meta.base_ns,
                earliest_ns=origin_ns(done) - offset_ns,
            ),
            segments=done.job.segments[rank],
            slices=tuple(piece for piece in done.job.slices if piece.waiting_rank == rank),
            clock_offset_ns=offset_ns,
        )


def origin_ns(done: Diagnosed) -> int:
    """Return the time one hour before the first analysed event, on the common clock. An earlier time must be wrong."""
    return min(t.first_event_ns for t in done.job.timelines) - 3600 * NS_PER_S


class _Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    hint: str


class _SeveralRanks(msgspec.Struct, frozen=True, kw_only=True):
    parts: tuple[RankPart, ...]


def diagnose_paths(
    paths: Sequence[Path],
    *,
    engine: str = "auto",
    given_ranks: Mapping[str, int] | None = None,
    untraced_step_s: float | None = None,
    ceilings: Path | None = None,
    progress: Progress | None = None,
    then: Callable[[Diagnosed], None] | None = None,
    with_tracks: bool = False,
) -> Diagnosed:
    """Read, attribute and diagnose the traces of one job: files, folders, archives, or the folder of a recording.

    `then` is called with the result while unpacked archives still exist. `with_tracks` keeps the tracks that `predict/`
    replays. Traces that cannot be read are skipped and reported in the data quality; InputError if none can be read.
    """
    paths = _with_xla_profiles(paths)
    recording = recording_at(paths, ceilings)
    untraced = None if untraced_step_s is None else Untraced(step_s=untraced_step_s)
    if recording is not None:
        untraced = untraced or untraced_of(recording)
        if not recording.traced_ranks:
            return _without_traces(recording, then)
    traces = paths if recording is None else [Path(recording.traces_path)]
    log = None if recording is None else job_log(recording.ranks)
    attribute_source = partial(
        _attribute_source,
        with_track=with_tracks,
        recurring_steps=frozenset() if log is None else recurring_steps(log),
    )
    with open_sources(traces) as sources:
        timelines, quality, source_of_rank = _read_all(sources, attribute_source, engine, given_ranks, progress)
        timelines = [_with_hostname(timeline, recording) for timeline in timelines]
        job = attribute_job(timelines)
        log = None if log is None else without_waits_for_gpu(log, job)
        hosts = {timeline.meta.hostname or "" for timeline in timelines}
        diagnosis = diagnose(
            job,
            untraced=untraced,
            quality=quality,
            ceilings=known_ceilings_of(hosts, ceilings),
            facts=facts_of(recording),
            log=log,
            stall_trace=None if recording is None else stall_trace_of(recording, engine),
        )
        if recording is not None:
            diagnosis = with_recording(diagnosis, recording, recorded_time_of(recording, log))
        diagnosis = _with_hosts(diagnosis, timelines, recording)
        result = Diagnosed(diagnosis=diagnosis, job=job, sources=source_of_rank)
        if then is not None:
            then(result)
    return result


def _with_hostname(timeline: RankTimeline, recording: Recording | None) -> RankTimeline:
    """Add the host that the recording names for the rank, if its trace names none."""
    ranks = () if recording is None else recording.ranks
    hostname = next((rank.hostname for rank in ranks if rank.rank == timeline.rank), None)
    if hostname is None or timeline.meta.hostname is not None:
        return timeline
    return msgspec.structs.replace(timeline, meta=msgspec.structs.replace(timeline.meta, hostname=hostname))


def _with_hosts(diagnosis: Diagnosis, timelines: Sequence[RankTimeline], recording: Recording | None) -> Diagnosis:
    """Add the host names of the ranks to the job, if there are at least two."""
    hostnames = {timeline.meta.hostname for timeline in timelines}
    if recording is not None:
        hostnames |= {rank.hostname for rank in recording.ranks}
    hosts = tuple(sorted(hostname for hostname in hostnames if hostname))
    if len(hosts) < 2:
        return diagnosis
    job = msgspec.structs.replace(diagnosis.job, hosts=hosts)
    return msgspec.structs.replace(diagnosis, job=job)


def _with_xla_profiles(paths: Sequence[Path]) -> Sequence[Path]:
    """Return the folder of the profiles in place of a recording of a JAX job, which has no steps of torch."""
    if len(paths) != 1 or any(paths[0].glob(File.STEPS.glob)) or not has_xla_profiles(paths[0]):
        return paths
    return [paths[0] / File.XLA]


def has_xla_profiles(recording: Path) -> bool:
    """Whether a recording has profiles of JAX."""
    return (recording / File.RECORDING).is_file() and (recording / File.XLA).is_dir()


def _without_traces(recording: Recording, then: Callable[[Diagnosed], None] | None) -> Diagnosed:
    """Return the diagnosis of the step log alone. Raises InputError if it has no steps either."""
    reason = next((note.problem for note in recording.problems), "it was recorded with --light")
    log = job_log(recording.ranks)
    if log is None:
        raise InputError(
            f"{recording.path} is a recording without a trace: {reason}",
            hint="record more steps, or start earlier: flatout profile --warmup 2 -- COMMAND",
        )
    job = attribute_job([])
    note = Quality(
        problem=f"the recording has no trace: {reason}",
        effect="findings come from its step log alone: nothing is known about what happens within a regular step",
    )
    of_log = diagnose(job, quality=[note], facts=facts_of(recording), log=log)
    diagnosis = with_recording(of_log, recording, recorded_time_of(recording, log))
    done = Diagnosed(diagnosis=_with_hosts(diagnosis, (), recording), job=job, sources={})
    if then is not None:
        then(done)
    return done


def _read_all(
    sources: Sequence[TraceSource],
    attribute_source: _AttributeSource,
    engine: str,
    given_ranks: Mapping[str, int] | None,
    progress: Progress | None,
) -> tuple[list[RankTimeline], list[Quality], dict[int, TraceSource]]:
    """Return the timelines of the readable traces with their ranks, notes on data quality, and each rank's source."""
    # One trace is read by all cores; several traces are read in parallel, each by one process.
    num_workers = num_cores() if len(sources) == 1 else 1
    attribute = partial(attribute_source, num_workers=num_workers)
    unpacked = [source.archive for source in sources if source.archive is not None]
    sources, results = _split(sources, map_ranks(attribute, sources, engine=engine, unpacked=unpacked), attribute)

    readable: list[tuple[TraceSource, RankTimeline]] = []
    unreadable: list[_Unreadable] = []
    quality: list[Quality] = []
    for number, (source, result) in enumerate(zip(sources, results, strict=True), 1):
        if progress is not None:
            progress(number, len(sources))
        quality += source.quality
        if isinstance(result, _Unreadable):
            unreadable.append(result)
            quality.append(Quality(problem=result.message, effect="this file was skipped"))
        else:
            readable.append((source, result))
    if not readable:
        first = unreadable[0]
        raise InputError(first.message, hint=first.hint)
    readable = _with_counted_starts(readable, partial(attribute, counts_start=True), engine, unpacked)

    assignment = assign_ranks([timeline.meta for _, timeline in readable], given=given_ranks)
    timelines: list[RankTimeline] = []
    source_of_rank: dict[int, TraceSource] = {}
    for (source, timeline), rank in zip(readable, assignment.ranks, strict=True):
        if rank is not None:
            timelines.append(msgspec.structs.replace(timeline, rank=rank))
            source_of_rank[rank] = source
    return timelines, [*quality, *assignment.quality], source_of_rank


def _split(
    sources: Sequence[TraceSource],
    results: Iterable[RankTimeline | _Unreadable | _SeveralRanks],
    attribute: Callable[[TraceSource], RankTimeline | _Unreadable | _SeveralRanks],
) -> tuple[list[TraceSource], list[RankTimeline | _Unreadable]]:
    """Return one source and one result per rank: files with several ranks are read again, one rank at a time."""
    split_sources: list[TraceSource] = []
    split_results: list[RankTimeline | _Unreadable] = []
    for source, result in zip(sources, results, strict=True):
        if not isinstance(result, _SeveralRanks):
            split_sources.append(source)
            split_results.append(result)
            continue
        for part in source.split(_numbered(result.parts) if len(sources) == 1 else result.parts):
            of_part = attribute(part)
            assert not isinstance(of_part, _SeveralRanks)
            split_sources.append(part)
            split_results.append(of_part)
    return split_sources, split_results


def _numbered(parts: Sequence[RankPart]) -> list[RankPart]:
    """Return the parts of the only file of a job: the devices of its process are the ranks, by their numbers."""
    if len({part.device for part in parts}) < len(parts):
        return list(parts)
    return [msgspec.structs.replace(part, rank=part.device) if part.rank is None else part for part in parts]


def _with_counted_starts(
    readable: Sequence[tuple[TraceSource, RankTimeline]],
    attribute: Callable[[TraceSource], RankTimeline | _Unreadable | _SeveralRanks],
    engine: str,
    unpacked: Sequence[str],
) -> list[tuple[TraceSource, RankTimeline]]:
    """Read the traces of ranks again that skipped steps in which they waited for a rank that counts these steps."""
    waited = waited_at_start([timeline for _, timeline in readable])
    again = [source for (source, _), has_waited in zip(readable, waited, strict=True) if has_waited]
    counted = dict(zip(again, map_ranks(attribute, again, engine=engine, unpacked=unpacked), strict=True))
    result = []
    for source, timeline in readable:
        with_start = counted.get(source)
        result.append((source, with_start if isinstance(with_start, RankTimeline) else timeline))
    return result


def _attribute_source(
    source: TraceSource,
    *,
    num_workers: int,
    with_track: bool,
    recurring_steps: frozenset[int],
    counts_start: bool = False,
) -> RankTimeline | _Unreadable | _SeveralRanks:
    try:
        return attribute_rank(
            read_trace(source, num_workers=num_workers),
            with_track=with_track,
            recurring_steps=recurring_steps,
            counts_start=counts_start,
        )
    except SeveralRanksError as error:
        return _SeveralRanks(parts=error.parts)
    except InputError as error:
        return _Unreadable(message=str(error), hint=error.hint)


def unused_ceilings_reason(path: Path, done: Diagnosed) -> str | None:
    """Return why the ceilings in `path` were not compared with; None if they were."""
    from flatout.probe.ceilings.saved import load_ceilings

    ceilings, device = load_ceilings(path), done.diagnosis.job.device
    if ceilings.wrong:
        return "a result was wrong when it was measured"
    is_other_gpu = ceilings.is_gpu and ceilings.device != device
    is_cpu_for_gpu = not ceilings.is_gpu and bool(device)
    if is_other_gpu or is_cpu_for_gpu:
        return f"it was measured on {ceilings.device}, but the job ran on {device or 'a CPU'}"
    return None
