"""The rates of the training and of its loader, each alone: where the next limit is.

In: the loader of a rank. Out: five rates, each measured, predicted or unknown. A step without its wait is what the
training does if its batches are ready. The loader from memory and from storage is measured by the batches whose files
came from there while the job ran. Without batches from memory, that rate is predicted by the stages without their
waits for files; what was read from the page cache does not show how fast the storage is: then that rate is unknown.
"""

from __future__ import annotations

from flatout.inside.protocol import LoaderStage
from flatout.loading.speed import rank_cores, sample_cpu_s
from flatout.records.loading import LoadingRate, RankLoading, RateName

COLD = 0.9  # of the bytes, from a device
_OF_FILES = (LoaderStage.OPEN, LoaderStage.READ, LoaderStage.DECOMPRESS, LoaderStage.DECODE)


def loading_rates(loading: RankLoading) -> tuple[LoadingRate, ...]:
    """Return the rates of a rank, in the order in which a report shows them."""
    num_makers = max(loading.num_workers, 1)
    as_it_ran = _of_makers(num_makers, loading.sample_s)
    from_storage = _of_makers(num_makers, loading.from_storage_s)
    is_cold = bool(loading.read_bytes) and (loading.device_bytes or 0.0) >= COLD * (loading.read_bytes or 0.0)
    return (
        _measured(RateName.TRAINING, _per_step(loading, loading.step_s)),
        _measured(RateName.BATCHES_READY, _per_step(loading, _computing_s(loading))),
        _measured(RateName.LOADER, as_it_ran),
        _from_memory(loading, num_makers),
        _measured(RateName.LOADER_COLD, as_it_ran if is_cold and from_storage is None else from_storage),
    )


def _of_makers(num_makers: int, sample_s: float | None) -> float | None:
    return num_makers / sample_s if sample_s else None


def _from_memory(loading: RankLoading, num_makers: int) -> LoadingRate:
    measured = _of_makers(num_makers, loading.from_memory_s)
    if measured is not None:
        return _measured(RateName.LOADER_CACHED, measured)
    return LoadingRate(name=RateName.LOADER_CACHED, samples_per_s=_cached(loading, num_makers), origin="predicted")


def _measured(name: RateName, samples_per_s: float | None) -> LoadingRate:
    origin = "unknown" if samples_per_s is None else "measured"
    return LoadingRate(name=name, samples_per_s=samples_per_s, origin=origin)


def _computing_s(loading: RankLoading) -> float | None:
    if loading.step_s is None or loading.loader_wait_s is None:
        return None
    return loading.step_s - loading.loader_wait_s


def _per_step(loading: RankLoading, step_s: float | None) -> float | None:
    return loading.samples_per_step / step_s if loading.samples_per_step and step_s else None


def _cached(loading: RankLoading, num_makers: int) -> float | None:
    """Return the rate without waits for files; the cores of the rank bound it."""
    alone_s = sum(stage.cpu_s + (0.0 if stage.name in _OF_FILES else stage.waiting_s) for stage in loading.stages)
    cpu_s = sample_cpu_s(loading)
    if alone_s <= 0 or cpu_s <= 0:
        return None
    return min(num_makers / alone_s, rank_cores(loading) / cpu_s)
