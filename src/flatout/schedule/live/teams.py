"""Read a small TOML of teams, their quotas and their jobs, from which the manifests for Kueue are written.

    [cluster]    name (of the cohort); topology: labels of nodes, the widest level first, without the host; kueue_api
    [[flavors]]  name, nodes, gpus_per_node, cpus_per_node, memory_gib_per_node, network_per_node, node_labels
    [[teams]]    name, namespace, gpus = {FLAVOR = N}, borrow = {FLAVOR = N}, lend = {FLAVOR = N}, weight
    [priorities] NAME = VALUE
    [[jobs]]     name, team, kind (jobset or trainjob), nodes, gpus_per_node, command, image, priority, within, flavor,
                 memory_gib, shm_gib, gpu_memory_gb, network = {RESOURCE = N}

What a flavor has per node is what pods can request: the nodes' allocatable amounts less the requests of DaemonSets.
Out: `Teams`, of which every rule below holds; a broken one is refused in one line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from flatout.change.launchers import first_launcher
from flatout.emit.pod_job import IMAGE, name_problem
from flatout.errors import InputError
from flatout.input_records import read_record
from flatout.records.pods import HOST_LABEL

KueueApi = Literal["v1beta2", "v1beta1"]
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,50}[a-z0-9])?")
_LABEL = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_RESOURCE = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LARGEST_PRIORITY = 2**31 - 1
_MAX_LEVELS, _MAX_NODE_LABELS = 16, 8  # Kueue's limits
_EXAMPLE = "docs/how-to/queue-on-ray-and-kubernetes.md has an example"
_MAX_DEVICES = 1_000_000
_MAX_GPU_GB = 10_000
_NOT_IN_A_TRAINJOB = ("deepspeed", "mpirun")  # Trainer's torch runtime has neither their host file nor ssh


class ClusterTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    topology: tuple[str, ...] = ()
    kueue_api: KueueApi = "v1beta2"  # v1beta1: for Kueue before 0.15


class FlavorTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Equal nodes. `cpus_per_node` and `memory_gib_per_node` are what pods can request, without the system's part."""

    name: str
    nodes: int
    gpus_per_node: int
    cpus_per_node: int
    memory_gib_per_node: int
    network_per_node: dict[str, int] = {}  # e.g. {"rdma/hca" = 8}
    node_labels: dict[str, str] = {}


class TeamTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A team and its quotas. It borrows without limit if `borrow` lacks a flavor, and lends all without `lend`."""

    name: str
    gpus: dict[str, int]
    namespace: str | None = None
    borrow: dict[str, int] = {}
    lend: dict[str, int] = {}
    weight: float = 1.0


class JobTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job of equal pods, one per node."""

    name: str
    team: str
    nodes: int
    gpus_per_node: int
    command: tuple[str, ...]
    kind: Literal["jobset", "trainjob"] = "jobset"
    image: str = IMAGE
    priority: str | None = None
    within: str | None = None
    restarts: int = 3
    flavor: str | None = None  # the type of GPU; None: any
    memory_gib: int | None = None  # per node; None: by its share of the GPUs
    shm_gib: int | None = None  # of the memory; None: half of it
    gpu_memory_gb: float | None = None  # least memory of a GPU
    network: dict[str, int] = {}  # per node


class Teams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cluster: ClusterTable
    flavors: tuple[FlavorTable, ...]
    teams: tuple[TeamTable, ...]
    priorities: dict[str, int] = {}
    jobs: tuple[JobTable, ...] = ()


def flavors_for(job: JobTable, teams: Teams) -> list[FlavorTable]:
    """Return the flavors whose nodes can hold a pod of the job."""
    return [
        flavor
        for flavor in teams.flavors
        if job.flavor in (None, flavor.name)
        and flavor.gpus_per_node >= job.gpus_per_node
        and flavor.memory_gib_per_node >= (job.memory_gib or 0)
        and all(flavor.network_per_node.get(name, 0) >= number for name, number in job.network.items())
    ]


def namespace_of(name: str, teams: Teams) -> str:
    """Return the namespace of a team: its own name, if it gives none."""
    team = next(team for team in teams.teams if team.name == name)
    return team.namespace or team.name


