"""Turn a small TOML of teams and their quotas into Kueue's queues and example jobs (JobSet, TrainJob) as YAML.

    [cluster]    name (of the cohort); topology: labels of nodes, the widest level first, without the host
    [[flavors]]  name, nodes, gpus_per_node, cpus_per_node, memory_gib_per_node, node_labels
    [[teams]]    name, namespace, gpus = {FLAVOR = N}, borrow = {FLAVOR = N}, lend = {FLAVOR = N}, weight
    [priorities] NAME = VALUE
    [[jobs]]     name, team, kind (jobset or trainjob), nodes, gpus_per_node, command, image, priority, within

APIs: kueue.x-k8s.io/v1beta2, jobset.x-k8s.io/v1alpha2, trainer.kubeflow.org/v1alpha1. A quota is a sum and ignores
the shape of nodes; with a topology, Kueue places pods by it, and a job that fits in no rack waits.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from flatout.change.launchers import calls
from flatout.emit.rendezvous import PORT, with_rendezvous
from flatout.emit.yaml_text import Value, yaml_text
from flatout.errors import InputError
from flatout.input_files import read_toml
from flatout.records.tuning import Emitted

KUEUE, JOBSET, TRAINER = "kueue.x-k8s.io/v1beta2", "jobset.x-k8s.io/v1alpha2", "trainer.kubeflow.org/v1alpha1"
GPU = "nvidia.com/gpu"
HOST_LABEL = "kubernetes.io/hostname"
IMAGE = "REPLACE-WITH-YOUR-IMAGE"
RUNTIME = "flatout-torch"
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,50}[a-z0-9])?")
_LABEL = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


class ClusterTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    topology: tuple[str, ...] = ()


class FlavorTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Equal nodes. `cpus_per_node` and `memory_gib_per_node` are what pods can request, without the system's part."""

    name: str
    nodes: int
    gpus_per_node: int
    cpus_per_node: int
    memory_gib_per_node: int
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


class Teams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cluster: ClusterTable
    flavors: tuple[FlavorTable, ...]
    teams: tuple[TeamTable, ...]
    priorities: dict[str, int] = {}
    jobs: tuple[JobTable, ...] = ()


def read_teams(path: Path) -> Teams:
    """Read the teams. Raises a one-line InputError for a wrong type, an unknown name or too large quotas."""
    try:
        teams = msgspec.convert(read_toml(path), Teams)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise InputError(f"{path}: {error}") from None
    for problem in _problems(teams):
        raise InputError(f"{path}: {problem}")
    return teams


def manifests(teams: Teams) -> tuple[Emitted, ...]:
    """Return `kueue.yaml`, `runtime.yaml` if there is a TrainJob, and one file per job."""
    emitted = [Emitted(path="kueue.yaml", text=_documents(_queues(teams)))]
    if any(job.kind == "trainjob" for job in teams.jobs):
        runtimes = [_runtime(level) for level in sorted({job.within or "" for job in _train_jobs(teams)})]
        emitted.append(Emitted(path="runtime.yaml", text=_documents(runtimes)))
    for job in teams.jobs:
        manifest = _jobset(job, teams) if job.kind == "jobset" else _train_job(job, teams)
        notes = (f"set `image` of {job.name}: {IMAGE} is a placeholder",) if job.image == IMAGE else ()
        emitted.append(Emitted(path=f"{job.kind}-{job.name}.yaml", text=_documents([manifest]), notes=notes))
    return tuple(emitted)


def _train_jobs(teams: Teams) -> Iterator[JobTable]:
    return (job for job in teams.jobs if job.kind == "trainjob")


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


def _problems_of_labels(teams: Teams) -> Iterator[str]:
    topology = teams.cluster.topology
    labels = (*topology, *(label for flavor in teams.flavors for label in flavor.node_labels))
    yield from (f"`{label}` is not a valid node label" for label in labels if not _LABEL.fullmatch(label))
    if HOST_LABEL in topology:
        yield f"topology must not name {HOST_LABEL}: it is the narrowest level in any case"


def _problems_of_flavor(flavor: FlavorTable, teams: Teams) -> Iterator[str]:
    if min(flavor.nodes, flavor.gpus_per_node, flavor.cpus_per_node, flavor.memory_gib_per_node) < 1:
        yield f"flavor {flavor.name}: nodes, GPUs, CPUs and memory must be at least 1"
    if teams.cluster.topology and not flavor.node_labels:
        yield f"flavor {flavor.name}: with a topology, node_labels must name its nodes"
    num_gpus = flavor.nodes * flavor.gpus_per_node
    quotas = sum(team.gpus.get(flavor.name, 0) for team in teams.teams)
    if quotas > num_gpus:
        yield (
            f"flavor {flavor.name}: the teams' quotas must be at most {flavor.nodes} * {flavor.gpus_per_node} ="
            f" {num_gpus} GPUs, but are {quotas}"
        )


