"""Why the training waits for its batches: the stage that takes most, or the cores, or single slow batches.

In: the loader of the slowest rank. Out: causes, the first of which explains most of the wait. Below `MIN_WAIT` of the
step nothing is reported, since the batches arrive in time.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flatout.inside.protocol import LoaderStage
from flatout.loading.speed import best_workers, sample_alone_s
from flatout.records.loading import FoundCause, LoaderFinding, RankLoading, SampleStage

MIN_WAIT = 0.05  # of the step
MIN_QUEUED = 0.3  # of the time in which samples are made: the workers wait for each other's cores
MIN_SPREAD = 0.5  # standard deviation of the batches' times over their mean
MAX_BUSY = 0.9  # of the workers' time: workers with time to spare are late only with single batches
MIN_WAITING = 0.5  # of a stage's time, for which it waits rather than computes
MIN_IN_THREADS = 0.5  # of a stage's wait, in which other threads of the worker compute
MIN_STAGE = 0.25  # of the time to make a sample: below it no stage explains the wait
MIN_SHARD_SPREAD = 1.25  # samples of the longest first pass / of the shortest
MAX_SHM = 0.9  # of /dev/shm
SEVERAL_FILES = 3.0  # opened for a sample: an image and its label, or a shard now and then, are fewer
MIN_GAIN = 1.05  # of another number of workers, as predicted
# Pinning runs in another thread: it is the cause if it takes this share of the step.
MIN_THREAD = 0.5

_OF_FILES = (LoaderStage.OPEN, LoaderStage.READ)
_BY_STAGE = {
    LoaderStage.DECODE: LoaderFinding.DECODE,
    LoaderStage.DECOMPRESS: LoaderFinding.DECOMPRESS,
    LoaderStage.COLLATE: LoaderFinding.COLLATE,
    LoaderStage.CODE: LoaderFinding.CODE,
    LoaderStage.OPEN: LoaderFinding.OPENING,
    LoaderStage.READ: LoaderFinding.STORAGE,
}


def find_causes(loading: RankLoading) -> tuple[FoundCause, ...]:
    """Return the causes of the rank's wait, the most important first; () if it does not wait."""
    share = wait_share(loading)
    if share is None or share < MIN_WAIT:
        return ()
    causes = causes_of_slowness(loading)
    workers, gain = advised_workers(loading)
    return tuple(
        FoundCause(
            name=name,
            share_of_step=share,
            stage=stage.name if stage is not None else None,
            share_of_sample=stage.share if stage is not None else None,
            workers=workers,
            gain=gain,
        )
        for name, stage in causes
    )


def advised_workers(loading: RankLoading) -> tuple[int | None, float | None]:
    """Return the number of workers that is predicted to be best, and its gain; None if it gains less than 5 %."""
    best = best_workers(loading.speeds)
    present = next((speed for speed in loading.speeds if speed.num_workers == loading.num_workers), None)
    if best is None or present is None:
        return None, None
    gain = best.training_samples_per_s / present.training_samples_per_s
    return (best.num_workers, gain) if gain >= MIN_GAIN else (None, None)


def wait_share(loading: RankLoading) -> float | None:
    """Return the share of the mean step that waits for the batch; None if no step was measured."""
    if not loading.step_s or loading.loader_wait_s is None:
        return None
    return loading.loader_wait_s / loading.step_s


_Cause = tuple[LoaderFinding, SampleStage | None]


def causes_of_slowness(loading: RankLoading) -> list[_Cause]:
    """Return why batches take their time, whether or not the training waits for them; each with its stage, if any."""
    of_cores = _cores(loading)
    # A batch whose worker waited for a core takes far longer than others, too: its samples need not be slow.
    of_single_batches = [] if of_cores else _single_batches(loading)
    causes = [
        *of_cores,
        *_memory(loading),
        *_shards(loading),
        *_transport(loading),
        *of_single_batches,
        *_stage(loading),
    ]
    return causes or [(LoaderFinding.UNKNOWN, None)]


def _cores(loading: RankLoading) -> list[_Cause]:
    made_s = sum(stage.wall_s for stage in loading.stages)
    queued_s = sum(stage.queued_s for stage in loading.stages)
    if queued_s < MIN_QUEUED * made_s:
        return []
    is_crowded = loading.num_workers * loading.ranks_on_host > loading.cores_allowed
    return [(LoaderFinding.OVERSUBSCRIBED if is_crowded else LoaderFinding.BUSY_CORES, None)]