def read_teams(path: Path) -> Teams:
    """Read the teams. Raises a one-line InputError for a wrong type, an unknown name or too large quotas."""
    teams = read_record(path, Teams, hint=_EXAMPLE)
    for problem in _problems(teams):
        raise InputError(f"`{path}`: {problem}", hint=_EXAMPLE)
    return teams


def _problems(teams: Teams) -> Iterator[str]:
    """Yield each broken rule, in the order in which an operator should fix them."""
    yield from _problems_of_names(teams)
    yield from _problems_of_labels(teams)
    if not teams.flavors or not teams.teams:
        yield "there must be a flavor and a team"
    for flavor in teams.flavors:
        yield from _problems_of_flavor(flavor, teams)
    for team in teams.teams:
        yield from _problems_of_team(team, teams)
    for job in teams.jobs:
        yield from _problems_of_job(job, teams)


def _problems_of_names(teams: Teams) -> Iterator[str]:
    named = [("cluster", teams.cluster.name)]
    for kind, records in (("flavor", teams.flavors), ("team", teams.teams), ("job", teams.jobs)):
        names = [record.name for record in records]
        named.extend((kind, name) for name in names)
        yield from (f"two of the {kind}s are named `{name}`" for name in names if names.count(name) > 1)
    named.extend(("priority", name) for name in teams.priorities)
    named.extend(("namespace", team.namespace) for team in teams.teams if team.namespace is not None)
    for kind, name in named:
        if not _NAME.fullmatch(name):
            yield f"a {kind}'s name must be lower-case letters, digits and hyphens, at most 52, but is `{name}`"
    for name, value in teams.priorities.items():
        if abs(value) > _LARGEST_PRIORITY:
            yield f"priority {name}: its value must be at most {_LARGEST_PRIORITY:,}, but is {value:,}"


def _problems_of_labels(teams: Teams) -> Iterator[str]:
    topology = teams.cluster.topology
    labels = (*topology, *(label for flavor in teams.flavors for label in flavor.node_labels))
    yield from (f"`{label}` is not a valid node label" for label in labels if not _LABEL.fullmatch(label))
    if len(set(topology)) < len(topology) or len(topology) >= _MAX_LEVELS:
        yield f"topology must have at most {_MAX_LEVELS - 1} levels, each once, but has {', '.join(topology)}"
    for flavor in teams.flavors:
        values = [value for value in flavor.node_labels.values() if not _LABEL_VALUE.fullmatch(value)]
        yield from (f"flavor {flavor.name}: `{value}` is not a valid value of a node label" for value in values)
        if len(flavor.node_labels) > _MAX_NODE_LABELS:
            yield f"flavor {flavor.name}: it must have at most {_MAX_NODE_LABELS} node_labels"
    if HOST_LABEL in topology:
        yield f"topology must not name {HOST_LABEL}: it is the narrowest level in any case"


def _problems_of_flavor(flavor: FlavorTable, teams: Teams) -> Iterator[str]:
    if min(flavor.nodes, flavor.gpus_per_node, flavor.cpus_per_node, flavor.memory_gib_per_node) < 1:
        yield f"flavor {flavor.name}: nodes, GPUs, CPUs and memory must be at least 1"
    if teams.cluster.topology and not flavor.node_labels:
        yield f"flavor {flavor.name}: with a topology, node_labels must name its nodes"
    yield from _problems_of_network(f"flavor {flavor.name}: `network_per_node`", flavor.network_per_node)
    num_gpus = flavor.nodes * flavor.gpus_per_node
    quotas = sum(team.gpus.get(flavor.name, 0) for team in teams.teams)
    if quotas > num_gpus:
        yield (
            f"flavor {flavor.name}: the teams' quotas must be at most {flavor.nodes} * {flavor.gpus_per_node} ="
            f" {num_gpus} GPUs, but are {quotas}"
        )


def _problems_of_network(where: str, network: dict[str, int]) -> Iterator[str]:
    for name, number in network.items():
        if not _RESOURCE.fullmatch(name) or not 1 <= number <= _MAX_DEVICES:
            yield f'{where} must have resources with their numbers, e.g. {{"rdma/hca" = 8}}, but has {name} = {number}'


