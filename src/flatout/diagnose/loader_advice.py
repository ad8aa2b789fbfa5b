"""Advice on a DataLoader's settings that omits what the job has set already.

In: the facts that a recording holds about the busiest loader. Out: short phrases for a finding's `changes`.
"""

from __future__ import annotations

from flatout.records.change import JobFacts
from flatout.units import num_bytes as in_words
from flatout.units import percent, seconds

_MIN_PICKLED_S = 0.1  # for one worker; each unpickles as long again, and they are started one after the other
_DEFAULT_PREFETCH = 2  # batches per worker, torch.utils.data.DataLoader
STATEFUL = "semantic: the data set keeps state or draws random numbers, which lives on in such workers"
PERHAPS_STATEFUL = "exact only if the data set keeps no state and draws no random numbers in the workers"
REPEATS = (
    "each worker of an IterableDataset yields all samples, so they repeat, unless the data set divides them"
    " (torch.utils.data.get_worker_info)"
)


def keep_workers(loader: JobFacts) -> tuple[str, ...]:
    """Return the advice to keep workers over epochs; empty if the loader keeps them already or has none to keep."""
    return () if loader.loader_workers == 0 else keep_new_workers(loader)


def start_workers_fast(loader: JobFacts) -> tuple[str, ...]:
    """Return the advice to fork workers from a server, if each of them would import the script."""
    if loader.loader_start_method != "spawn" or loader.loader_has_persistent_workers:
        return ()
    return ('DataLoader(multiprocessing_context="forkserver"): its workers are spawned, and each imports the script',)


def of_validation(loader: JobFacts, share: float) -> tuple[str, ...]:
    """Return the advice to start the validation loader's workers once, or fast, as it takes a share of evaluations."""
    takes = f"its start takes {percent(share)} of the evaluations"
    of_workers = (f"persistent_workers=True for the validation loader: {takes} ({PERHAPS_STATEFUL})",)
    return (*start_workers_fast(loader), *of_workers) if loader.loader_start_method == "spawn" else of_workers


def pickle_less(loader: JobFacts) -> tuple[str, ...]:
    """Return the advice to make the data set smaller when pickled, if that takes time for each worker."""
    pickled_s, size = loader.loader_pickled_s, loader.loader_pickled_bytes
    if pickled_s is None or size is None or pickled_s < _MIN_PICKLED_S:
        return ()
    why = f"{in_words(size)} are pickled for each worker in {seconds(pickled_s)}"
    return (f"keep the data in a memory-mapped file or Arrow table, or open it in the worker: {why}",)


def keep_new_workers(loader: JobFacts) -> tuple[str, ...]:
    """Return the advice to keep workers over epochs, for a loader that is advised to have more of them."""
    if loader.loader_has_persistent_workers:
        return ()
    advice = "DataLoader(persistent_workers=True)"
    if loader.loader_is_stateless:
        return (advice,)
    return (f"{advice} ({STATEFUL if is_stateful(loader) else PERHAPS_STATEFUL})",)


def is_stateful(loader: JobFacts) -> bool:
    """Whether workers that are kept are known to make other batches than new ones."""
    return bool(loader.loader_draws or loader.loader_keeps_state)


def more_workers(loader: JobFacts, advice: str) -> str:
    """Return advice to have more workers, with a warning about IterableDatasets unless the data set is not one."""
    if loader.loader_is_iterable:
        return f"{advice}; {REPEATS}"
    return advice if loader.loader_is_iterable is False else f"{advice} ({REPEATS})"


def prefetch_more(loader: JobFacts) -> str:
    """Return the advice to prefetch twice as many batches per worker."""
    return f"DataLoader(prefetch_factor={2 * (loader.loader_prefetch or _DEFAULT_PREFETCH)})"


def pin_memory(loader: JobFacts, *, has_gpu: bool) -> tuple[str, ...]:
    """Return the advice to pin the batches' memory; empty without a GPU, or if the loader pins it already."""
    return ("DataLoader(pin_memory=True)",) if has_gpu and not loader.loader_pins_memory else ()
