"""How a job makes its batches: the stages of a sample in the processes that make them, and what they can deliver.

Times of stages are seconds per sample, in one process. An unknown number is None.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from flatout.records.storage import StorageVerdict


class LoaderFinding(StrEnum):
    """Why the training waits for its batches."""

    DECODE = "decode-bound"
    TRANSFORM = "transform-bound"
    CODE = "dataset-code-bound"
    CODE_WAITS = "dataset-code-waits"
    DECOMPRESS = "decompress-bound"
    STORAGE = "storage-latency"
    OPENING = "metadata-latency"
    COLLATE = "collate-bound"
    SENDING = "pickle-bound"
    PINNING = "pin-bound"
    OVERSUBSCRIBED = "worker-oversubscription"
    BUSY_CORES = "busy-cores"
    UNEVEN_BATCHES = "slow-sample-blocks"
    TOO_FEW_SHARDS = "too-few-shards"
    UNEVEN_SHARDS = "uneven-shards"
    MEMORY = "loader-memory"
    BANDWIDTH = "storage-bandwidth"
    RETRANSMITS = "storage-retransmits"
    CACHE_MISSED = "cache-missed"
    CONTENTION = "shared-storage-contention"
    UNKNOWN = "unknown"


class SampleStage(msgspec.Struct, frozen=True, kw_only=True):
    """One stage: its seconds per sample, exclusive of the stages within it."""

    name: str
    wall_s: float
    cpu_s: float
    queued_s: float  # ready to run, but all cores were busy
    waiting_s: float  # neither computing nor queued: waiting for storage, a network, a lock or a sleep
    num_calls: float  # per sample
    share: float  # of the time in which samples are made


class CodePlace(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the script's own code, and its share of the stage `code`."""

    place: str  # function (file:line)
    share: float


class LoaderSpeed(msgspec.Struct, frozen=True, kw_only=True):
    """What a number of workers is predicted to deliver on one rank."""

    num_workers: int
    samples_per_s: float  # by the loader alone
    training_samples_per_s: float  # by the training with this loader
    limit: str  # what limits the loader: `workers`, `cores`, `storage`, or `main process`


class RateName(StrEnum):
    """What is fed by what, in the rates that stand first in the report."""

    TRAINING = "training"
    BATCHES_READY = "training, batches ready"  # if no step waited for its batch
    LOADER = "loader"  # as it ran: its workers, while they made batches
    LOADER_CACHED = "loader, files in memory"
    LOADER_COLD = "loader, files from storage"


class LoadingRate(msgspec.Struct, frozen=True, kw_only=True):
    """Samples per second of one rank."""

    name: RateName
    samples_per_s: float | None  # None: unknown
    origin: str  # measured, predicted, or unknown


class RankLoading(msgspec.Struct, frozen=True, kw_only=True):
    """The loader of one rank."""

    rank: int
    hostname: str
    dataset: str | None
    is_iterable: bool
    num_workers: int
    cores_allowed: int
    ranks_on_host: int
    batch_size: float  # samples per batch
    num_batches: int  # made by the processes that were watched
    num_timed: int  # of these, batches whose stages were timed
    sample_s: float  # to make one sample, in one process
    batch_spread: float | None  # standard deviation of the batches' times, as a share of their mean
    busy_share: float | None  # share of the workers' time in which they make batches; None without workers
    stages: tuple[SampleStage, ...]  # the largest first; they sum to the time in which samples are made
    places: tuple[CodePlace, ...]
    read_bytes: float | None  # per sample, from files
    device_bytes: float | None  # of these, not from the page cache
    from_memory_s: float | None = None  # to make one sample whose file was in memory; None: too few batches
    from_storage_s: float | None = None  # to make one whose file was not
    sending_s: float | None  # per sample, in a second thread of each worker; None without workers
    other_threads_s: float | None = (
        None  # CPU time per sample of a worker's other threads; None: unknown, or hardly any
    )
    receiving_s: float | None  # CPU time per sample, in the training process; None without workers
    pinning_s: float | None  # per sample, in a second thread of the training process; None: not pinned
    copying_s: float | None = None  # per sample, on the GPU's stream; None: no copy to a GPU was timed
    copied_bytes: float | None = None  # per sample, to a GPU; None: nothing was copied
    cores_busy_by_others: float | None = None  # of those allowed on the host; None: unknown
    training_cores: float | None  # cores that the training process keeps busy, without making batches
    watch_share: float  # share of the time that the watch itself took
    step_s: float | None  # mean over the steps after the warm-up
    loader_wait_s: float | None  # of these, waiting for the batch
    aside_s: float | None = None  # of these, evaluations and starts of loaders: no worker makes training batches ahead
    steady_wait_s: float | None = None  # of the wait, what is not in `aside_s`
    samples_per_step: float | None
    speeds: tuple[LoaderSpeed, ...] = ()
    rates: tuple[LoadingRate, ...] = ()
    mounts: dict[str, int] = {}  # files that were read, by the folder of their mount
    data_bytes: float | None = None  # of the data set, if each sample is read once
    storage_samples_per_s: float | None = None  # that the storage can deliver to this rank; None: unknown
    num_shards: int | None = None  # of an iterable data set
    num_idle_workers: int = 0  # workers of an iterable data set that made no batch
    shard_spread: float | None = None  # samples of the worker with most in its first pass / of the one with fewest
    own_bytes: float | None = None  # memory of all workers that they share with no file
    shm_used_share: float | None = None  # of /dev/shm, at most


class FoundCause(msgspec.Struct, frozen=True, kw_only=True):
    """Why the training waits, and what to do."""

    name: LoaderFinding
    share_of_step: float  # the wait for batches
    stage: str | None = None  # the stage that takes most
    share_of_sample: float | None = None  # its share of the time to make a sample
    workers: int | None = None  # the number of workers that is predicted to be fastest
    gain: float | None = None  # by that number: training time before / after
    storage: StorageVerdict | None = None  # what the counters of the file system say


class LoadingProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The loaders of a recorded job, and what is found in them."""

    recording: str
    ranks: tuple[RankLoading, ...]
    slowest_rank: int | None  # the one that waits longest for its batches
    is_waiting: bool | None  # whether the training waits for its batches; None: no step was measured
    causes: tuple[FoundCause, ...] = ()
    problems: tuple[str, ...] = ()
    storage: tuple[StorageVerdict, ...] = ()  # of each mount that the ranks read from, by host
