"""Write a job that mpirun starts on several nodes as an MPIJob (kubeflow.org/v2beta1).

In: a `PodJob`. Out: the object, and notes. mpirun starts its ranks by ssh, for which Kubeflow's MPI operator gives the
pods keys and a host file: a launcher runs mpirun, and the workers, one per node, only wait for its ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flatout.change.launchers import first_launcher, launch_word, with_launch_words
from flatout.emit.pod_job import CONTAINER, PodJob, PodObjects, documents, metadata_of
from flatout.emit.pod_launch import named_interfaces
from flatout.emit.pod_spec import container_needs, pod_template
from flatout.emit.rendezvous import PORT
from flatout.emit.yaml_text import Value

MPI_JOB = "kubeflow.org/v2beta1"
_OTHER_HOSTS = ("-H", "-host", "--host", "-hostfile", "--hostfile", "-machinefile", "--machinefile")
_COUNTS = ("-np", "-n", "--np", "--n", "-c")
_SSHD = ("/usr/sbin/sshd", "-De")
# Containers usually run as root, which Open MPI refuses without these.
_AS_ROOT: tuple[Value, ...] = (
    {"name": "OMPI_ALLOW_RUN_AS_ROOT", "value": "1"},
    {"name": "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "value": "1"},
)
_MPI_OF_OTHERS = ("-genv", "-ppn", "-perhost", "-f", "-hosts")
_MPI_NOTE = (
    "mpirun needs ssh between pods, so this is an MPIJob: the cluster must have Kubeflow's MPI operator, and the image"
    " an ssh server"
)


def mpi_job(job: PodJob) -> PodObjects:
    """Return the MPIJob, and notes on what the user must provide."""
    spec: dict[str, Value] = {
        "slotsPerWorker": _num_slots(job),
        "mpiImplementation": "OpenMPI",
        "sshAuthMountPath": "/root/.ssh",
        "runPolicy": _run_policy(job),
        "mpiReplicaSpecs": {"Launcher": _launcher(job), "Worker": _workers(job)},
    }
    manifest: dict[str, Value] = {"apiVersion": MPI_JOB, "kind": "MPIJob", "metadata": metadata_of(job), "spec": spec}
    notes = [_MPI_NOTE]
    if any(word in _MPI_OF_OTHERS for word in job.words):
        notes.append("the MPIJob is for Open MPI: for another MPI, change mpiImplementation and the -x arguments")
    return PodObjects(kind="MPIJob", text=documents([manifest]), notes=(*notes, *named_interfaces(job.words)))


def _num_slots(job: PodJob) -> int:
    return job.needs.num_gpus or 1


def _run_policy(job: PodJob) -> dict[str, Value]:
    policy: dict[str, Value] = {"cleanPodPolicy": "Running", "backoffLimit": job.max_job_restarts or 0}
    if job.limit_s is not None:
        policy["activeDeadlineSeconds"] = job.limit_s
    if job.is_suspended:
        policy["suspend"] = True
    return policy


def _launcher(job: PodJob) -> dict[str, Value]:
    """Return the pod that runs mpirun; it holds no GPU."""
    container: dict[str, Value] = {
        "name": CONTAINER,
        "image": job.image,
        "command": list(_command(job)),
        "env": [*job.variables, *_AS_ROOT],
    }
    return {"replicas": 1, "restartPolicy": "Never", "template": {"spec": {"containers": [container]}}}


def _workers(job: PodJob) -> dict[str, Value]:
    container: dict[str, Value] = {"name": CONTAINER, "image": job.image, "command": list(_SSHD)}
    template = pod_template({**container, **container_needs(job.needs)}, job.needs)
    return {
        "replicas": job.num_nodes,
        "restartPolicy": "Never",
        "template": _without_restart_policy(template),
    }


def _command(job: PodJob) -> tuple[str, ...]:
    """Return mpirun with a rank per GPU, without a list of hosts, and with the variables that its ranks need."""
    added: list[str] = []
    for name, value in (("MASTER_ADDR", f"{job.name}-worker-0.{job.name}"), ("MASTER_PORT", str(PORT))):
        if not any(word == name or word.startswith(f"{name}=") for word in job.words):
            added += ["-x", f"{name}={value}"]  # for scripts that call torch.distributed
    if all(launch_word(job.words, "mpirun", flag) is None for flag in _COUNTS):
        added = ["-np", str(job.num_nodes * _num_slots(job)), *added]
    added += [word for name in _names(job.variables) for word in ("-x", name)]  # to the ranks on other pods
    words = with_launch_words(job.words, "mpirun", (), dropped=_OTHER_HOSTS)
    return _after_launcher(words, added)


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
