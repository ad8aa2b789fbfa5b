"""Advice on a DataLoader's settings that omits what the job has set already.

In: the facts that a recording holds about the busiest loader. Out: short phrases for a finding's `changes`.
"""

from __future__ import annotations

from flatout.records.change import JobFacts

_DEFAULT_PREFETCH = 2  # batches per worker, torch.utils.data.DataLoader
STATEFUL = "semantic: the data set keeps state or draws random numbers, which lives on in such workers"
PERHAPS_STATEFUL = "exact only if the data set keeps no state and draws no random numbers in the workers"


def keep_workers(loader: JobFacts) -> tuple[str, ...]:
    """Return the advice to keep workers over epochs; empty if the loader keeps them already or has none to keep."""
    if loader.loader_has_persistent_workers or loader.loader_workers == 0:
        return ()
    return ("DataLoader(persistent_workers=True)",)


def start_workers_fast(loader: JobFacts) -> tuple[str, ...]:
    """Return the advice to fork workers from a server, if each of them would import the script."""
    if loader.loader_start_method != "spawn" or loader.loader_has_persistent_workers:
        return ()
    return ('DataLoader(multiprocessing_context="forkserver"): its workers are spawned, and each imports the script',)


def keep_new_workers(loader: JobFacts) -> tuple[str, ...]:
    """Return the advice to keep workers over epochs, for a loader that is advised to have more of them."""
    if loader.loader_has_persistent_workers:
        return ()
    advice = "DataLoader(persistent_workers=True)"
    if loader.loader_is_stateless:
        return (advice,)
    knows_state = loader.loader_draws or loader.loader_keeps_state
    return (f"{advice} ({STATEFUL if knows_state else PERHAPS_STATEFUL})",)


def prefetch_more(loader: JobFacts) -> str:
    """Return the advice to prefetch twice as many batches per worker."""
    return f"DataLoader(prefetch_factor={2 * (loader.loader_prefetch or _DEFAULT_PREFETCH)})"


def pin_memory(loader: JobFacts, *, has_gpu: bool) -> tuple[str, ...]:
    """Return the advice to pin the batches' memory; empty without a GPU, or if the loader pins it already."""
    return ("DataLoader(pin_memory=True)",) if has_gpu and not loader.loader_pins_memory else ()