def _problems_of_team(team: TeamTable, teams: Teams) -> Iterator[str]:
    flavors = {flavor.name for flavor in teams.flavors}
    for limits in (team.gpus, team.borrow, team.lend):
        for name, number in limits.items():
            if name not in flavors or number < 0:
                yield f"team {team.name}: `{name} = {number}` must be a flavor and a number of GPUs"
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


def _queues(teams: Teams) -> Iterator[Mapping[str, Value]]:
    cluster = teams.cluster
    if cluster.topology:
        levels = [{"nodeLabel": label} for label in (*cluster.topology, HOST_LABEL)]
        yield _object(KUEUE, "Topology", cluster.name, {"levels": levels})
    for flavor in teams.flavors:
        spec: dict[str, Value] = {"nodeLabels": flavor.node_labels} if flavor.node_labels else {}
        # Many clouds taint nodes with GPUs; with a topology, Kueue itself must tolerate the taint.
        spec["tolerations"] = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]
        if cluster.topology:
            spec["topologyName"] = cluster.name
        yield _object(KUEUE, "ResourceFlavor", flavor.name, spec)
    left = {
        flavor.name: flavor.nodes * flavor.gpus_per_node - sum(team.gpus.get(flavor.name, 0) for team in teams.teams)
        for flavor in teams.flavors
    }
    yield _object(KUEUE, "Cohort", cluster.name, {"resourceGroups": _groups(teams.flavors, left)})
    for team in teams.teams:
        yield _object(
            KUEUE,
            "ClusterQueue",
            team.name,
            {
                "cohortName": cluster.name,
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": _namespace(team)}},
                "queueingStrategy": "BestEffortFIFO",
                "fairSharing": {"weight": f"{team.weight:g}"},
                # Lent GPUs are reclaimed by their team; within a team, priority decides.
                "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
                "flavorFungibility": {"whenCanBorrow": "MayStopSearch", "whenCanPreempt": "TryNextFlavor"},
                "resourceGroups": _groups(teams.flavors, team.gpus, team.borrow, team.lend),
            },
        )
        yield {
            **_object(KUEUE, "LocalQueue", team.name, {"clusterQueue": team.name}),
            "metadata": {"name": team.name, "namespace": _namespace(team)},
        }
    for name, value in teams.priorities.items():
        yield {
            "apiVersion": KUEUE,
            "kind": "WorkloadPriorityClass",
            "metadata": {"name": name},
            "value": value,
            "description": "order and preemption of workloads within a team's queue",
        }


def _groups(
    flavors: Sequence[FlavorTable],
    gpus: Mapping[str, int],
    borrow: Mapping[str, int] | None = None,
    lend: Mapping[str, int] | None = None,
) -> list[Value]:
    """Return the quotas; a share of a node's GPUs comes with the same share of its CPUs and memory."""
    listed: list[Value] = []
    for flavor in flavors:
        resources: list[Value] = []
        for name, per_node, unit in (
            ("cpu", flavor.cpus_per_node, ""),
            ("memory", flavor.memory_gib_per_node, "Gi"),
            (GPU, flavor.gpus_per_node, ""),
        ):

            def quantity(number: int, per_node: int = per_node, unit: str = unit, flavor: FlavorTable = flavor) -> str:
                return f"{number * per_node // flavor.gpus_per_node}{unit}"

            quota: dict[str, Value] = {"name": name, "nominalQuota": quantity(gpus.get(flavor.name, 0))}
            if borrow is not None and flavor.name in borrow:
                quota["borrowingLimit"] = quantity(borrow[flavor.name])
            if lend is not None and flavor.name in lend:
                quota["lendingLimit"] = quantity(min(lend[flavor.name], gpus.get(flavor.name, 0)))
            resources.append(quota)
        listed.append({"name": flavor.name, "resources": resources})
    return [{"coveredResources": ["cpu", "memory", GPU], "flavors": listed}]


