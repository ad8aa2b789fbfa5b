"""The DataLoader: how batches are made and reach the device while the device computes.

Cores are those that the control group allows this job, shared with other programs and among the ranks of a host, with
one per rank reserved for the training process (`JobFacts.worker_cores`). torch itself uses the machine's cores and
the affinity, not a container's quota. A loader that mostly waits, as for network storage, can have more workers than
cores: the recording has the CPU share of the time in which batches are made.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from flatout.change.setting import setting
from flatout.records.change import Change, JobFacts, Knob, Need, ValidRange

FAMILY = "dataloader"
MAX_WORKERS = 32  # per rank: more workers cost memory and rarely help
PREFETCH = (4, 8)
WAITING_WORKERS_PER_CORE = 8
_TORCH = "torch.utils.data documentation"

WORKERS = Knob(
    name="dataloader-workers",
    family=FAMILY,
    summary="make batches in worker processes, as many as the cores allow, or more if they wait",
    safety="exact",
    answers={"data-loading": 1.0},
    needs=(Need(fact="cores_allowed", relation="at least", value=1),),
    valid=ValidRange(least=1, most=MAX_WORKERS),
    combines_with=("dataloader-persistent-workers", "dataloader-prefetch"),
    doc=(
        "Batches are decoded and augmented in parallel with the training. Each worker is a process with a copy of the"
        " dataset object, and needs shared memory for its batches. An IterableDataset gets one worker at most: each"
        " worker yields all samples unless the dataset divides them, so with more workers samples repeat. If random"
        " augmentation uses the worker's seed, a different number of workers gives different losses, which are judged"
        " against the spread of repeated baselines. Where there are more workers than cores, fewer of them start sooner"
        " at each epoch."
    ),
    source=f"{_TORCH}; stas00/ml-engineering: 0 -> 3 workers, 5.4 -> 0.84 s per step",
)
PREFETCHED = Knob(
    name="dataloader-prefetch",
    family=FAMILY,
    summary="let each worker prepare more batches ahead",
    safety="exact",
    answers={"data-loading": 0.5},
    valid=ValidRange(least=1, most=64),
    requires=("dataloader-workers",),
    doc=(
        "Evens out batches that take unequally long, but does not help if workers are too slow on average. Each"
        " additional batch takes memory in every worker. The default is 2."
    ),
    source=_TORCH,
)
PINNED = Knob(
    name="dataloader-pin-memory",
    family=FAMILY,
    summary="put batches into pinned memory, from which the GPU copies directly",
    safety="exact",
    answers={"memory-copy": 1.0, "host-sync": 0.5},
    needs=(Need(fact="device", relation="is", value="cuda"),),
    combines_with=("non-blocking-copies",),
    doc=(
        "A copy from pageable memory goes through a staging buffer and blocks the host until it is done. Pinning takes"
        " a thread of the training process and memory that cannot be swapped; tiny batches do not gain."
    ),
    source=f"{_TORCH}; stas00/ml-engineering: 0.646 -> 0.459 s per step together with non_blocking",
)
PERSISTENT = Knob(
    name="dataloader-persistent-workers",
    family=FAMILY,
    summary="keep the workers alive between epochs",
    safety="exact",
    answers={"epoch-boundary": 1.0, "data-loading": 0.5},
    requires=("dataloader-workers",),
    doc=(
        "Saves restarting the workers at each epoch, which matters if epochs are short. It is exact only for a dataset"
        " that keeps no state and draws no random numbers in the workers: if a dataset changes its own state at each"
        " epoch, its copies in the workers keep the first epoch's state, and random augmentation continues there"
        " instead of starting from the epoch's seed. If the recording shows either, or cannot show it, the change is"
        " semantic."
    ),
    source=_TORCH,
)
FORK_SERVER = Knob(
    name="dataloader-fork-server",
    family=FAMILY,
    summary="start workers from a server process that has imported the script, instead of importing it in each",
    safety="exact",
    answers={"epoch-boundary": 1.0, "evaluation-stall": 0.5},
    needs=(Need(fact="loader_start_method", relation="is", value="spawn"),),
    requires=("dataloader-workers",),
    doc=(
        "A worker that is spawned is a new Python, which imports the script and torch: seconds at each start of each"
        " loader, also of those for the evaluation. Workers are spawned if the script asks for it, and also if its"
        " ranks were started by `torch.multiprocessing.spawn`, whose processes pass their start method on. A fork"
        " server imports once per rank; each worker is then a copy of it, and gets the data set and its seed as before."
    ),
    source="Python's documentation of multiprocessing; pytorch/examples' ImageNet script on two H200: 13.7 s per epoch",
)
FEWER_WORKERS = msgspec.structs.replace(WORKERS, answers={**WORKERS.answers, "epoch-boundary": 0.75})
PERSISTENT_WITH_STATE = msgspec.structs.replace(PERSISTENT, safety="semantic")
NON_BLOCKING = Knob(
    name="non-blocking-copies",
    family=FAMILY,
    summary="copy from pinned memory to the device without waiting",
    safety="exact",
    answers={"memory-copy": 1.0, "host-sync": 0.5},
    needs=(Need(fact="device", relation="is", value="cuda"),),
    requires=("dataloader-pin-memory",),
    doc=(
        "Applies only to copies from pinned host memory to the device, which the stream keeps in order. Copies to the"
        " host stay blocking, because the host could read them too early. A script that writes into a pinned batch"
        " again right after copying it would race; a DataLoader does not do that."
    ),
    source="torch.Tensor.to documentation",
)
MIN_MODEL_GAIN = 1.05  # predicted, of a number of workers whose neighbours are tried too
KEEPS_UP = 1.25  # times the workers that are just enough, because batches take unequally long
KNOBS = (WORKERS, PREFETCHED, PINNED, FORK_SERVER, PERSISTENT, NON_BLOCKING)


def changes(facts: JobFacts) -> Iterator[Change]:
    for count in worker_counts(facts):
        knob = FEWER_WORKERS if _starts_sooner(facts, count) else WORKERS
        yield setting(knob, count, patch="dataloader", num_workers=count)
    for depth in PREFETCH:
        if depth != facts.loader_prefetch:
            yield setting(PREFETCHED, depth, patch="dataloader", prefetch_factor=depth)
    if not facts.loader_pins_memory:
        yield setting(PINNED, patch="dataloader", pin_memory=True)
    yield setting(FORK_SERVER, patch="dataloader", multiprocessing_context="forkserver")
    if not facts.loader_has_persistent_workers:
        knob = PERSISTENT if facts.loader_is_stateless else PERSISTENT_WITH_STATE
        yield setting(knob, patch="dataloader", persistent_workers=True)
    yield setting(NON_BLOCKING, patch="non_blocking_copies")


def lacks_cores(change: Change, facts: JobFacts) -> bool:
    """Whether the change is a number of workers that compute, and with the rank need more cores than it has."""
    return change.knob.name == WORKERS.name and facts.is_crowded_by(int(change.value))


def _starts_sooner(facts: JobFacts, count: int) -> bool:
    """Whether `count` workers start sooner at an epoch than those of the job, which are more than its cores."""
    workers, cores = facts.loader_workers or 0, facts.cores_per_rank or 0
    return count < workers and workers > cores and not facts.loader_has_persistent_workers


def worker_counts(facts: JobFacts) -> tuple[int, ...]:
    """Return the numbers of workers per rank to try, at most those that the spare cores can run.

    The first is the number that keeps up with the rest of the step, if the loader waits and its load is known; the
    others follow, largest first. A rank with one core still gets one worker: it can read while the training computes. A
    worker that waits needs only its CPU share of a core. Where the stages of batches were timed, the model of the
    loader chooses instead. An iterable dataset gets one worker, as more would repeat its samples.
    """
    if facts.worker_cores is None:
        return ()
    if facts.loader_is_iterable:
        return (1,) if facts.loader_workers == 0 else ()
    spare_cores = int(facts.worker_cores)
    most = min(spare_cores, MAX_WORKERS)
    if facts.loader_waits:
        by_cpu_time = spare_cores / max(facts.loader_cpu_share or 0.0, 1 / WAITING_WORKERS_PER_CORE)
        most = min(int(by_cpu_time), MAX_WORKERS)
    if facts.loader_best_workers is not None:
        return _by_the_model(facts)
    counts = dict.fromkeys((*_keeping_up(facts, most), most, most // 2, most // 4, min(2, most)))
    return tuple(count for count in counts if count >= 1 and count != facts.loader_workers)


def _by_the_model(facts: JobFacts) -> tuple[int, ...]:
    """Return the number of workers that the model of the loader calls best, half of it and twice.

    A model can be wrong: so its neighbours are tried too, unless it predicts that no number brings anything. Then one
    trial compares it with the job.
    """
    best = max(facts.loader_best_workers or 0, 1)
    neighbours = (2 * best, max(best // 2, 1)) if (facts.loader_best_gain or 0.0) >= MIN_MODEL_GAIN else ()
    counts = dict.fromkeys(min(count, MAX_WORKERS) for count in (best, *neighbours))
    return tuple(count for count in counts if count != facts.loader_workers)


def _keeping_up(facts: JobFacts, most: int) -> tuple[int, ...]:
    """Return the number of workers that make a batch in the time of the rest of a step; () if it is unknown."""
    if not facts.loader_waits or facts.loader_load is None:
        return ()
    return (min(max(math.ceil(KEEPS_UP * facts.loader_load), 1), most),)