def _memory(loading: RankLoading) -> list[_Cause]:
    """Workers that find no room in shared memory wait, or end with a bus error."""
    is_full = bool(loading.num_workers) and (loading.shm_used_share or 0.0) >= MAX_SHM
    return [(LoaderFinding.MEMORY, None)] if is_full else []


def _shards(loading: RankLoading) -> list[_Cause]:
    if loading.num_idle_workers > 0:
        return [(LoaderFinding.TOO_FEW_SHARDS, None)]
    if (loading.shard_spread or 1.0) >= MIN_SHARD_SPREAD:
        return [(LoaderFinding.UNEVEN_SHARDS, None)]
    return []


def _single_batches(loading: RankLoading) -> list[_Cause]:
    """Workers that have time to spare deliver enough on the whole: it is the slow batches that are waited for."""
    has_time_to_spare = loading.busy_share is not None and loading.busy_share <= MAX_BUSY
    if has_time_to_spare and loading.batch_spread is not None and loading.batch_spread >= MIN_SPREAD:
        return [(LoaderFinding.UNEVEN_BATCHES, None)]
    return []


def _transport(loading: RankLoading) -> list[_Cause]:
    """Sending runs while samples are made, pinning while the training computes: each can be the slowest."""
    causes: list[_Cause] = []
    if loading.num_workers and (loading.sending_s or 0.0) > max(sample_alone_s(loading), loading.receiving_s or 0.0):
        causes.append((LoaderFinding.SENDING, None))
    samples = loading.samples_per_step
    if loading.num_workers and (loading.receiving_s or 0.0) > sample_alone_s(loading) / loading.num_workers:
        causes.append((LoaderFinding.SENDING, None))
    if samples and loading.step_s and (loading.pinning_s or 0.0) * samples >= MIN_THREAD * loading.step_s:
        causes.append((LoaderFinding.PINNING, None))
    return causes[:1]


def _stage(loading: RankLoading) -> list[_Cause]:
    """Return the cause that the stage with most work stands for: all transforms together, or one other stage.

    Where a sample has several files, opening and reading them are together what these files cost.

    The time in the queue for a core does not count as work: it is long where the cores are busy, in whichever stage.
    """
    total_s = sum(_work_s(stage) for stage in loading.stages)
    if total_s <= 0:
        return []
    transforms = [stage for stage in loading.stages if stage.name.startswith(LoaderStage.TRANSFORM)]
    of_files = [stage for stage in loading.stages if stage.name in _OF_FILES]
    groups = [transforms, of_files if _has_several_files(of_files) else []]
    grouped = [stage for group in groups for stage in group]
    groups += [[stage] for stage in loading.stages if stage not in grouped]
    most = max(groups, key=_work_of)
    if _work_of(most) < MIN_STAGE * total_s:
        return []
    largest = max(most, key=_work_s)
    cause = _cause_of(largest, loading)
    if most is not transforms:
        largest = msgspec.structs.replace(largest, share=sum(stage.share for stage in most))
    return [(cause, largest)]


def _has_several_files(of_files: Sequence[SampleStage]) -> bool:
    return any(stage.name == LoaderStage.OPEN and stage.num_calls >= SEVERAL_FILES for stage in of_files)


def _work_of(stages: Sequence[SampleStage]) -> float:
    return sum(_work_s(stage) for stage in stages)


def _work_s(stage: SampleStage) -> float:
    return stage.cpu_s + stage.waiting_s


def _cause_of(stage: SampleStage, loading: RankLoading) -> LoaderFinding:
    """Return the cause that a stage stands for.

    A decoder that mostly waits is waiting for its file, unless other threads of the worker compute meanwhile. Code that
    waits for such threads is what computes.
    """
    is_waiting = stage.waiting_s >= MIN_WAITING * _work_s(stage)
    is_for_threads = (loading.other_threads_s or 0.0) >= MIN_IN_THREADS * stage.waiting_s
    is_transform = stage.name.startswith(LoaderStage.TRANSFORM)
    if is_waiting and (is_transform or stage.name == LoaderStage.CODE):
        return LoaderFinding.CODE if is_for_threads else LoaderFinding.CODE_WAITS
    if is_waiting and not is_for_threads and stage.name in (LoaderStage.DECODE, LoaderStage.DECOMPRESS):
        return LoaderFinding.STORAGE
    return LoaderFinding.TRANSFORM if is_transform else _BY_STAGE.get(stage.name, LoaderFinding.UNKNOWN)
