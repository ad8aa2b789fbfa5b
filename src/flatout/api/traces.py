"""`diagnose`: traces of one job -> the parts of its steps, who waits for whom, and findings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flatout.api.arguments import AnyPath, Progress, Say, check_range, no_note, optional_path, paths_of

if TYPE_CHECKING:
    from flatout.api.results import DiagnosisResult
    from flatout.diagnosis_pipeline import Diagnosed

MAX_STEP_S = 10 * 86_400.0


def diagnose(
    paths: AnyPath | Sequence[AnyPath],
    *,
    ranks: Mapping[str, int] | None = None,
    untraced_step_s: float | None = None,
    ceilings: AnyPath | None = None,
    perfetto: AnyPath | None = None,
    engine: str = "auto",
    force: bool = False,
    progress: Progress | None = None,
    note: Say = no_note,
) -> DiagnosisResult:
    """Diagnose the traces of one job: files, a folder, an archive, or the folder of a recording.

    `ranks` maps a file to its rank. `untraced_step_s` is the step time without the profiler, if it is known.
    `ceilings` is a file from `flatout bench`. `perfetto` names a file to write for ui.perfetto.dev; an existing one is
    replaced only with `force`. `engine` is auto, serial, processes or ray. `progress` is called with the number of
    traces that were read and their total, and `note` with a line about each file that was written or not used.

    Raises InputError if no trace can be read, and OutputError if the file cannot be written.
    """
    from flatout.api.results import DiagnosisResult
    from flatout.diagnosis_pipeline import diagnose_paths, unused_ceilings_reason
    from flatout.report.files import check_new

    files = paths_of(paths)
    check_range("untraced_step_s", untraced_step_s, least=0.0, most=MAX_STEP_S)
    ceilings_file, perfetto_file = optional_path(ceilings), optional_path(perfetto)
    if perfetto_file is not None:
        check_new(perfetto_file, force=force)
    lost: dict[int, int] = {}  # rank -> number of events missing in the Perfetto trace

    def write_trace(done: Diagnosed) -> None:
        if perfetto_file is not None:
            lost.update(_write_perfetto(perfetto_file, done, force))

    done = diagnose_paths(
        files,
        engine=engine,
        given_ranks=ranks,
        untraced_step_s=untraced_step_s,
        ceilings=ceilings_file,
        progress=progress,
        then=write_trace if perfetto_file is not None else None,
    )
    if perfetto_file is not None:
        note(f"wrote the trace for ui.perfetto.dev: {perfetto_file}")
    if ceilings_file is not None and (reason := unused_ceilings_reason(ceilings_file, done)):
        note(f"note: {ceilings_file} was not used: {reason}")
    _note_lost_events(perfetto_file, lost, note)
    return DiagnosisResult.of(done.diagnosis, _typed=("flatout", "diagnose", *map(str, files)))


def _note_lost_events(perfetto: Path | None, lost: Mapping[int, int], note: Say) -> None:
    from flatout.report.phrases import counted

    for rank, count in lost.items():
        note(f"note: {perfetto} lacks {counted(count, 'event')} of rank {rank}: no usable time")


def _write_perfetto(target: Path, done: Diagnosed, force: bool) -> dict[int, int]:
    """Write the trace and return rank -> number of events that it lacks."""
    from flatout.diagnosis_pipeline import origin_ns, perfetto_ranks
    from flatout.report.perfetto import write_perfetto

    return write_perfetto(target, perfetto_ranks(done), origin_ns=origin_ns(done), force=force)
