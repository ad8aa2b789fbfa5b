"""Write one job as a JobSet (jobset.x-k8s.io/v1alpha2), or as an MPIJob (kubeflow.org/v2beta1) if mpirun starts it.

In: a `PodJob`. Out: the objects to apply, in their order. A JobSet has one pod per node, each with its name in the
network of the set. mpirun starts its ranks by ssh, for which the MPI operator gives the pods keys and a host file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from flatout.change.launchers import first_launcher, launch_word, with_launch_words
from flatout.emit.pod_launch import HOST_FILE_FOLDER, PodGroup, PodLaunch, named_interfaces, pod_launch
from flatout.emit.pod_spec import container_needs, pod_template
from flatout.emit.rendezvous import PORT
from flatout.emit.yaml_text import Value, yaml_text
from flatout.records.pods import PodNeeds

JOBSET, MPI_JOB = "jobset.x-k8s.io/v1alpha2", "kubeflow.org/v2beta1"
PODS = "workers"
CONTAINER = "train"
IMAGE = "REPLACE-WITH-YOUR-IMAGE"
_HOST_FILE_VOLUME = "hosts"
_NAME_LIMIT = 63  # of a DNS label, which the name of a pod is
_RANDOM_SUFFIX = "-abcde"  # which Kubernetes appends to a pod's name
_OTHER_HOSTS = ("-H", "-host", "--host", "-hostfile", "--hostfile", "-machinefile", "--machinefile")
_SSHD = ("/usr/sbin/sshd", "-De")
_MPI_NOTE = (
    "mpirun needs ssh between pods, so this is an MPIJob: the cluster must have Kubeflow's MPI operator, and the image"
    " an ssh server"
)
_MPI_OF_OTHERS = ("-genv", "-ppn", "-perhost", "-f", "-hosts")


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


def pod_objects(job: PodJob) -> PodObjects:
    """Return the objects of the job, and notes on what the user must provide."""
    if job.num_nodes > 1 and first_launcher(job.words) == "mpirun":
        return _mpi_job(job)
    pods = PodGroup(
        num_pods=job.num_nodes,
        num_gpus=job.needs.num_gpus,
        host_name=lambda index: host_name(job.name, index),
    )
    launch = PodLaunch(words=job.words) if job.keeps_rendezvous else pod_launch(job.words, pods)
    objects = [*_config_maps(job, launch), _job_set(job, launch)]
    return PodObjects(kind="JobSet", text=_documents(objects), notes=(*launch.notes, *named_interfaces(job.words)))


def _job_set(job: PodJob, launch: PodLaunch) -> dict[str, Value]:
    spec: dict[str, Value] = {"suspend": True} if job.is_suspended else {}  # Kueue starts it
    spec["network"] = {"enableDNSHostnames": True}
    if job.max_job_restarts is not None:
        spec["failurePolicy"] = {"maxRestarts": job.max_job_restarts}
    spec["replicatedJobs"] = [{"name": PODS, "replicas": 1, "template": {"spec": _indexed_job(job, launch)}}]
    return {"apiVersion": JOBSET, "kind": "JobSet", "metadata": _metadata(job), "spec": spec}


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


def _mpi_job(job: PodJob) -> PodObjects:
    """Return an MPIJob, whose launcher runs mpirun. Its workers only wait for mpirun's ranks."""
    num_slots = job.needs.num_gpus or 1
    first_worker = f"{job.name}-worker-0.{job.name}"
    added: list[str] = []
    if all(launch_word(job.words, "mpirun", flag) is None for flag in ("-np", "-n", "--np", "--n", "-c")):
        added += ["-np", str(job.num_nodes * num_slots)]
    for name, value in (("MASTER_ADDR", first_worker), ("MASTER_PORT", str(PORT))):
        if not any(word == name or word.startswith(f"{name}=") for word in job.words):
            added += ["-x", f"{name}={value}"]  # for scripts that call torch.distributed
    added += [word for name in _names(job.variables) for word in ("-x", name)]  # to the ranks on other pods
    words = with_launch_words(job.words, "mpirun", (), dropped=_OTHER_HOSTS)
    words = _after_launcher(words, added)
    launcher: dict[str, Value] = {"name": CONTAINER, "image": job.image, "command": list(words)}
    # Containers usually run as root, which Open MPI refuses without these.
    as_root: list[Value] = [
        {"name": "OMPI_ALLOW_RUN_AS_ROOT", "value": "1"},
        {"name": "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "value": "1"},
    ]
    launcher["env"] = [*job.variables, *as_root]
    worker: dict[str, Value] = {"name": CONTAINER, "image": job.image, "command": list(_SSHD)}
    run_policy: dict[str, Value] = {"cleanPodPolicy": "Running", "backoffLimit": job.max_job_restarts or 0}
    if job.limit_s is not None:
        run_policy["activeDeadlineSeconds"] = job.limit_s
    if job.is_suspended:
        run_policy["suspend"] = True
    worker_template = pod_template({**worker, **container_needs(job.needs)}, job.needs)
    spec: dict[str, Value] = {
        "slotsPerWorker": num_slots,
        "mpiImplementation": "OpenMPI",
        "sshAuthMountPath": "/root/.ssh",
        "runPolicy": run_policy,
        "mpiReplicaSpecs": {
            "Launcher": {
                "replicas": 1,
                "restartPolicy": "Never",
                "template": {"spec": {"containers": [launcher]}},
            },
            "Worker": {
                "replicas": job.num_nodes,
                "restartPolicy": "Never",
                "template": _without_restart_policy(worker_template),
            },
        },
    }
    manifest: dict[str, Value] = {"apiVersion": MPI_JOB, "kind": "MPIJob", "metadata": _metadata(job), "spec": spec}
    notes = [_MPI_NOTE]
    if any(word in _MPI_OF_OTHERS for word in job.words):
        notes.append("the MPIJob is for Open MPI: for another MPI, change mpiImplementation and the -x arguments")
    return PodObjects(kind="MPIJob", text=_documents([manifest]), notes=(*notes, *named_interfaces(job.words)))


def _after_launcher(words: tuple[str, ...], added: Sequence[str]) -> tuple[str, ...]:
    """Return the command with arguments after mpirun; the user's own -x stay, as each names another variable."""
    position = next(index for index, word in enumerate(words) if first_launcher(words[: index + 1]) == "mpirun")
    return (*words[: position + 1], *added, *words[position + 1 :])


def _names(variables: Sequence[Value]) -> list[str]:
    return [str(variable["name"]) for variable in variables if isinstance(variable, Mapping)]


def _without_restart_policy(template: dict[str, Value]) -> dict[str, Value]:
    """Return the template without its restart policy, which the MPI operator takes from the replicas."""
    spec = template["spec"]
    assert isinstance(spec, dict)
    return {**template, "spec": {name: value for name, value in spec.items() if name != "restartPolicy"}}


def _metadata(job: PodJob) -> dict[str, Value]:
    metadata: dict[str, Value] = {"name": job.name}
    if job.namespace is not None:
        metadata["namespace"] = job.namespace
    if job.labels:
        metadata["labels"] = dict(job.labels)
    return metadata


def _documents(objects: Sequence[Mapping[str, Value]]) -> str:
    return "---\n".join(yaml_text(each) for each in objects)
