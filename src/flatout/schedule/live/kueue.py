"""Turn teams and their quotas into Kueue's queues and example jobs (JobSet, TrainJob, MPIJob) as YAML.

In: `Teams`. Out: manifests, none of them applied. APIs: kueue.x-k8s.io/v1beta2 or v1beta1, and those of the jobs. A
quota is a sum and ignores the shape of nodes; with a topology, Kueue places pods by it, and a job that fits nowhere
waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from flatout.emit.yaml_text import Value, yaml_text
from flatout.records.pods import GPU_RESOURCES, HOST_LABEL
from flatout.records.tuning import Emitted
from flatout.schedule.live.kueue_jobs import job_manifests, topology_warning
from flatout.schedule.live.teams import FlavorTable, Teams, namespace_of

GPU = GPU_RESOURCES[0]


def manifests(teams: Teams) -> tuple[Emitted, ...]:
    """Return `kueue.yaml`, `runtime.yaml` if there is a TrainJob, and one file per job."""
    notes = tuple(topology_warning(job) for job in teams.jobs if job.nodes == 1 and not teams.cluster.topology)
    queues = Emitted(path="kueue.yaml", text=_documents(_queues(teams)), notes=notes)
    return (queues, *job_manifests(teams))


def _queues(teams: Teams) -> Iterator[Mapping[str, Value]]:
    cluster = teams.cluster
    stop = "MayStopSearch" if cluster.kueue_api == "v1beta2" else "Borrow"  # one thing, by its name in each version
    version = f"kueue.x-k8s.io/{cluster.kueue_api}"
    if cluster.topology:
        levels = [{"nodeLabel": label} for label in (*cluster.topology, HOST_LABEL)]
        yield _object(version, "Topology", cluster.name, {"levels": levels})
    for flavor in teams.flavors:
        spec: dict[str, Value] = {"nodeLabels": flavor.node_labels} if flavor.node_labels else {}
        # Many clouds taint nodes with GPUs; with a topology, Kueue itself must tolerate the taint.
        spec["tolerations"] = [{"key": GPU, "operator": "Exists", "effect": "NoSchedule"}]
        if cluster.topology:
            spec["topologyName"] = cluster.name
        yield _object(version, "ResourceFlavor", flavor.name, spec)
    left = {
        flavor.name: flavor.nodes * flavor.gpus_per_node - sum(team.gpus.get(flavor.name, 0) for team in teams.teams)
        for flavor in teams.flavors
    }
    yield _object(version, "Cohort", cluster.name, {"resourceGroups": _groups(teams.flavors, left)})
    for team in teams.teams:
        yield _object(
            version,
            "ClusterQueue",
            team.name,
            {
                "cohortName" if cluster.kueue_api == "v1beta2" else "cohort": cluster.name,
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace_of(team.name, teams)}},
                "queueingStrategy": "BestEffortFIFO",
                "fairSharing": {"weight": f"{team.weight:g}"},
                # Lent GPUs are reclaimed by their team; within a team, priority decides.
                "preemption": {"reclaimWithinCohort": "Any", "withinClusterQueue": "LowerPriority"},
                "flavorFungibility": {"whenCanBorrow": stop, "whenCanPreempt": "TryNextFlavor"},
                "resourceGroups": _groups(teams.flavors, team.gpus, team.borrow, team.lend),
            },
        )
        yield {
            **_object(version, "LocalQueue", team.name, {"clusterQueue": team.name}),
            "metadata": {"name": team.name, "namespace": namespace_of(team.name, teams)},
        }
    for name, value in teams.priorities.items():
        yield {
            "apiVersion": version,
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
    networks = sorted({name for flavor in flavors for name in flavor.network_per_node})
    listed: list[Value] = []
    for flavor in flavors:
        resources: list[Value] = []
        for name, per_node, unit in (
            ("cpu", flavor.cpus_per_node, ""),
            ("memory", flavor.memory_gib_per_node, "Gi"),
            (GPU, flavor.gpus_per_node, ""),
            *((name, flavor.network_per_node.get(name, 0), "") for name in networks),
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
    return [{"coveredResources": ["cpu", "memory", GPU, *networks], "flavors": listed}]


def _object(version: str, kind: str, name: str, spec: Mapping[str, Value]) -> dict[str, Value]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def _documents(objects: Iterator[Mapping[str, Value]] | Sequence[Mapping[str, Value]]) -> str:
    return "---\n".join(yaml_text(each) for each in objects)
