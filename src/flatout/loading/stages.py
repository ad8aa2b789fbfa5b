"""The stages of a rank's samples, from the reports of the processes that made and received its batches.

In: the reports of one rank, and its steps. Out: `RankLoading`. Times are means over all processes of the rank, by
sample. The kernel's queue for a core is known per batch: it is charged to the stages in proportion to their CPU time,
since a thread waits for a core when it wants to compute. What then remains of a stage is waiting.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flatout.loading.read_reports import BatchesOfSource, LoaderReport, StageSeconds
from flatout.records.loading import CodePlace, RankLoading, SampleStage
from flatout.records.recording import RankRecording

MAX_PLACES = 5
NUM_FIRST_STEPS = 10  # that do not count where step times never became stable
MIN_STEPS = 10
_MIN_BATCHES_OF_SPREAD = 8
_MIN_BATCHES_OF_SOURCE = 4
_MIN_BATCHES_OF_THREADS = 8
_MIN_OTHER_THREADS = 0.2  # of a worker's CPU time: less is the noise of the clocks, and what watching costs
_NEGLIGIBLE_S = 1e-9


def rank_loading(
    rank: int, hostname: str, reports: Sequence[LoaderReport], recorded: RankRecording | None, *, ranks_on_host: int
) -> RankLoading | None:
    """Return the loader of a rank; None if none of its processes has timed a batch."""
    makers = _makers(reports)
    num_samples_timed = sum(map(_samples_timed, makers))
    if num_samples_timed <= 0:
        return None
    first = makers[0]  # they make batches of the same loader
    num_batches, num_samples = int(_total(makers, "num_batches")), int(_total(makers, "num_samples"))
    wall_s, elapsed_s = _total(makers, "wall_s"), max(_total(makers, "elapsed_s"), _NEGLIGIBLE_S)
    trainers = [report for report in reports if report.worker is None]
    has_workers = first.worker is not None
    steps = _steps(recorded)
    return RankLoading(
        rank=rank,
        hostname=hostname,
        dataset=first.dataset,
        is_iterable=first.is_iterable,
        num_workers=first.num_workers,
        cores_allowed=min(report.cores_allowed for report in makers),
        ranks_on_host=ranks_on_host,
        batch_size=num_samples / num_batches,
        num_batches=num_batches,
        num_timed=int(_total(makers, "num_timed")),
        sample_s=wall_s / num_samples,
        batch_spread=_spread(makers),
        busy_share=wall_s / elapsed_s if has_workers else None,
        stages=_stages(makers, num_samples_timed),
        places=_places(makers),
        read_bytes=_total(makers, "read_bytes") / num_samples_timed,
        device_bytes=_total(makers, "device_bytes") / num_samples_timed,
        from_memory_s=_sample_s([report.from_memory for report in makers]),
        from_storage_s=_sample_s([report.from_storage for report in makers]),
        sending_s=_other_thread([report.sent for report in makers], num_samples) if has_workers else None,
        other_threads_s=_other_threads_s(makers) if has_workers else None,
        receiving_s=_receiving_s(trainers, num_samples) if has_workers else None,
        pinning_s=_other_thread([report.pinned for report in trainers], num_samples),
        copying_s=_copying_s(trainers, num_samples),
        copied_bytes=_copied_bytes(trainers, num_samples),
        training_cores=_training_cores(trainers),
        watch_share=_total(makers, "watch_s") / elapsed_s,
        step_s=steps.step_s,
        loader_wait_s=steps.wait_s,
        aside_s=steps.aside_s,
        steady_wait_s=steps.steady_wait_s,
        samples_per_step=steps.samples,
        mounts=_mounts(reports),
        data_bytes=_data_bytes(makers, num_samples_timed),
        num_shards=max((report.num_shards for report in makers if report.num_shards), default=None),
        num_idle_workers=_num_idle_workers(first, reports),
        shard_spread=_shard_spread(makers),
        own_bytes=_own_bytes(makers),
        shm_used_share=_shm_used_share(reports),
    )


def _total(reports: Sequence[LoaderReport], name: str) -> float:
    """Return the sum of a number over the processes."""
    return float(sum(getattr(report, name) for report in reports))


def _makers(reports: Sequence[LoaderReport]) -> list[LoaderReport]:
    """Return the reports of the loader that made most samples: a job can have others, e.g. for its evaluation."""
    samples_by_loader: Counter[tuple[str | None, int]] = Counter()
    for report in reports:
        samples_by_loader[_loader(report)] += report.num_samples
    if not samples_by_loader:
        return []
    largest, _ = samples_by_loader.most_common(1)[0]
    return [report for report in reports if report.num_batches > 0 and _loader(report) == largest]


def _loader(report: LoaderReport) -> tuple[str | None, int]:
    return report.dataset, report.num_workers


def _mounts(reports: Sequence[LoaderReport]) -> dict[str, int]:
    mounts: Counter[str] = Counter()
    for report in reports:
        mounts.update(report.mounts)
    return dict(mounts.most_common())


def _data_bytes(makers: Sequence[LoaderReport], num_samples_timed: float) -> float | None:
    """Return the bytes that reading each sample once takes; None if the data set does not know its size."""
    sizes = [report.dataset_samples for report in makers if report.dataset_samples is not None]
    bytes_per_sample = _total(makers, "read_bytes") / num_samples_timed
    return max(sizes) * bytes_per_sample if sizes and bytes_per_sample > 0 else None


def _num_idle_workers(first: LoaderReport, reports: Sequence[LoaderReport]) -> int:
    """Return the number of workers of an iterable data set that began and had nothing to make."""
    if not first.is_iterable:
        return 0
    with_batches = {report.worker for report in reports if report.num_batches > 0}
    began = {report.worker for report in reports if report.worker is not None and _loader(report) == _loader(first)}
    return len(began - with_batches)


def _shard_spread(makers: Sequence[LoaderReport]) -> float | None:
    """Return how unequal the first passes of an iterable data set's workers are: the longest over the shortest."""
    passes = [report.passes[0] for report in makers if report.worker is not None and report.passes]
    if len(passes) < 2 or min(passes) <= 0:
        return None
    return max(passes) / min(passes)


