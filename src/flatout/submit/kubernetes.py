"""Write a request as a JobSet or MPIJob for Kubernetes, without applying it: the user must choose the image."""

from __future__ import annotations

import ipaddress
import shlex

import msgspec

from flatout.emit import kubernetes
from flatout.emit.command import CONFIG
from flatout.emit.masked import masked_note, masked_tuning
from flatout.emit.pod_job import IMAGE, name_problem
from flatout.emit.rendezvous import num_nodes, own_rendezvous
from flatout.errors import UsageError
from flatout.read.kubernetes_nodes import read_kubernetes_nodes
from flatout.records.pods import PodNeeds
from flatout.records.staging import node_label
from flatout.records.tuning import Tuning
from flatout.submit.job import JobRequest, Prepared
from flatout.submit.pod_needs import pod_needs
from flatout.submit.unsupported import POD_OPTIONS, unsupported_notes

_QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


def prepare(request: JobRequest) -> Prepared:
    """Prepare the manifest. Raises UsageError for what no node could serve, and a rendezvous that no pod could find."""
    # The tuning's path on this machine is meaningless in the image.
    # The manifest is a file for the user, so its secrets are masked: Kubernetes has a separate place for them.
    tuning = msgspec.structs.replace(masked_tuning(request.tuning), config=CONFIG, keep=_keep_in_a_pod(request))
    needs, notes_on_needs = _needs(request, tuning)
    if request.data_set is not None:
        needs = msgspec.structs.replace(needs, preferred_labels=(node_label(request.data_set),))
    manifest = kubernetes.emit(
        tuning,
        name=request.name,
        image=request.image or IMAGE,
        needs=needs,
        limit_s=round(request.time_s) if request.time_s is not None else None,
        labels={_QUEUE_LABEL: request.queue} if request.queue is not None else None,
        keeps_rendezvous=_keeps_rendezvous(request),
    )
    file = request.folder / manifest.path
    apply = shlex.join(["kubectl", "apply", "-f", str(file)])
    return Prepared(
        scheduler="kubernetes",
        shown=apply,
        files={file: manifest.text},
        output=None,
        exit_code_file=None,
        notes=(*manifest.notes, *notes_on_needs, *masked_note(request.tuning), *_notes(request)),
        submit=lambda: None,
        next_command=lambda _: apply,
    )


def _needs(request: JobRequest, tuning: Tuning) -> tuple[PodNeeds, list[str]]:
    """Return what each pod needs, and notes. Raises UsageError if no node could serve it, or no pod be named so."""
    num_pods = num_nodes(tuning)
    if problem := name_problem(request.name, num_pods):
        raise UsageError(problem, hint="pass a shorter --name")
    nodes = request.pods.nodes
    num_gpus = request.gpus_per_node
    return pod_needs(
        request.pods,
        read_kubernetes_nodes(nodes) if nodes is not None else None,
        num_nodes=num_pods,
        num_gpus=num_gpus if num_gpus is not None else kubernetes.tuned_gpus(tuning),
        is_queued=request.queue is not None,
    )


def _keeps_rendezvous(request: JobRequest) -> bool:
    """Whether the user's own rendezvous is kept. Raises UsageError if pods could not find each other there.

    Agents can host a rendezvous only under a name that leads to a pod and is known before the pod exists: the
    JobSet's name of its first pod, or that of a service (`NAME.NAMESPACE.svc`). A pod's address is unknown then.
    """
    own = own_rendezvous(request.tuning)
    if own is None:
        return False
    is_local = _is_local(own.host)
    host = f"{own.host}."
    is_in_cluster = host.startswith(f"{kubernetes.first_pod(request.name)}.") or ".svc." in host
    if is_in_cluster or (own.is_store and not is_local):
        return True
    what = "each pod itself" if is_local else "not the name of a pod or a service in the cluster"
    raise UsageError(
        f"torchrun's rendezvous is `{own.word}`, which is {what}",
        hint="omit it, and the agents meet in the job's first pod; or name a service that leads to one: "
        "NAME.NAMESPACE.svc",
    )


def _is_local(host: str) -> bool:
    """Whether the host is the pod itself."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified


def _keep_in_a_pod(request: JobRequest) -> tuple[str, ...]:
    """Return the options of `flatout run` for one pod: each pod runs its own, with a ledger of the pod's GPUs."""
    options = list(request.tuning.keep)
    if "--gpus" in options:
        options[options.index("--gpus") + 1] = str(request.gpus_per_node)
    return tuple(options)


def _notes(request: JobRequest) -> list[str]:
    notes = unsupported_notes(request, "a JobSet has", supported=("--time", "--data-set", *POD_OPTIONS))
    own = own_rendezvous(request.tuning)
    first_pod = kubernetes.first_pod(request.name)
    if own is not None and not own.is_store and own.host.startswith(first_pod) and "endpoint" in own.word.lower():
        notes.append(
            f"torchrun's rendezvous is `{own.word}`: the first pod hosts it only if it can resolve its own name when it"
            " starts; omit it, and the pods meet there by their index"
        )
    if own is not None and not own.is_store and not own.host.startswith(first_pod):
        notes.append(
            f"torchrun's rendezvous is `{own.word}`: the service must lead to the first pod, and be headless"
            " (clusterIP: None) for the agent there to find out that it hosts the rendezvous"
        )
    return notes
