"""What a job needs of a node besides free GPUs: the GPU type and memory, host memory, CPUs and network.

In: a cluster and a job. Out: the mask of nodes that meet the job's needs; or, for a job that can never run, the field
that rules it out. A node that does not state a value is assumed to have enough, and `assumptions` says so. It compares
a job's needs with a whole node, and does not add up the needs of the jobs that share one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from flatout.schedule.cluster import Cluster
from flatout.schedule.jobs import ClusterJob
from flatout.schedule.pool import Pool

GIB = 2.0**30
GBIT = 1e9


class Requirement(NamedTuple):
    """A need that nodes meet by an amount. `field` is the column of a job and the key of a cluster file's nodes."""

    field: str
    attribute: str  # of `ClusterJob` and of `Node`
    unit: float
    is_of_gpu: bool = False  # a share of a GPU has only that share of it


REQUIREMENTS = (
    Requirement("gpu_memory_gib", "gpu_memory_bytes", GIB, is_of_gpu=True),
    Requirement("memory_gib", "memory_bytes", GIB),
    Requirement("cpus", "num_cpus", 1.0),
    Requirement("network_gbit_per_s", "network_bits_per_s", GBIT),
)


class _NodesByAmount:
    """The nodes of a cluster in order of an amount, so that the mask of those with enough is one bisection."""

    def __init__(self, amounts: Sequence[float | None]) -> None:
        self.num_unknown = sum(amount is None for amount in amounts)
        self.known: list[float] = sorted({amount for amount in amounts if amount is not None})
        unknown = sum(1 << node for node, amount in enumerate(amounts) if amount is None)
        mask_of: dict[float, int] = {}
        for node, amount in enumerate(amounts):
            if amount is not None:
                mask_of[amount] = mask_of.get(amount, 0) | 1 << node
        # The nodes with at least the amount of that index, and last those that state none.
        self._masks = [unknown]
        for amount in reversed(self.known):
            self._masks.insert(0, self._masks[0] | mask_of[amount])

    def with_at_least(self, amount: float) -> int:
        """Return the mask of nodes with this amount or more, and of those that do not state it."""
        return self._masks[bisect_left(self.known, amount)]


class NodeMatcher:
    """The nodes of one cluster that meet the needs of jobs."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._pool = Pool(cluster.nodes)
        self._types: dict[tuple[str, ...], int] = {}
        self._by_amount = {
            requirement: _NodesByAmount([getattr(node, requirement.attribute) for node in cluster.nodes])
            for requirement in REQUIREMENTS
        }

    def mask(self, job: ClusterJob) -> int:
        """Return the mask of the nodes that meet all needs of a job, whether or not they have enough GPUs."""
        mask = self._mask_of_types(job)
        for requirement in REQUIREMENTS:
            amount = _needed(job, requirement)
            if amount:
                mask &= self._by_amount[requirement].with_at_least(amount)
        return mask

    def _mask_of_types(self, job: ClusterJob) -> int:
        mask = self._types.get(job.gpu_types)
        if mask is None:
            mask = self._types[job.gpu_types] = self._cluster.mask_of_types(job.gpu_types)
        return mask

    def fits(self, job: ClusterJob) -> bool:
        """Whether a job fits on the empty cluster."""
        return self._pool.fits(job.num_gpus, self.mask(job))

    def why_not(self, job: ClusterJob) -> str:
        """Return what rules out a job that does not fit on the empty cluster: the field, and what the cluster has."""
        return f"requests more than the cluster has: {self._short_field(job)}"

    def _short_field(self, job: ClusterJob) -> str:
        if not self._pool.fits(job.num_gpus):
            return f"num_gpus ({self._cluster.num_gpus} GPUs on {len(self._cluster.nodes):,} nodes)"
        of_types = self._mask_of_types(job)
        if not self._pool.fits(job.num_gpus, of_types):
            return f"gpu_types (too few GPUs of type {' or '.join(job.gpu_types)})"
        needed = [requirement for requirement in REQUIREMENTS if _needed(job, requirement)]
        for requirement in needed:
            by_amount = self._by_amount[requirement]
            enough = of_types & by_amount.with_at_least(_needed(job, requirement))
            if not self._pool.fits(job.num_gpus, enough):
                most = by_amount.known[-1] / requirement.unit
                return f"{requirement.field} (at most {most:g} on a node, or too few nodes that have enough)"
        fields = [requirement.field for requirement in needed]
        named = ["gpu_types", *fields] if job.gpu_types else fields
        return f"{' and '.join(named)} together"

    def assumptions(self, jobs: Sequence[ClusterJob]) -> list[str]:
        """Return a sentence for each need of the jobs that some nodes state no amount for."""
        texts = []
        for requirement, by_amount in self._by_amount.items():
            if by_amount.num_unknown and any(_needed(job, requirement) for job in jobs):
                texts.append(
                    f"{by_amount.num_unknown:,} of {len(self._cluster.nodes):,} nodes do not state"
                    f" {requirement.field}: they are assumed to have enough"
                )
        return texts


def _needed(job: ClusterJob, requirement: Requirement) -> float:
    """Return the amount that each node, or each whole GPU, must have for a job; 0 if it states none."""
    amount = float(getattr(job, requirement.attribute))
    return amount / job.gpu_share if requirement.is_of_gpu else amount


def states_needs(job: ClusterJob) -> bool:
    """Whether a job states a GPU type or any other need of its nodes."""
    return bool(job.gpu_types) or any(_needed(job, requirement) for requirement in REQUIREMENTS)