def _own_bytes(makers: Sequence[LoaderReport]) -> float | None:
    sizes = [report.own_bytes for report in makers if report.worker is not None and report.own_bytes is not None]
    return float(sum(sizes)) if sizes else None


def _shm_used_share(reports: Sequence[LoaderReport]) -> float | None:
    shares = [
        report.shm_used_bytes / report.shm_bytes
        for report in reports
        if report.shm_bytes and report.shm_used_bytes is not None
    ]
    return max(shares, default=None)


def _samples_timed(report: LoaderReport) -> float:
    if not report.num_batches:
        return 0.0
    return report.num_samples * report.num_timed / report.num_batches


def _sample_s(batches: Sequence[BatchesOfSource]) -> float | None:
    """Return the time to make a sample of these batches; None if they are too few."""
    num_samples = sum(each.num_samples for each in batches)
    if sum(each.num_batches for each in batches) < _MIN_BATCHES_OF_SOURCE or not num_samples:
        return None
    return sum(each.wall_s for each in batches) / num_samples


def _stages(makers: Sequence[LoaderReport], num_samples: float) -> tuple[SampleStage, ...]:
    names = {name for report in makers for name in report.stages}
    spent = {name: _sum([report.stages[name] for report in makers if name in report.stages]) for name in names}
    wall_s = sum(stage.wall_s for stage in spent.values())
    idle_s = {name: max(stage.wall_s - stage.cpu_s, 0.0) for name, stage in spent.items()}
    queued_s = _queued_by_stage(sum(report.queued_s for report in makers), spent, idle_s)
    stages = [
        SampleStage(
            name=name,
            wall_s=stage.wall_s / num_samples,
            cpu_s=min(stage.cpu_s, stage.wall_s) / num_samples,
            queued_s=queued_s[name] / num_samples,
            waiting_s=(idle_s[name] - queued_s[name]) / num_samples,
            num_calls=stage.num_calls / num_samples,
            share=stage.wall_s / wall_s if wall_s > 0 else 0.0,
        )
        for name, stage in spent.items()
    ]
    return tuple(sorted(stages, key=lambda stage: -stage.wall_s))


def _queued_by_stage(queued_s: float, spent: dict[str, StageSeconds], idle_s: dict[str, float]) -> dict[str, float]:
    """Divide the time in the queue for a core among the stages, by their CPU time; none has more than its idle time."""
    by_stage = dict.fromkeys(spent, 0.0)
    weights = {name: stage.cpu_s for name, stage in spent.items() if stage.cpu_s > 0}
    left_s = min(queued_s, sum(idle_s[name] for name in weights))
    while left_s > _NEGLIGIBLE_S and weights:
        total = sum(weights.values())
        shares = {name: left_s * weight / total for name, weight in weights.items()}
        for name, share_s in shares.items():
            added_s = min(share_s, idle_s[name] - by_stage[name])
            by_stage[name] += added_s
            left_s -= added_s
        weights = {name: weight for name, weight in weights.items() if idle_s[name] - by_stage[name] > _NEGLIGIBLE_S}
    return by_stage


def _sum(spent: Sequence[StageSeconds]) -> StageSeconds:
    return StageSeconds(
        num_calls=sum(each.num_calls for each in spent),
        wall_s=sum(each.wall_s for each in spent),
        cpu_s=sum(each.cpu_s for each in spent),
    )


def _receiving_s(trainers: Sequence[LoaderReport], num_samples: int) -> float | None:
    """Return the CPU time per sample of receiving: the rest is waiting until a worker's busy interpreter answers."""
    total = _sum([report.received for report in trainers])
    return total.cpu_s / num_samples if total.num_calls and num_samples else None


