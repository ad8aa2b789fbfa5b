"""The closed loop, as far as it is built: profile -> read -> attribute -> diagnose.

Each function composes stages and holds no rule of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from flatout.attribute.job import attribute_job
from flatout.attribute.rank import attribute_rank
from flatout.diagnose.find import diagnose
from flatout.diagnose.recorded import with_recording
from flatout.diagnose.recorder import Untraced
from flatout.engine import map_ranks, num_cores
from flatout.errors import InputError
from flatout.read import TraceSource, assign_ranks, open_sources, read_trace
from flatout.records.diagnosis import Diagnosis
from flatout.records.events import Quality
from flatout.records.job import JobAttribution
from flatout.records.timeline import RankTimeline
from flatout.units import NS_PER_S

if TYPE_CHECKING:
    from flatout.records.ceilings import Ceilings
    from flatout.records.recording import Recording
    from flatout.report.perfetto import PerfettoRank

Progress = Callable[[int, int], None]  # traces read, of all


class Diagnosed(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A diagnosis with what it was made from."""

    diagnosis: Diagnosis
    job: JobAttribution
    sources: dict[int, TraceSource]  # by rank; files of an archive are gone once `diagnose_paths` has returned


def perfetto_ranks(done: Diagnosed) -> Iterator[PerfettoRank]:
    """Events, parts and blame of each rank on the common clock, to be drawn. Reads the traces again, one at a time."""
    from flatout.read.originals import Originals
    from flatout.report.perfetto import PerfettoRank

    for timeline in done.job.timelines:
        rank = timeline.rank
        offset_ns = done.job.clock_offset_ns.get(rank, 0)  # which `timeline` has in its times already
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
    """An hour before the first event that was analysed, on the common clock: an earlier time can only be wrong."""
    return min(t.first_event_ns for t in done.job.timelines) - 3600 * NS_PER_S


class _Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    hint: str


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
    """Read, attribute and diagnose the traces of one job: files, folders, archives, or a recording's folder.

    `with_tracks` keeps what `predict/` replays.
    `then` is called with the result while unpacked archives still exist. Raises InputError where nothing can be read;
    of several traces those that cannot be read are left out and told in the data quality.
    """
    recording = _recording(paths, ceilings)
    untraced = None if untraced_step_s is None else Untraced(step_s=untraced_step_s)
    if recording is not None:
        untraced = untraced or _untraced(recording)
        _check_traced(recording)
    traces = paths if recording is None else [Path(recording.traces_path)]
    with open_sources(traces) as sources:
        timelines, quality, kept = _read_all(sources, engine, given_ranks, progress, with_tracks)
        job = attribute_job(timelines)
        known = _known_ceilings({timeline.meta.hostname or "" for timeline in timelines}, ceilings)
        diagnosis = diagnose(job, untraced=untraced, quality=quality, ceilings=known)
        if recording is not None:
            diagnosis = with_recording(diagnosis, recording)
        diagnosis = _with_hosts(diagnosis, timelines, recording)
        result = Diagnosed(diagnosis=diagnosis, job=job, sources=kept)
        if then is not None:
            then(result)
    return result


def _with_hosts(diagnosis: Diagnosis, timelines: Sequence[RankTimeline], recording: Recording | None) -> Diagnosis:
    """The machines of the ranks, where they are known and several."""
    known = {t.meta.hostname for t in timelines} | {rank.hostname for rank in (recording.ranks if recording else ())}
    hosts = tuple(sorted(host for host in known if host))
    if len(hosts) < 2:
        return diagnosis
    return msgspec.structs.replace(diagnosis, job=msgspec.structs.replace(diagnosis.job, hosts=hosts))


def _recording(paths: Sequence[Path], ceilings: Path | None) -> Recording | None:
    """What `flatout profile` recorded beside the traces, if the path is such a folder."""
    if len(paths) != 1 or not (paths[0] / "recording.json").is_file():
        return None
    from flatout.profile.read_recording import read_recording

    return with_known_ceilings(read_recording(paths[0]), ceilings)


def with_known_ceilings(recording: Recording, ceilings: Path | None = None) -> Recording:
    """Its MFU against the file `ceilings`, else what `flatout bench` saved here of its hosts, else as it was."""
    from flatout.profile.measure import with_ceilings

    found = _known_ceilings({rank.hostname for rank in recording.ranks}, ceilings)
    return with_ceilings(recording, found) if found else recording


def _known_ceilings(hosts: set[str], given: Path | None) -> dict[str, Ceilings]:
    from flatout.probe.ceilings.saved import known_ceilings, load_ceilings

    return known_ceilings(hosts) if given is None else dict.fromkeys(hosts, load_ceilings(given))


def _untraced(recording: Recording) -> Untraced | None:
    measured = recording.measured
    if measured.step_s is None:
        return None
    return Untraced(step_s=measured.step_s, spread_s=measured.step_spread_s, num_steps=measured.num_untraced_steps)


def _check_traced(recording: Recording) -> None:
    """InputError where nothing was traced, with the reason that the recording knows."""
    if recording.traced_ranks:
        return
    why = next((note.problem for note in recording.problems), "it was recorded with --light")
    raise InputError(
        f"{recording.path} is a recording without a trace: {why}",
        hint="record more steps, or begin earlier: flatout profile --warmup 2 -- COMMAND",
    )


def _read_all(
    sources: Sequence[TraceSource],
    engine: str,
    given_ranks: Mapping[str, int] | None,
    progress: Progress | None,
    with_tracks: bool,
) -> tuple[list[RankTimeline], list[Quality], dict[int, TraceSource]]:
    # Of several traces a whole process works on each; on a lone one all cores do.
    read = partial(_attributed, num_workers=num_cores() if len(sources) == 1 else 1, with_track=with_tracks)
    made: list[RankTimeline] = []
    good: list[TraceSource] = []
    quality: list[Quality] = []
    failed: _Unreadable | None = None
    unpacked = [source.archive for source in sources if source.archive is not None]
    results = map_ranks(read, sources, engine=engine, unpacked=unpacked)
    for number, (source, result) in enumerate(zip(sources, results, strict=True), 1):
        if progress is not None:
            progress(number, len(sources))
        quality += source.quality
        if isinstance(result, _Unreadable):
            failed = failed or result
            quality.append(Quality(problem=result.message, effect="this file was left out"))
        else:
            made.append(result)
            good.append(source)
    if not made:
        assert failed is not None
        raise InputError(failed.message, hint=failed.hint)
    assigned = assign_ranks([t.meta for t in made], given=given_ranks)
    timelines, kept = [], {}
    for timeline, source, rank in zip(made, good, assigned.ranks, strict=True):
        if rank is not None:
            timelines.append(msgspec.structs.replace(timeline, rank=rank))
            kept[rank] = source
    return timelines, [*quality, *assigned.quality], kept


def _attributed(source: TraceSource, *, num_workers: int, with_track: bool) -> RankTimeline | _Unreadable:
    try:
        return attribute_rank(read_trace(source, num_workers=num_workers), with_track=with_track)
    except InputError as error:
        return _Unreadable(message=str(error), hint=error.hint)
