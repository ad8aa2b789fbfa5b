"""Predict what another number of workers delivers on one rank, from the stages of its samples.

In: a rank's loader. Out: the samples per second of the loader alone, and of the training with it. A sample takes its
CPU time and its waiting, but not its time in the queue for a core, which is a result of the number of workers:

    loader   = min(workers / sample, cores / CPU time of a sample, storage, 1 / receiving)
    training = max(computing + receiving, batch / loader, CPU time of a step / cores) + aside

`aside` are evaluations and the starts of loaders, per step: no batch of the training is made ahead in them, and another
number of workers is taken to leave them as they are. Without workers a sample is made between two steps, as fast as one
process or the storage allows, and the times add up. Prefetching does not raise the rate: it hides batches that take
longer than others. What the storage can deliver is known from a limit of the control group, or from counters that show
it at its limit. Sources: DS-Analyzer (VLDB 2021) and Plumber (MLSys 2022).
"""

from __future__ import annotations

from flatout.records.cores import cores_of_rank
from flatout.records.loading import LoaderSpeed, RankLoading

MAX_WORKERS = 64
_STEP = 1.05  # a larger number of workers must be this much faster to be worth its memory


def sample_cpu_s(loading: RankLoading) -> float:
    """Return the CPU time of a sample in a worker, with that of sending it and of the worker's other threads."""
    stages_s = sum(stage.cpu_s for stage in loading.stages)
    return stages_s + (loading.sending_s or 0.0) + (loading.other_threads_s or 0.0)


def sample_alone_s(loading: RankLoading) -> float:
    """Return the time to make a sample on a free core."""
    return sum(stage.cpu_s + stage.waiting_s for stage in loading.stages)


def loader_speeds(loading: RankLoading) -> tuple[LoaderSpeed, ...]:
    """Return the predictions for no workers, and for 1, 2, 4, ... and the present number; () if no step is known."""
    counts = {0, loading.num_workers}
    count = 1
    while count <= MAX_WORKERS and not _is_saturated(loading, count // 2):
        counts.add(count)
        count *= 2
    speeds = [predicted_speed(loading, count) for count in sorted(counts)]
    return tuple(speed for speed in speeds if speed is not None)


def best_workers(speeds: tuple[LoaderSpeed, ...]) -> LoaderSpeed | None:
    """Return the fewest workers whose training is at most 5 % slower than the fastest."""
    if not speeds:
        return None
    fastest = max(speed.training_samples_per_s for speed in speeds)
    return next(speed for speed in speeds if speed.training_samples_per_s * _STEP >= fastest)


def predicted_speed(loading: RankLoading, num_workers: int) -> LoaderSpeed | None:
    """Return the prediction for a number of workers; None if no step of the training was measured."""
    if loading.step_s is None or loading.loader_wait_s is None or not loading.samples_per_step:
        return None
    aside_s = loading.aside_s or 0.0
    wait_s = loading.loader_wait_s if loading.steady_wait_s is None else loading.steady_wait_s
    computing_s = max(loading.step_s - aside_s - wait_s, 0.0)
    samples = loading.samples_per_step
    if num_workers == 0:
        limits = _limits_without_workers(loading)
        limit = min(limits, key=lambda name: limits[name])
        training = samples / (computing_s + samples / limits[limit] + aside_s)
        return LoaderSpeed(num_workers=0, samples_per_s=limits[limit], training_samples_per_s=training, limit=limit)
    limits = _limits(loading, num_workers)
    limit = min(limits, key=lambda name: limits[name])
    receiving_s = samples * (loading.receiving_s or 0.0)
    busiest_s = max(computing_s + receiving_s, samples / limits[limit], least_step_s(loading))
    return LoaderSpeed(
        num_workers=num_workers,
        samples_per_s=limits[limit],
        training_samples_per_s=samples / (busiest_s + aside_s),
        limit=limit,
    )


def _limits(loading: RankLoading, num_workers: int) -> dict[str, float]:
    """Return the samples per second that each resource of the loader allows."""
    limits = {"workers": num_workers / sample_alone_s(loading)}
    cpu_s = sample_cpu_s(loading)
    if cpu_s > 0:
        limits["cores"] = rank_cores(loading) / cpu_s
    if loading.storage_samples_per_s is not None:
        limits["storage"] = loading.storage_samples_per_s
    main_s = max(loading.receiving_s or 0.0, loading.pinning_s or 0.0)
    if main_s > 0:
        limits["main process"] = 1 / main_s
    return limits


def _limits_without_workers(loading: RankLoading) -> dict[str, float]:
    """Return the samples per second that the training process can make, and those that the storage delivers."""
    limits = {"main process": 1 / sample_alone_s(loading)}
    if loading.storage_samples_per_s is not None:
        limits["storage"] = loading.storage_samples_per_s
    return limits


def _is_saturated(loading: RankLoading, num_workers: int) -> bool:
    """Whether more workers than this number deliver nothing more."""
    if num_workers == 0:
        return False
    limits = _limits(loading, num_workers)
    return min(limits, key=lambda name: limits[name]) != "workers"


def rank_cores(loading: RankLoading) -> float:
    """Return the cores of a rank, if the ranks of a host share those that they may use and that others leave."""
    return cores_of_rank(loading.cores_allowed, loading.ranks_on_host, loading.cores_busy_by_others)


def least_step_s(loading: RankLoading) -> float:
    """Return the time that the rank's cores need at least for a step: for the training, and for the samples.

    However many workers make the samples, they and the training process take turns on these cores.
    """
    return _cpu_of_step_s(loading) / rank_cores(loading)


def _cpu_of_step_s(loading: RankLoading) -> float:
    """Return the CPU time of a step: that of the training process, and that of the samples."""
    assert loading.samples_per_step is not None and loading.step_s is not None
    training_s = (loading.training_cores or 0.0) * (loading.step_s - (loading.aside_s or 0.0))
    return training_s + loading.samples_per_step * sample_cpu_s(loading)