def _jobset(job: JobTable, teams: Teams) -> Mapping[str, Value]:
    pods = "workers"
    words: tuple[str, ...] = tuple(word.replace("$(", "$$(") for word in job.command)
    if job.nodes > 1 and calls(words, "torchrun"):
        meeting = (
            f"--nnodes={job.nodes}",
            "--node-rank=$(JOB_COMPLETION_INDEX)",
            f"--master-addr={job.name}-{pods}-0-0.{job.name}",
            f"--master-port={PORT}",
        )
        words = with_rendezvous(words, meeting)
    container: Value = {
        "name": "train",
        "image": job.image,
        "command": list(words),
        "resources": _resources(job, teams),
    }
    template: dict[str, Value] = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    if annotations := _annotations(job.within, teams):
        template = {"metadata": {"annotations": annotations}, **template}
    pod_job: Value = {
        "parallelism": job.nodes,
        "completions": job.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": template,
    }
    spec: dict[str, Value] = {
        "suspend": True,  # Kueue starts it
        "network": {"enableDNSHostnames": True},
        "failurePolicy": {"maxRestarts": job.restarts},
        "replicatedJobs": [{"name": pods, "replicas": 1, "template": {"spec": pod_job}}],
    }
    return {**_object(JOBSET, "JobSet", job.name, spec), "metadata": _job_metadata(job, teams)}


def _train_job(job: JobTable, teams: Teams) -> Mapping[str, Value]:
    trainer: dict[str, Value] = {
        "image": job.image,
        "command": list(job.command),
        "numNodes": job.nodes,
        "numProcPerNode": job.gpus_per_node,
        "resourcesPerNode": _resources(job, teams),
    }
    spec: dict[str, Value] = {
        "suspend": True,
        "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime", "name": _of(job.within)},
        "trainer": trainer,
    }
    return {**_object(TRAINER, "TrainJob", job.name, spec), "metadata": _job_metadata(job, teams)}


def _runtime(within: str) -> Mapping[str, Value]:
    """Return the runtime for a topology level; the runtime has the topology annotation, and jobs only refer to it."""
    template: dict[str, Value] = {"spec": {"containers": [{"name": "node", "image": IMAGE}]}}
    if within:
        template = {"metadata": {"annotations": {"kueue.x-k8s.io/podset-required-topology": within}}, **template}
    pod_job: Value = {
        "name": "node",
        "template": {
            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
            "spec": {"template": template},
        },
    }
    made = _object(
        TRAINER,
        "ClusterTrainingRuntime",
        _of(within or None),
        {"mlPolicy": {"numNodes": 1, "torch": {}}, "template": {"spec": {"replicatedJobs": [pod_job]}}},
    )
    return {
        **made,
        "metadata": {"name": _of(within or None), "labels": {"trainer.kubeflow.org/framework": "torch"}},
    }


def _of(within: str | None) -> str:
    """Return the runtime's name, e.g. `flatout-torch` or `flatout-torch-rack`."""
    return RUNTIME if not within else f"{RUNTIME}-{re.sub(r'[^a-z0-9]+', '-', within.split('/')[-1].lower())}"


def _annotations(within: str | None, teams: Teams) -> dict[str, Value]:
    if within is not None:
        return {"kueue.x-k8s.io/podset-required-topology": within}
    if teams.cluster.topology:
        return {"kueue.x-k8s.io/podset-preferred-topology": teams.cluster.topology[-1]}
    return {}


def _job_metadata(job: JobTable, teams: Teams) -> dict[str, Value]:
    team = next(team for team in teams.teams if team.name == job.team)
    labels: dict[str, Value] = {"kueue.x-k8s.io/queue-name": team.name}
    if job.priority is not None:
        labels["kueue.x-k8s.io/priority-class"] = job.priority
    return {"name": job.name, "namespace": _namespace(team), "labels": labels}


def _resources(job: JobTable, teams: Teams) -> dict[str, Value]:
    """Return resources that fit all flavors with enough GPUs per node: the least of their CPU and memory shares."""
    able = [flavor for flavor in teams.flavors if flavor.gpus_per_node >= job.gpus_per_node]
    cpus = min(flavor.cpus_per_node * job.gpus_per_node // flavor.gpus_per_node for flavor in able)
    memory = min(flavor.memory_gib_per_node * job.gpus_per_node // flavor.gpus_per_node for flavor in able)
    requests: dict[str, Value] = {"cpu": str(max(cpus, 1)), "memory": f"{max(memory, 1)}Gi", GPU: job.gpus_per_node}
    return {"requests": requests, "limits": {GPU: job.gpus_per_node}}


def _object(version: str, kind: str, name: str, spec: Mapping[str, Value]) -> dict[str, Value]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _namespace(team: TeamTable) -> str:
    return team.namespace or team.name


def _documents(objects: Iterator[Mapping[str, Value]] | Sequence[Mapping[str, Value]]) -> str:
    return "---\n".join(yaml_text(each) for each in objects)
