"""One job of equal pods, as the writers of its objects take it, and the names that its pods will have.

Kubernetes names a pod of a JobSet SET-JOB-0-INDEX and reaches it by that name in the network of the set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from flatout.emit.yaml_text import Value, yaml_text
from flatout.records.pods import PodNeeds

PODS = "workers"
CONTAINER = "train"
IMAGE = "REPLACE-WITH-YOUR-IMAGE"
_NAME_LIMIT = 63  # of a DNS label, which the name of a pod is
_RANDOM_SUFFIX = "-abcde"  # which Kubernetes appends to a pod's name


class PodJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job of equal pods, one on each node."""

    name: str
    image: str
    words: tuple[str, ...]  # the command; `$(` of the user's own is already escaped
    num_nodes: int
    needs: PodNeeds
    namespace: str | None = None
    labels: Mapping[str, str] = {}
    variables: tuple[Value, ...] = ()  # entries of the container's `env`
    keeps_rendezvous: bool = False  # the command already says where its pods meet
    is_suspended: bool = False  # until Kueue admits it
    max_job_restarts: int | None = None  # of all pods together
    backoff_limit: int = 0  # replacements of single pods
    pod_failure_policy: Value = None
    limit_s: int | None = None


class PodObjects(msgspec.Struct, frozen=True, kw_only=True):
    kind: str  # of the last object
    text: str
    notes: tuple[str, ...]


def escaped(words: Sequence[str]) -> tuple[str, ...]:
    """Return the user's words so that Kubernetes expands none of them."""
    return tuple(word.replace("$(", "$$(") for word in words)


def host_name(name: str, index: int) -> str:
    """Return the name of the JobSet's pod with this index, in the network of the set."""
    return f"{name}-{PODS}-0-{index}.{name}"


def name_problem(name: str, num_nodes: int) -> str | None:
    """Return why the job's pods could not have names; None if they can. JobSet and the MPI operator ask the same."""
    longest = f"{name}-{PODS}-0-{num_nodes - 1}{_RANDOM_SUFFIX}"
    excess = len(longest) - _NAME_LIMIT
    if excess <= 0:
        return None
    return (
        f"the job's name must have at most {len(name) - excess} characters, so that the names of its pods have at most"
        f" {_NAME_LIMIT}, but has {len(name)}: `{name}`"
    )


def metadata_of(job: PodJob) -> dict[str, Value]:
    """Return the metadata of the job's main object."""
    metadata: dict[str, Value] = {"name": job.name}
    if job.namespace is not None:
        metadata["namespace"] = job.namespace
    if job.labels:
        metadata["labels"] = dict(job.labels)
    return metadata


def documents(objects: Sequence[Mapping[str, Value]]) -> str:
    """Return the objects as documents of one YAML file."""
    return "---\n".join(yaml_text(each) for each in objects)
