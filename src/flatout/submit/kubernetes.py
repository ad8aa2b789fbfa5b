"""A request as a JobSet for Kubernetes, written and not applied: the image is for its user to choose."""

from __future__ import annotations

import shlex

import msgspec

from flatout.emit import kubernetes
from flatout.emit.command import CONFIG
from flatout.submit.job import JobRequest, Prepared

_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


def prepare(request: JobRequest) -> Prepared:
    # The path of the tuning on this machine means nothing in the image.
    made = kubernetes.emit(
        msgspec.structs.replace(request.tuning, config=CONFIG, keep=_of_a_pod(request)),
        name=request.name,
        image=request.image or kubernetes.IMAGE,
        gpus=request.gpus_per_node,
        limit_s=round(request.time_s) if request.time_s is not None else None,
        labels={_QUEUE_LABEL: request.queue} if request.queue is not None else None,
    )
    file = request.folder / made.path
    apply = shlex.join(["kubectl", "apply", "-f", str(file)])
    return Prepared(
        scheduler="kubernetes",
        shown=apply,
        files={file: made.text},
        output=None,
        exit_code_file=None,
        notes=(*made.notes, *_notes(request)),
        submit=lambda: None,
        next_command=lambda _: apply,
    )


def _of_a_pod(request: JobRequest) -> tuple[str, ...]:
    """Each pod has a `flatout run` of its own, whose ledger is of this pod's GPUs."""
    keep = list(request.tuning.keep)
    if "--gpus" in keep:
        keep[keep.index("--gpus") + 1] = str(request.gpus_per_node)
    return tuple(keep)


def _notes(request: JobRequest) -> list[str]:
    without = {
        "--deadline": request.deadline_s,
        "--partition": request.partitions or None,
        "--account": request.account,
        "--qos": request.qos,
        "--resume": request.can_resume or None,
        "--sbatch-options": request.options or None,
    }
    return [f"a JobSet has no setting for {name}" for name, value in without.items() if value is not None]
