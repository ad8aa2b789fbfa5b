"""Write what a pod needs from its node: resources, shared memory, the kind of GPU and the topology.

In: `PodNeeds`. Out: parts of a pod template. Kubernetes gives a container 64 MiB of /dev/shm, which the data loader's
workers and NCCL exceed, so every pod has a volume in memory there; what is in it counts against the memory limit.
"""

from __future__ import annotations

from collections.abc import Mapping

from flatout.emit.yaml_text import Value
from flatout.records.pods import PodNeeds, Taint
from flatout.records.quantity import cpu_text, memory_text

PRODUCT_LABEL = "nvidia.com/gpu.product"
GPU_MEMORY_LABEL = "nvidia.com/gpu.memory"  # in MiB
_SHM = "shm"
_REQUIRED, _PREFERRED = "kueue.x-k8s.io/podset-required-topology", "kueue.x-k8s.io/podset-preferred-topology"
_REQUIRED_AFFINITY = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED_AFFINITY = "preferredDuringSchedulingIgnoredDuringExecution"
_MOST_WEIGHT = 100  # that Kubernetes allows
_RDMA = ("rdma/", "vpc.amazonaws.com/efa")


def pod_template(
    container: Mapping[str, Value], needs: PodNeeds, *, volumes: tuple[Value, ...] = ()
) -> dict[str, Value]:
    """Return the pod template with this container, which already has its `container_needs`."""
    shm: Value = {"name": _SHM, "emptyDir": {"medium": "Memory", "sizeLimit": memory_text(needs.shm_size_bytes)}}
    spec: dict[str, Value] = {"restartPolicy": "Never"}
    spec |= _placement(needs)
    spec["containers"] = [container]
    spec["volumes"] = [shm, *volumes]
    annotations = topology_annotations(needs)
    metadata: dict[str, Value] = {"metadata": {"annotations": annotations}} if annotations else {}
    return {**metadata, "spec": spec}


def container_needs(needs: PodNeeds, *, mounts: tuple[Value, ...] = ()) -> dict[str, Value]:
    """Return the fields of a container that ask for resources, memory for RDMA and /dev/shm."""
    fields: dict[str, Value] = {}
    if resources := pod_resources(needs):
        fields["resources"] = resources
    if any(name.startswith(_RDMA) for name in needs.network):
        # RDMA registers memory, which must stay locked.
        fields["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    return {**fields, "volumeMounts": [{"name": _SHM, "mountPath": "/dev/shm"}, *mounts]}


def pod_resources(needs: PodNeeds) -> dict[str, Value]:
    """Return the requests and limits. CPUs have no limit: a limit would pause the job instead of sharing idle cores."""
    devices: dict[str, Value] = {needs.gpu_resource: needs.num_gpus} if needs.num_gpus else {}
    devices |= needs.network
    requests: dict[str, Value] = {}
    limits: dict[str, Value] = {}
    if needs.cpu_m is not None:
        requests["cpu"] = cpu_text(needs.cpu_m)
    if needs.memory_bytes is not None:
        requests["memory"] = limits["memory"] = memory_text(needs.memory_bytes)
    limits |= devices
    if requests:
        requests |= devices
    return {name: values for name, values in (("requests", requests), ("limits", limits)) if values}


def topology_annotations(needs: PodNeeds) -> dict[str, Value]:
    """Return the annotations by which Kueue places the pods."""
    if needs.topology is None:
        return {}
    return {_REQUIRED if needs.topology.is_required else _PREFERRED: needs.topology.label}


def _placement(needs: PodNeeds) -> dict[str, Value]:
    """Return the node labels that the pod asks for, and the taints that it tolerates."""
    placement: dict[str, Value] = {}
    expressions: list[Value] = []
    if len(needs.gpu_products) == 1:
        placement["nodeSelector"] = {PRODUCT_LABEL: needs.gpu_products[0]}
    elif needs.gpu_products:
        expressions.append({"key": PRODUCT_LABEL, "operator": "In", "values": list(needs.gpu_products)})
    if needs.gpu_memory_mib is not None:
        least = str(needs.gpu_memory_mib - 1)  # labels are compared by "greater than" only
        expressions.append({"key": GPU_MEMORY_LABEL, "operator": "Gt", "values": [least]})
    affinity: dict[str, Value] = {}
    if expressions:
        affinity[_REQUIRED_AFFINITY] = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    if needs.preferred_labels:
        affinity[_PREFERRED_AFFINITY] = [_preference(label) for label in needs.preferred_labels]
    if affinity:
        placement["affinity"] = {"nodeAffinity": affinity}
    if tolerations := [_toleration(taint) for taint in _tolerated(needs)]:
        placement["tolerations"] = tolerations
    return placement


def _preference(label: str) -> Value:
    """Return the preference for nodes that have a label; it never keeps a pod from another node."""
    return {"weight": _MOST_WEIGHT, "preference": {"matchExpressions": [{"key": label, "operator": "Exists"}]}}


def _tolerated(needs: PodNeeds) -> list[Taint]:
    """Return the taints to tolerate: many clouds taint nodes with GPUs by the name of the resource."""
    own = [Taint(key=needs.gpu_resource)] if needs.num_gpus else []
    return own + [taint for taint in needs.tolerated if taint.key != needs.gpu_resource]


def _toleration(taint: Taint) -> Value:
    value: dict[str, Value] = {"operator": "Equal", "value": taint.value} if taint.value else {"operator": "Exists"}
    return {"key": taint.key, **value, "effect": taint.effect}