def _other_thread(spent: Sequence[StageSeconds], num_samples: int) -> float | None:
    """Return the seconds per sample of a stage outside the thread that makes batches; None if it never ran."""
    total = _sum(spent)
    return total.wall_s / num_samples if total.num_calls and num_samples else None


def _copying_s(trainers: Sequence[LoaderReport], num_samples: int) -> float | None:
    """Return the time per sample that copies to a GPU take there, if all take as long as those that were timed."""
    num_timed = sum(report.copied.num_timed for report in trainers)
    if not num_timed or not num_samples:
        return None
    mean_s = sum(report.copied.timed_s for report in trainers) / num_timed
    num_copies = sum(report.copied.num_copies for report in trainers)
    return mean_s * num_copies / num_samples


def _copied_bytes(trainers: Sequence[LoaderReport], num_samples: int) -> float | None:
    num_bytes = sum(report.copied.num_bytes for report in trainers)
    return num_bytes / num_samples if num_bytes and num_samples else None


def _other_threads_s(makers: Sequence[LoaderReport]) -> float | None:
    """Return the CPU time per sample of a worker's threads that neither make batches nor send them; None if little.

    A process's time is that from its first batch to the beginning of its last one.
    """
    counted = [report for report in makers if report.num_batches >= _MIN_BATCHES_OF_THREADS and report.num_timed]
    num_samples = sum(report.num_samples * (1 - 1 / report.num_batches) for report in counted)
    if not num_samples:
        return None
    process_s = _total(counted, "process_cpu_s") / num_samples
    making_s = sum(map(_making_cpu_s, counted)) / _total(counted, "num_samples")
    sending_s = sum(report.sent.cpu_s for report in counted) / _total(counted, "num_samples")
    other_s = process_s - making_s - sending_s
    return other_s if other_s >= _MIN_OTHER_THREADS * process_s else None


def _training_cores(trainers: Sequence[LoaderReport]) -> float | None:
    """Return the cores that the training process keeps busy with anything but making batches."""
    elapsed_s = sum(report.process_elapsed_s for report in trainers)
    if elapsed_s <= 0:
        return None
    cpu_s = sum(report.process_cpu_s for report in trainers)
    making_s = sum(_making_cpu_s(report) for report in trainers)
    return max(cpu_s - making_s, 0.0) / elapsed_s


def _making_cpu_s(report: LoaderReport) -> float:
    """Return the CPU time of all batches that a process made, from that of the timed ones."""
    if not report.num_timed:
        return 0.0
    cpu_s = sum(stage.cpu_s for stage in report.stages.values())
    return cpu_s * report.num_batches / report.num_timed


def _spread(makers: Sequence[LoaderReport]) -> float | None:
    """Return how much the times of a process's batches differ, without its first one, which opens files."""
    times = [np.array(report.batch_s[1:]) for report in makers]
    batch_s = np.concatenate([of_process for of_process in times if len(of_process)] or [np.array([])])
    if len(batch_s) < _MIN_BATCHES_OF_SPREAD or batch_s.mean() <= 0:
        return None
    return float(batch_s.std() / batch_s.mean())


def _places(makers: Sequence[LoaderReport]) -> tuple[CodePlace, ...]:
    counts: Counter[str] = Counter()
    for report in makers:
        counts.update(report.places)
    num_samples = sum(report.num_places for report in makers)
    return tuple(
        CodePlace(place=place, share=count / num_samples) for place, count in counts.most_common(MAX_PLACES) if count
    )


class _Steps(NamedTuple):
    """Means over the steps after the warm-up; None where too few were recorded."""

    step_s: float | None = None
    wait_s: float | None = None
    aside_s: float | None = None
    steady_wait_s: float | None = None
    samples: float | None = None


def _steps(recorded: RankRecording | None) -> _Steps:
    if recorded is None:
        return _Steps()
    steps = recorded.steps
    first = NUM_FIRST_STEPS if recorded.settled_step is None else recorded.settled_step
    counts = steps.is_ordinary & (steps.number >= first)
    if counts.sum() < MIN_STEPS:
        return _Steps()
    num_samples = steps.num_samples[counts]
    loader_start_s = _known(steps.loader_start_s, counts)
    aside_s = loader_start_s + _known(steps.evaluation_s, counts)
    wait_s = steps.loader_s[counts]
    # A loader's start includes the wait for its first batch.
    steady_wait_s = np.clip(wait_s - loader_start_s, 0.0, None)
    return _Steps(
        step_s=float(steps.duration_s[counts].mean()),
        wait_s=float(wait_s.mean()),
        aside_s=float(aside_s.mean()),
        steady_wait_s=float(steady_wait_s.mean()),
        samples=float(np.nanmean(num_samples)) if not np.isnan(num_samples).all() else None,
    )


def _known(seconds: NDArray[np.float64] | None, counts: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return a part of the counted steps, 0 where it is unknown."""
    return np.zeros(int(counts.sum())) if seconds is None else np.nan_to_num(seconds[counts])
