"""Write the jobs of teams: a JobSet, an MPIJob for mpirun, or a TrainJob with the runtime that it refers to.

In: `Teams`. Out: one file per job, and `runtime.yaml`. All are suspended until Kueue admits them. A job asks for the
share of a node's CPUs and memory that its share of the GPUs is, and for one host if it has one node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from flatout.change.launchers import first_launcher
from flatout.emit.job_set import pod_objects
from flatout.emit.pod_job import IMAGE, PodJob, escaped
from flatout.emit.pod_launch import PodGroup, PodLaunch, pod_launch
from flatout.emit.pod_spec import container_needs, pod_resources, pod_template
from flatout.emit.rendezvous import with_rendezvous
from flatout.emit.yaml_text import Value, yaml_text
from flatout.records.pods import GIB, HOST_LABEL, NetworkLevel, PodNeeds
from flatout.records.tuning import Emitted
from flatout.schedule.live.teams import JobTable, Teams, flavors_for, namespace_of
from flatout.submit.pod_needs import gpu_memory_mib

TRAINER = "trainer.kubeflow.org/v1alpha1"
RUNTIME = "flatout-torch"
_PRODUCT = "nvidia.com/gpu.product"
_NODE = "node"  # the names that Trainer gives to its job and its container


def job_manifests(teams: Teams) -> tuple[Emitted, ...]:
    """Return `runtime.yaml` if there is a TrainJob, and one file per job."""
    emitted: list[Emitted] = []
    runtimes = _Runtimes(teams)
    for job in teams.jobs:
        notes = [f"set `image` of {job.name}: {IMAGE} is a placeholder"] if job.image == IMAGE else []
        if job.kind == "trainjob":
            launch = _trainer_launch(job)
            manifest = _train_job(job, teams, launch, runtime=runtimes.name_for(job))
            kind, text = "trainjob", yaml_text(manifest)
            notes += launch.notes
        else:
            objects = pod_objects(_pod_job(job, teams))
            kind, text = objects.kind.lower(), objects.text
            notes += objects.notes
        emitted.append(Emitted(path=f"{kind}-{job.name}.yaml", text=text, notes=tuple(notes)))
    if runtimes.objects:
        text = "---\n".join(yaml_text(runtime) for runtime in runtimes.objects)
        emitted.insert(0, Emitted(path="runtime.yaml", text=text))
    return tuple(emitted)


def topology_warning(job: JobTable) -> str:
    """Return the warning for a job on one node of a cluster without a topology."""
    return (
        f"job {job.name} needs one host, but [cluster] has no topology: Kueue may admit it while its GPUs are free on"
        " several hosts only, and its pod then waits"
    )


def _pod_job(job: JobTable, teams: Teams) -> PodJob:
    return PodJob(
        name=job.name,
        namespace=namespace_of(job.team, teams),
        image=job.image,
        words=escaped(job.command),
        num_nodes=job.nodes,
        needs=_needs(job, teams),
        labels=_labels(job),
        is_suspended=True,
        max_job_restarts=job.restarts,
    )


def _needs(job: JobTable, teams: Teams) -> PodNeeds:
    """Return needs that fit all flavors which can hold the job: the least of their CPU and memory shares."""
    able = flavors_for(job, teams)
    cpus = min(flavor.cpus_per_node * job.gpus_per_node // flavor.gpus_per_node for flavor in able)
    memory = min(flavor.memory_gib_per_node * job.gpus_per_node // flavor.gpus_per_node for flavor in able)
    products = [flavor.node_labels[_PRODUCT] for flavor in able if _PRODUCT in flavor.node_labels]
    is_limited = len(able) < len(teams.flavors) and len(products) == len(able)
    return PodNeeds(
        num_gpus=job.gpus_per_node,
        cpu_m=max(cpus, 1) * 1000,
        memory_bytes=(job.memory_gib or max(memory, 1)) * GIB,
        shm_bytes=job.shm_gib * GIB if job.shm_gib is not None else None,
        network=job.network,
        gpu_products=tuple(dict.fromkeys(products)) if is_limited else (),
        gpu_memory_mib=gpu_memory_mib(job.gpu_memory_gb),
        topology=_topology(job, teams),
    )


def _topology(job: JobTable, teams: Teams) -> NetworkLevel | None:
    if job.within is not None:
        return NetworkLevel(label=job.within)
    if not teams.cluster.topology:
        return None
    if job.nodes == 1:
        return NetworkLevel(label=HOST_LABEL)
    return NetworkLevel(label=teams.cluster.topology[-1], is_required=False)


def _labels(job: JobTable) -> dict[str, str]:
    labels = {"kueue.x-k8s.io/queue-name": job.team}
    if job.priority is not None:
        labels["kueue.x-k8s.io/priority-class"] = job.priority
    return labels


def _trainer_launch(job: JobTable) -> PodLaunch:
    """Return the launch of the command, whose agents find each other by the PET_ variables that Trainer sets."""
    words = escaped(job.command)
    if first_launcher(words) == "torchrun":
        return PodLaunch(words=with_rendezvous(words, ()))
    pods = PodGroup(
        num_pods=job.nodes,
        num_gpus=job.gpus_per_node,
        host_name=lambda index: f"{job.name}-{_NODE}-0-{index}.{job.name}",
    )
    return pod_launch(words, pods)


def _train_job(job: JobTable, teams: Teams, launch: PodLaunch, *, runtime: str) -> Mapping[str, Value]:
    trainer: dict[str, Value] = {
        "image": job.image,
        "command": list(launch.words),
        "numNodes": job.nodes,
        "numProcPerNode": job.gpus_per_node,
        "resourcesPerNode": pod_resources(_needs(job, teams)),
    }
    if launch.variables:
        trainer["env"] = list(launch.variables)
    spec: dict[str, Value] = {
        "suspend": True,
        "runtimeRef": {"apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime", "name": runtime},
        "trainer": trainer,
    }
    metadata: dict[str, Value] = {
        "name": job.name,
        "namespace": namespace_of(job.team, teams),
        "labels": _labels(job),
    }
    return {"apiVersion": TRAINER, "kind": "TrainJob", "metadata": metadata, "spec": spec}


class _Runtimes:
    """The runtimes of the TrainJobs: what a TrainJob has no field for, shared by jobs for which it is equal."""

    def __init__(self, teams: Teams) -> None:
        self._teams = teams
        self._names: dict[bytes, str] = {}
        self.objects: list[Mapping[str, Value]] = []

    def name_for(self, job: JobTable) -> str:
        """Return the name of the job's runtime, which is written if no earlier job has an equal one."""
        needs = _needs(job, self._teams)
        template = _runtime_pod(needs)
        key = msgspec.json.encode(template, order="deterministic")
        if key not in self._names:
            self._names[key] = self._new_name(needs)
            self.objects.append(_runtime(self._names[key], template))
        return self._names[key]

    def _new_name(self, needs: PodNeeds) -> str:
        """Return a name that says the required topology level, e.g. `flatout-torch-rack`."""
        name = RUNTIME
        if needs.topology is not None and needs.topology.is_required:
            level = needs.topology.label.rpartition("/")[2].lower()
            name += "-" + re.sub(r"[^a-z0-9]+", "-", level).strip("-")
        number = sum(other == name or other.startswith(f"{name}.") for other in self._names.values())
        return f"{name}.{number + 1}" if number else name


def _runtime_pod(needs: PodNeeds) -> dict[str, Value]:
    """Return the pod template of a runtime; image, command and resources come from the TrainJob."""
    mounts = {name: value for name, value in container_needs(needs).items() if name != "resources"}
    template = pod_template({"name": _NODE, "image": IMAGE, **mounts}, needs)
    spec = template["spec"]
    assert isinstance(spec, dict)
    return {**template, "spec": {name: value for name, value in spec.items() if name != "restartPolicy"}}


def _runtime(name: str, template: Mapping[str, Value]) -> Mapping[str, Value]:
    pod_job: Value = {
        "name": _NODE,
        "template": {
            "metadata": {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}},
            "spec": {"template": template},
        },
    }
    return {
        "apiVersion": TRAINER,
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": name, "labels": {"trainer.kubeflow.org/framework": "torch"}},
        "spec": {"mlPolicy": {"numNodes": 1, "torch": {}}, "template": {"spec": {"replicatedJobs": [pod_job]}}},
    }
