"""A job in a history: its request, its duration, and the cost of interrupting it.

Times are seconds; `submit_s` counts from any fixed origin. Values that a history does not state are `None` or empty;
the replay then applies its own `Assumptions`, which every result lists.
"""

from __future__ import annotations

import msgspec

HOUR = 3600.0


class ClusterJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job. `duration_s` is its uninterrupted duration on `num_gpus` GPUs of speed 1."""

    submit_s: float
    num_gpus: int
    duration_s: float
    name: str = ""
    user: str = ""
    team: str = ""  # virtual cluster, account or project: owns a share of the cluster, and pays
    gpu_share: float = 1.0  # share of one GPU, for MIG, MPS or shards; only with `num_gpus == 1`
    gpu_types: tuple[str, ...] = ()  # the GPU types that it can run on; empty: any
    type_speeds: tuple[tuple[str, float], ...] = ()  # speed on a type, relative to `duration_s`; 1 if not named
    # What each of its nodes must have; 0: nothing stated.
    num_cpus: float = 0.0
    memory_bytes: float = 0.0
    gpu_memory_bytes: float = 0.0  # on each GPU; a share of a GPU has that share of its memory
    network_bits_per_s: float = 0.0
    dataset: str = ""  # data set that its nodes need on their disks; empty: none
    stage_s: float = 0.0  # to copy it to nodes, of which one or more do not hold it
    priority: int = 0  # higher is more urgent
    limit_s: float | None = None  # the time limit that the user gave
    checkpoint_s: float | None = None  # interval between checkpoints
    restart_s: float | None = None  # from receiving GPUs again to the first new step
    min_gpus: int | None = None  # an elastic job runs on `min_gpus` to `max_gpus`
    max_gpus: int | None = None
    scaling: float = 0.9  # exponent of an elastic job's speed: (gpus / num_gpus) ** scaling
    # Seconds of work and of holding the GPUs idle, in turn, beginning with work; they sum to `duration_s`.
    # Empty: the job works all the time.
    phases: tuple[float, ...] = ()
    utilization: float | None = None  # utilization of the job's GPUs while it works, 0 to 1, for packing; None: unknown


class Assumptions(msgspec.Struct, frozen=True, kw_only=True):
    """Values assumed for jobs whose history does not state them."""

    checkpoint_s: float = 1800.0
    restart_s: float = 180.0


class JobHistory(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs in order of submission; `skipped` counts, by reason, the rows that were not read as jobs."""

    jobs: tuple[ClusterJob, ...]
    source: str
    skipped: dict[str, int] = {}
    notes: tuple[str, ...] = ()


def by_submission(jobs: list[ClusterJob]) -> tuple[ClusterJob, ...]:
    """Return the jobs in order of submission; jobs of the same second keep the order of the file."""
    return tuple(sorted(jobs, key=lambda job: job.submit_s))
