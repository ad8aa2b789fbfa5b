"""Word the causes for which a training waits for its batches, and what to do about each.

In: a `FoundCause` and the loader that it was found in. Out: one sentence each.
"""

from __future__ import annotations

from flatout.records.loading import FoundCause, LoaderFinding, RankLoading
from flatout.units import percent, seconds

_MEANING = {
    LoaderFinding.DECODE: "decoding takes most of the time to make a sample",
    LoaderFinding.TRANSFORM: "the transforms take most of the time to make a sample",
    LoaderFinding.CODE: "the data set's own code takes most of the time to make a sample",
    LoaderFinding.CODE_WAITS: "the data set's own code waits rather than computes: for a network, a lock or a sleep",
    LoaderFinding.DECOMPRESS: "decompression takes most of the time to make a sample",
    LoaderFinding.STORAGE: "making a sample is waiting for its file rather than computing",
    LoaderFinding.OPENING: "opening and reading files takes most of the time to make a sample",
    LoaderFinding.COLLATE: "putting samples together takes most of the time to make a batch",
    LoaderFinding.SENDING: "sending batches from the workers to the training process takes longer than making them",
    LoaderFinding.PINNING: "copying batches to pinned memory takes longer than the training needs for them",
    LoaderFinding.OVERSUBSCRIBED: "there are more workers than cores: they wait for each other's cores",
    LoaderFinding.BUSY_CORES: "the cores are busy with other work: the processes that make samples wait for them",
    LoaderFinding.UNEVEN_BATCHES: "the workers are fast enough on average, but some batches take far longer than "
    "others, and batches are delivered in order",
    LoaderFinding.TOO_FEW_SHARDS: "the data set has fewer shards than there are workers: some workers make no batch",
    LoaderFinding.UNEVEN_SHARDS: "some workers have far more samples in their shards than others, which end early",
    LoaderFinding.MEMORY: "the workers have used up the memory that they may use",
    LoaderFinding.BANDWIDTH: "the storage delivers as many bytes or requests per second as it can",
    LoaderFinding.RETRANSMITS: "requests to the file server are lost and have to be sent again",
    LoaderFinding.CACHE_MISSED: "files are read from the storage again and again, although the memory could hold them",
    LoaderFinding.CONTENTION: "the file server answers more slowly at times while this job asks for no more: "
    "others use it",
    LoaderFinding.UNKNOWN: "no stage explains the wait",
}
_WAY_OUT = {
    LoaderFinding.DECODE: "decode less (smaller or pre-resized files), or decode once and keep the result",
    LoaderFinding.TRANSFORM: "make the transforms cheaper, move them to the GPU, or apply the fixed ones once",
    LoaderFinding.CODE: "look at the places below: that code runs once per sample",
    LoaderFinding.CODE_WAITS: "use more workers than cores, or ask for several samples at once",
    LoaderFinding.DECOMPRESS: "use a faster compression, or none on fast storage",
    LoaderFinding.STORAGE: "use more workers than cores, faster storage, or a cache on the node",
    LoaderFinding.OPENING: "pack many small files into few large ones, or put them on storage with faster metadata",
    LoaderFinding.COLLATE: "return tensors or arrays of equal shape, and as few objects per sample as possible",
    LoaderFinding.SENDING: "send fewer objects and bytes per batch: tensors instead of lists and strings",
    LoaderFinding.PINNING: "pin fewer or larger tensors per batch, or none if batches are small",
    LoaderFinding.OVERSUBSCRIBED: "use as many workers as there are cores for them",
    LoaderFinding.BUSY_CORES: "free the cores, or give the job cores that nothing else uses",
    LoaderFinding.UNEVEN_BATCHES: "raise prefetch_factor, or set in_order=False where the order does not matter",
    LoaderFinding.TOO_FEW_SHARDS: "use no more workers than there are shards for each rank, or write more shards",
    LoaderFinding.UNEVEN_SHARDS: "write shards of equal size, at least four for each rank and worker",
    LoaderFinding.MEMORY: "use fewer workers or a smaller prefetch_factor, keep the data set's index in arrays "
    "rather than in lists, and give /dev/shm more room",
    LoaderFinding.BANDWIDTH: "read fewer bytes (smaller or compressed files), keep a cache on the node, or use faster "
    "storage; more workers do not help",
    LoaderFinding.RETRANSMITS: "look for packet loss between this host and the file server: cables, MTU, switch "
    "buffers; more workers make it worse",
    LoaderFinding.CACHE_MISSED: "keep the files in memory or on the node (`flatout run --data-cache`); look at what "
    "drops them: a memory limit, direct I/O, or a mount without caching",
    LoaderFinding.CONTENTION: "copy the data to the node before the job, keep a cache on the node, or ask who uses the "
    "server at that time",
    LoaderFinding.UNKNOWN: "record with `flatout profile` to see what the training process does meanwhile",
}


_BY_MORE_WORKERS = (LoaderFinding.CODE_WAITS, LoaderFinding.STORAGE)
_REPEATS = "each worker of an IterableDataset yields all samples, so they repeat, unless the data set divides them"


def cause_sentence(cause: FoundCause) -> str:
    """Say why the training waits: the cause, and the stage with its share."""
    sentence = _MEANING[cause.name]
    if cause.stage is not None and cause.share_of_sample is not None:
        sentence += f" ({cause.stage}: {percent(cause.share_of_sample)})"
    return sentence


def way_out(cause: FoundCause, loading: RankLoading) -> str:
    """Say what to do about a cause; more workers are never advised without saying what an iterable data set does."""
    if loading.is_iterable and cause.name in _BY_MORE_WORKERS:
        return f"{_WAY_OUT[cause.name]}; {_REPEATS}"
    return _WAY_OUT[cause.name]


def workers_sentence(cause: FoundCause, loading: RankLoading) -> str:
    """Say what another number of workers would bring, by the model of the loader."""
    present = _workers(loading.num_workers)
    if cause.workers is None or cause.gain is None:
        return f"no other number of workers is predicted to be faster than {present}"
    sentence = f"{_workers(cause.workers)} instead of {present}: predicted {cause.gain:.2f}x"
    is_repeating = loading.is_iterable and cause.workers > max(loading.num_workers, 1)
    return f"{sentence}; {_REPEATS}" if is_repeating else sentence


def _workers(count: int) -> str:
    if count == 0:
        return "no workers"
    return "1 worker" if count == 1 else f"{count} workers"


def sample_sentence(loading: RankLoading) -> str:
    """Say what a sample costs, and where."""
    where = "in the training process" if loading.num_workers == 0 else f"in each of {_workers(loading.num_workers)}"
    if loading.num_workers == 1:
        where = "in its only worker"
    return f"a sample takes {seconds(loading.sample_s)} {where}"
