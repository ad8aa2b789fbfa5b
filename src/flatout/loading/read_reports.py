"""Read the reports of the processes that made or received a job's batches.

In: the folder of a recording. Out: one `LoaderReport` per process. A damaged report is skipped, and a problem says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from flatout.input_files import decode_json, read_bytes
from flatout.inside.protocol import MAX_LOADER_BATCHES, MAX_LOADER_PASSES, MAX_LOADER_PLACES, File

_MAX_S = 1e9
_MAX_BYTES = 1 << 24
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=_MAX_S)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
_Index = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
_Name = Annotated[str, msgspec.Meta(max_length=1000)]
MAX_STAGES = 1000


class StageSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """The time of one stage in one process."""

    num_calls: _Count = 0
    wall_s: _Seconds = 0.0
    cpu_s: _Seconds = 0.0


class BatchesOfSource(msgspec.Struct, frozen=True, kw_only=True):
    """Batches whose files came from memory, or from storage."""

    num_batches: _Count = 0
    num_samples: _Count = 0
    wall_s: _Seconds = 0.0


class Copies(msgspec.Struct, frozen=True, kw_only=True):
    """Copies from the CPU's memory to a GPU, in a training process."""

    num_copies: _Count = 0
    num_bytes: _Count = 0
    num_timed: _Count = 0
    timed_s: _Seconds = 0.0  # on the GPU, of those that were timed


class LoaderReport(msgspec.Struct, frozen=True, kw_only=True):
    """One process: a loader's worker, or a training process."""

    rank: _Index
    worker: _Index | None  # None: the training process itself
    num_workers: _Index
    pid: _Index
    parent_pid: _Index | None = None
    cores_allowed: _Index = 0
    dataset: _Name | None = None
    is_iterable: bool = False
    process_elapsed_s: _Seconds = 0.0  # between the first and the last batch that it made or received
    process_cpu_s: _Seconds = 0.0  # of all its threads, in that time
    num_batches: _Count
    num_samples: _Count
    wall_s: _Seconds  # making all batches
    elapsed_s: _Seconds  # from the beginning of the first batch to the end of the last
    batch_s: Annotated[tuple[_Seconds, ...], msgspec.Meta(max_length=MAX_LOADER_BATCHES)] = ()
    num_timed: _Count
    timed_s: _Seconds  # making the batches whose stages were timed
    queued_s: _Seconds  # of these
    read_bytes: _Count
    device_bytes: _Count
    num_reads: _Count
    from_memory: BatchesOfSource = BatchesOfSource()
    from_storage: BatchesOfSource = BatchesOfSource()
    watch_s: _Seconds
    stages: Annotated[dict[_Name, StageSeconds], msgspec.Meta(max_length=MAX_STAGES)]
    sent: StageSeconds
    received: StageSeconds
    pinned: StageSeconds
    copied: Copies = Copies()
    cores: Annotated[tuple[_Index, ...], msgspec.Meta(max_length=1 << 14)] = ()
    dataset_samples: _Count | None = None
    num_shards: _Count | None = None
    passes: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=MAX_LOADER_PASSES)] = ()
    mounts: Annotated[dict[_Name, _Count], msgspec.Meta(max_length=MAX_STAGES)] = {}
    num_major_faults: _Count = 0
    first_own_bytes: _Count | None = None  # memory that the process shares with no file, when it began
    own_bytes: _Count | None = None  # the most
    shm_bytes: _Count | None = None  # size of /dev/shm
    shm_used_bytes: _Count | None = None
    places: Annotated[dict[_Name, _Count], msgspec.Meta(max_length=MAX_LOADER_PLACES)] = {}
    num_places: _Count = 0


def read_reports(folder: Path) -> tuple[list[tuple[str, LoaderReport]], list[str]]:
    """Return the reports with their hosts, in the order of their names, and one problem for each that is damaged."""
    reports, problems = [], []
    for path in sorted(folder.glob(File.STAGES.glob)):
        hostname = (File.STAGES.part(path.name) or "").rpartition("-")[0]
        try:
            report = decode_json(read_bytes(path, max_bytes=_MAX_BYTES), type=LoaderReport)
        except OSError as error:
            problems.append(f"{path.name} cannot be read: {(error.strerror or str(error)).lower()}")
        except msgspec.DecodeError as error:
            problems.append(f"{path.name} is damaged: {error}")
        else:
            reports.append((hostname, report))
    return _with_ranks_of_parents(reports), problems


def _with_ranks_of_parents(reports: list[tuple[str, LoaderReport]]) -> list[tuple[str, LoaderReport]]:
    """Return the reports with each worker's rank taken from the training process that started it.

    A worker that was spawned, not forked, does not know its rank if the script started the ranks itself: it says 0.
    """
    rank_by_process = {(host, report.pid): report.rank for host, report in reports if report.worker is None}
    with_ranks = []
    for host, report in reports:
        rank = report.rank
        if report.worker is not None and report.parent_pid is not None:
            rank = rank_by_process.get((host, report.parent_pid), rank)
        with_ranks.append((host, msgspec.structs.replace(report, rank=rank)))
    return with_ranks
