"""A request as a JobSet for Kubernetes, written and not applied: the image is for its user to choose."""

from __future__ import annotations

import ipaddress
import shlex

import msgspec

from flatout.emit import kubernetes
from flatout.emit.command import CONFIG
from flatout.emit.rendezvous import own_meeting
from flatout.errors import UsageError
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
        keeps_meeting=_keeps_meeting(request),
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


def _keeps_meeting(request: JobRequest) -> bool:
    """Whether the user's own meeting place stays. Raises UsageError where no pod would find another one there.

    What agents host themselves is found by a name that leads to a pod, and that is known before there is one: the
    JobSet's own for its first pod, or that of a service (`NAME.NAMESPACE.svc`). A pod's address is not known before.
    """
    own = own_meeting(request.tuning)
    if own is None:
        return False
    pod = kubernetes.first_pod(request.name)
    is_in_cluster = f"{own.host}.".startswith(f"{pod}.") or ".svc." in f"{own.host}."
    if (own.is_store and not _is_of_the_pod(own.host)) or is_in_cluster:
        return True
    what = "each pod itself" if _is_of_the_pod(own.host) else "no name of a pod or a service in the cluster"
    raise UsageError(
        f"torchrun's agents are to meet where `{own.word}` says, which is {what}",
        hint="leave it out: they meet in the job's first pod; or name a service of your own that leads to one: "
        "NAME.NAMESPACE.svc",
    )


def _is_of_the_pod(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified


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
    notes = [f"a JobSet has no setting for {name}" for name, value in without.items() if value is not None]
    own = own_meeting(request.tuning)
    if own is not None and not own.is_store and not own.host.startswith(kubernetes.first_pod(request.name)):
        notes.append(f"torchrun's agents meet where `{own.word}` says: the service must lead to the first pod")
    return notes
