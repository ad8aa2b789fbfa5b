"""What the pods of a job need from their nodes, and what the nodes of a Kubernetes cluster have.

CPUs are in thousandths of a core and memory is in bytes, as Kubernetes counts them.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
HOST_LABEL = "kubernetes.io/hostname"
GIB = 1 << 30
# Linux gives /dev/shm half of the memory of a machine; a pod's is charged to the memory limit of its container.
_SHM_SHARE = 2
# The shared memory of a pod without a memory limit, per GPU, for the workers of its data loader.
_SHM_BYTES_PER_GPU = 8 * GIB


class Taint(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    value: str = ""
    effect: str = "NoSchedule"


class NodeGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Equal nodes of a cluster, with what pods can be allocated: the capacity less what the system keeps."""

    count: int
    cpu_m: int
    memory_bytes: int
    resources: Mapping[str, int] = {}  # GPUs, network devices and other extended resources
    labels: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()
    # What the pods of DaemonSets request on each node; None: unknown
    daemonsets_cpu_m: int | None = None
    daemonsets_memory_bytes: int | None = None

    @property
    def gpu_resource(self) -> str:
        """Return the name of the node's GPUs as a resource."""
        return next((name for name in GPU_RESOURCES if self.resources.get(name)), GPU_RESOURCES[0])

    @property
    def num_gpus(self) -> int:
        return self.resources.get(self.gpu_resource, 0)


class NetworkLevel(msgspec.Struct, frozen=True, kw_only=True):
    """The level of the network, named by a node label, that is to hold all pods of a job."""

    label: str
    is_required: bool = True


class PodNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """What each pod of a job needs from its node. None: not requested."""

    num_gpus: int = 0
    preferred_labels: tuple[str, ...] = ()  # of nodes that are preferred, whatever the values
    gpu_resource: str = GPU_RESOURCES[0]
    cpu_m: int | None = None
    memory_bytes: int | None = None
    shm_bytes: int | None = None  # None: a share of the memory
    network: Mapping[str, int] = {}  # e.g. {"rdma/hca": 8}
    gpu_products: tuple[str, ...] = ()  # accepted values of the nodes' product label
    gpu_memory_mib: int | None = None  # least memory of a GPU
    tolerated: tuple[Taint, ...] = ()
    topology: NetworkLevel | None = None

    @property
    def shm_size_bytes(self) -> int:
        """Return the size limit of /dev/shm."""
        if self.shm_bytes is not None:
            return self.shm_bytes
        if self.memory_bytes is not None:
            return self.memory_bytes // _SHM_SHARE
        return _SHM_BYTES_PER_GPU * max(self.num_gpus, 1)