def _problems_of_team(team: TeamTable, teams: Teams) -> Iterator[str]:
    flavors = {flavor.name for flavor in teams.flavors}
    for limits in (team.gpus, team.borrow, team.lend):
        for name, number in limits.items():
            if name not in flavors or number < 0:
                yield f"team {team.name}: `{name} = {number}` must be a flavor and a number of GPUs"
    for name, number in team.lend.items():
        own = team.gpus.get(name, 0)
        if number > own:
            yield f"team {team.name}: `lend` of {name} must be at most its own {own} GPUs, but is {number}"
    if not 0 < team.weight <= 1e9:  # written so that `nan` is refused too
        yield f"team {team.name}: its weight must be more than 0, and at most 1e9, but is {team.weight}"


def _problems_of_job(job: JobTable, teams: Teams) -> Iterator[str]:
    if job.team not in {team.name for team in teams.teams}:
        yield f"job {job.name}: there is no team `{job.team}`"
    if job.priority is not None and job.priority not in teams.priorities:
        yield f"job {job.name}: there is no priority `{job.priority}`"
    if job.within is not None and job.within not in (*teams.cluster.topology, HOST_LABEL):
        yield f"job {job.name}: `within` must be a level of the topology, but is `{job.within}`"
    if min(job.nodes, job.gpus_per_node) < 1 or not job.command:
        yield f"job {job.name}: nodes and gpus_per_node must be at least 1, and there must be a command"
    if all(job.gpus_per_node > flavor.gpus_per_node for flavor in teams.flavors):
        yield f"job {job.name}: no node has {job.gpus_per_node} GPUs"
    yield from _problems_of_needs(job, teams)
    if problem := name_problem(job.name, job.nodes):
        yield problem
    launcher = first_launcher(job.command)
    if job.kind == "trainjob" and job.nodes > 1 and launcher in _NOT_IN_A_TRAINJOB:
        yield f'job {job.name}: {launcher} on several nodes needs `kind = "jobset"`'


def _problems_of_needs(job: JobTable, teams: Teams) -> Iterator[str]:
    """Yield what no flavor, or no single pod, can have."""
    yield from _problems_of_numbers(job)
    if job.flavor is not None and job.flavor not in {flavor.name for flavor in teams.flavors}:
        yield f"job {job.name}: there is no flavor `{job.flavor}`"
    able = flavors_for(job, teams)
    if not able:
        needs = [f"{job.gpus_per_node} GPUs", *(f"{number} {name}" for name, number in job.network.items())]
        needs += [f"{job.memory_gib} GiB"] if job.memory_gib else []
        yield f"job {job.name}: no node of {job.flavor or 'any flavor'} has {', '.join(needs)}"
        return
    memory_gib = job.memory_gib or min(_shared_memory_gib(job, flavor) for flavor in able)
    if job.shm_gib is not None and job.shm_gib >= memory_gib:
        yield f"job {job.name}: shm_gib is {job.shm_gib}, but is a part of the memory, which is {memory_gib} GiB"
    most_gpus = max(flavor.gpus_per_node for flavor in able)
    if job.within == HOST_LABEL and job.nodes * job.gpus_per_node > most_gpus:
        yield f"job {job.name}: {job.nodes} * {job.gpus_per_node} GPUs are not `within` one host, which has {most_gpus}"


def _problems_of_numbers(job: JobTable) -> Iterator[str]:
    yield from _problems_of_network(f"job {job.name}: `network`", job.network)
    if job.restarts < 0:
        yield f"job {job.name}: `restarts` must be at least 0, but is {job.restarts}"
    sizes = [size for size in (job.memory_gib, job.shm_gib) if size is not None]
    if any(size < 1 for size in sizes):
        yield f"job {job.name}: memory_gib and shm_gib must be at least 1"
    if job.gpu_memory_gb is not None and not 0 < job.gpu_memory_gb <= _MAX_GPU_GB:
        yield f"job {job.name}: gpu_memory_gb must be more than 0, and at most {_MAX_GPU_GB:,}"


def _shared_memory_gib(job: JobTable, flavor: FlavorTable) -> int:
    return flavor.memory_gib_per_node * job.gpus_per_node // flavor.gpus_per_node
