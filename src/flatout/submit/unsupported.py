"""Notes for the user about options of a request for which a scheduler has no setting."""

from __future__ import annotations

from collections.abc import Collection

from flatout.submit.job import JobRequest
from flatout.submit.options import PodOptions

POD_OPTIONS = ("--kube-nodes", "--cpus", "--memory", "--shm", "--network", "--gpu-memory", "--topology")


def unsupported_notes(request: JobRequest, whose: str, *, supported: Collection[str] = ()) -> list[str]:
    """Return a note for each option that is set but not `supported`. `whose` is text such as `Ray's jobs have`."""
    options = {
        "--time": request.time_s,
        "--deadline": request.deadline_s,
        "--partition": request.partitions or None,
        "--account": request.account,
        "--qos": request.qos,
        "--resume": request.can_resume or None,
        "--sbatch-options": request.options or None,
        "--data-set": request.data_set,
        **_pod_options(request.pods),
    }
    return [
        f"{whose} no setting for {name}"
        for name, value in options.items()
        if value is not None and name not in supported
    ]


def pod_option_notes(request: JobRequest, whose: str, *, supported: Collection[str] = ()) -> list[str]:
    """Return a note for each option of pods that is set but not `supported`."""
    options = _pod_options(request.pods)
    return [
        f"{whose} no setting for {name}"
        for name, value in options.items()
        if value is not None and name not in supported
    ]


def _pod_options(pods: PodOptions) -> dict[str, object]:
    values = (pods.nodes, pods.cpus, pods.memory, pods.shm, pods.network or None, pods.gpu_memory_gb, pods.topology)
    return dict(zip(POD_OPTIONS, values, strict=True))
