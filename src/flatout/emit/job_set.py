"""Write one job as a JobSet (jobset.x-k8s.io/v1alpha2), or as an MPIJob if mpirun starts it on several nodes.

In: a `PodJob`. Out: the objects to apply, in their order. A JobSet has one pod per node, each with its name in the
network of the set; the files of its launcher are in a ConfigMap, which the pods mount.
"""

from __future__ import annotations

from flatout.change.launchers import first_launcher
from flatout.emit.mpi_job import mpi_job
from flatout.emit.pod_job import CONTAINER, PODS, PodJob, PodObjects, documents, host_name, metadata_of
from flatout.emit.pod_launch import HOST_FILE_FOLDER, PodGroup, PodLaunch, named_interfaces, pod_launch
from flatout.emit.pod_spec import container_needs, pod_template
from flatout.emit.yaml_text import Value

JOBSET = "jobset.x-k8s.io/v1alpha2"
_HOST_FILE_VOLUME = "hosts"


def pod_objects(job: PodJob) -> PodObjects:
    """Return the objects of the job, and notes on what the user must provide."""
    if job.num_nodes > 1 and first_launcher(job.words) == "mpirun":
        return mpi_job(job)
    pods = PodGroup(
        num_pods=job.num_nodes,
        num_gpus=job.needs.num_gpus,
        host_name=lambda index: host_name(job.name, index),
    )
    launch = PodLaunch(words=job.words) if job.keeps_rendezvous else pod_launch(job.words, pods)
    objects = [*_config_maps(job, launch), _job_set(job, launch)]
    return PodObjects(kind="JobSet", text=documents(objects), notes=(*launch.notes, *named_interfaces(job.words)))


def _job_set(job: PodJob, launch: PodLaunch) -> dict[str, Value]:
    spec: dict[str, Value] = {"suspend": True} if job.is_suspended else {}  # Kueue starts it
    spec["network"] = {"enableDNSHostnames": True}
    if job.max_job_restarts is not None:
        spec["failurePolicy"] = {"maxRestarts": job.max_job_restarts}
    spec["replicatedJobs"] = [{"name": PODS, "replicas": 1, "template": {"spec": _indexed_job(job, launch)}}]
    return {"apiVersion": JOBSET, "kind": "JobSet", "metadata": metadata_of(job), "spec": spec}


def _indexed_job(job: PodJob, launch: PodLaunch) -> dict[str, Value]:
    spec: dict[str, Value] = {
        "parallelism": job.num_nodes,
        "completions": job.num_nodes,
        "completionMode": "Indexed",
        "backoffLimit": job.backoff_limit,
    }
    if job.pod_failure_policy is not None:
        spec["podFailurePolicy"] = job.pod_failure_policy
    if job.limit_s is not None:
        spec["activeDeadlineSeconds"] = job.limit_s
    container: dict[str, Value] = {"name": CONTAINER, "image": job.image, "command": list(launch.words)}
    if variables := [*job.variables, *launch.variables]:
        container["env"] = variables
    mounts: tuple[Value, ...] = ()
    volumes: tuple[Value, ...] = ()
    if launch.files:
        mounts = ({"name": _HOST_FILE_VOLUME, "mountPath": HOST_FILE_FOLDER},)
        volumes = ({"name": _HOST_FILE_VOLUME, "configMap": {"name": _config_map_name(job)}},)
    container |= container_needs(job.needs, mounts=mounts)
    spec["template"] = pod_template(container, job.needs, volumes=volumes)
    return spec


def _config_maps(job: PodJob, launch: PodLaunch) -> list[dict[str, Value]]:
    """Return the files that the launcher reads, as an object which the pods mount."""
    if not launch.files:
        return []
    metadata: dict[str, Value] = {"name": _config_map_name(job)}
    if job.namespace is not None:
        metadata["namespace"] = job.namespace
    return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(launch.files)}]


def _config_map_name(job: PodJob) -> str:
    return f"{job.name}-{_HOST_FILE_VOLUME}"
