"""Work out what each pod of a job requests, from the options of a submission and the cluster's nodes.

In: `PodOptions` and, if given, groups of nodes. Out: `PodNeeds` and notes. With nodes, CPUs and memory are the job's
share of what a node can allocate, by its share of the node's GPUs, less what DaemonSets take. A request that no node
could ever serve is refused: its pods would wait for good.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from flatout.catalog.gpus import all_gpu_facts, gpu_facts
from flatout.emit.pod_spec import GPU_MEMORY_LABEL, PRODUCT_LABEL
from flatout.errors import UsageError
from flatout.records.pods import GIB, HOST_LABEL, NetworkLevel, NodeGroup, PodNeeds
from flatout.records.quantity import cpu_text, memory_text, parse_quantity
from flatout.submit.options import PodOptions

# Share of a node's CPUs and memory left to the pods of DaemonSets (network, device plugins, monitoring) where unknown.
DAEMONSETS_SHARE = 0.05
_LABEL = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_RESOURCE = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_NO_TOPOLOGY, _PREFERRED = "none", "preferred:"
_NETWORKS = ("rdma/", "vpc.amazonaws.com/efa", "nvidia.com/hostdev", "nvidia.com/mlnxnics")
_MIB = 1 << 20
_LEAST_MEMORY = 64 * _MIB


def pod_needs(
    options: PodOptions, groups: Sequence[NodeGroup] | None, *, num_nodes: int, num_gpus: int, is_queued: bool
) -> tuple[PodNeeds, list[str]]:
    """Return the needs of each pod, and notes. Raises UsageError for needs that no node can serve."""
    topology = _topology(options.topology, num_nodes)
    needs = PodNeeds(
        num_gpus=num_gpus,
        cpu_m=round(options.cpus * 1000) if options.cpus is not None else None,
        memory_bytes=_size("--memory", options.memory),
        shm_bytes=_size("--shm", options.shm),
        network=dict(_device(text) for text in options.network),
        gpu_memory_mib=gpu_memory_mib(options.gpu_memory_gb),
        topology=topology,
    )
    if groups is None:
        products = _products_by_name(options.gpu_type) if options.gpu_type is not None else ()
        needs = replace(needs, gpu_products=products, network=_at_least_one(needs.network))
    else:
        needs = _on(groups, needs, options.gpu_type, num_nodes)
    _check_memory(needs)
    return needs, _notes(needs, groups, num_nodes=num_nodes, is_queued=is_queued, topology=options.topology)


def _topology(text: str | None, num_nodes: int) -> NetworkLevel | None:
    """Return where Kueue must place the pods. One pod needs one host, or a quota could admit it to free GPUs of two."""
    if text == _NO_TOPOLOGY:
        return None
    if text is None:
        return NetworkLevel(label=HOST_LABEL) if num_nodes == 1 else None
    label = text.removeprefix(_PREFERRED)
    if _LABEL.fullmatch(label) is None:
        raise UsageError(
            f"`--topology` must be a node label of Kueue's Topology, `{_PREFERRED}LABEL` or `{_NO_TOPOLOGY}`,"
            f" but is `{text}`"
        )
    return NetworkLevel(label=label, is_required=label == text)


def _size(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        size = int(parse_quantity(text))
    except ValueError:
        raise UsageError(f"`{option}` must be a size such as 512Gi, but is `{text}`") from None
    if size < _LEAST_MEMORY:
        raise UsageError(f"`{option}` must be at least 64Mi, but is `{text}`", hint=f"{option} {text.rstrip('m')}Gi")
    return size


def gpu_memory_mib(size_gb: float | None) -> int | None:
    """Return the MiB of a size in GB, as vendors count: a GPU of "80 GB" has the label 81559, which is 85.5 GB."""
    return None if size_gb is None else max(round(size_gb * 1e9 / _MIB), 1)


def _device(text: str) -> tuple[str, int]:
    """Return a resource and its number per node; 0: the job's share of the node's."""
    name, separator, number = text.partition("=")
    is_number = number.isdecimal() and len(number) < 9 and int(number) > 0
    if _RESOURCE.fullmatch(name) is None or (separator and not is_number):
        raise UsageError(f"`--network` must be RESOURCE or RESOURCE=N, e.g. rdma/hca=8, but is `{text}`")
    return name, int(number or 0)


def _at_least_one(network: Mapping[str, int]) -> dict[str, int]:
    return {name: number or 1 for name, number in network.items()}


def _on(groups: Sequence[NodeGroup], needs: PodNeeds, gpu_type: str | None, num_nodes: int) -> PodNeeds:
    """Return the needs with the share of the nodes that fit the job."""
    fitting = _with_gpus(groups, needs)
    if gpu_type is not None:
        fitting = _of_type(fitting, gpu_type)
        needs = replace(needs, gpu_products=_products(fitting))
    fitting = _with_gpu_memory(fitting, needs)
    fitting = _with_network(fitting, needs)
    fitting = _with_room(fitting, needs)
    count = sum(group.count for group in fitting)
    if count < num_nodes:
        raise UsageError(
            f"the job needs {num_nodes} nodes, but the cluster has {count} that fit its requests",
            hint="if nodes are added on demand, describe them in a TOML with their `count`",
        )
    cpu_m = min(_shared_cpu_m(group, needs.num_gpus) for group in fitting)
    memory = min(_shared_memory(group, needs.num_gpus) for group in fitting)
    taints = {taint: None for group in fitting for taint in group.taints if taint.key == group.gpu_resource}
    return replace(
        needs,
        gpu_resource=fitting[0].gpu_resource,
        cpu_m=needs.cpu_m if needs.cpu_m is not None else cpu_m,
        memory_bytes=needs.memory_bytes if needs.memory_bytes is not None else memory,
        network={name: number or _shared_devices(fitting, name, needs) for name, number in needs.network.items()},
        tolerated=tuple(taints),
    )


def _with_gpus(groups: Sequence[NodeGroup], needs: PodNeeds) -> list[NodeGroup]:
    fitting = [group for group in groups if group.num_gpus >= needs.num_gpus]
    if not fitting:
        most = max(group.num_gpus for group in groups)
        raise UsageError(f"`--gpus` is {needs.num_gpus}, but no node can allocate more than {most} GPUs to pods")
    return [group for group in fitting if group.gpu_resource == fitting[0].gpu_resource]


def _of_type(groups: Sequence[NodeGroup], gpu_type: str) -> list[NodeGroup]:
    accepted = {gpu_type.casefold(), *(product.casefold() for product in _products_by_name(gpu_type))}
    fitting = [group for group in groups if group.labels.get(PRODUCT_LABEL, "").casefold() in accepted]
    if not fitting:
        there = sorted({group.labels[PRODUCT_LABEL] for group in groups if PRODUCT_LABEL in group.labels})
        raise UsageError(
            f"`--gpu-type` is `{gpu_type}`, but the nodes with enough GPUs have"
            f" {', '.join(there) or f'no label {PRODUCT_LABEL}'}"
        )
    return fitting


def _products(groups: Sequence[NodeGroup]) -> tuple[str, ...]:
    return tuple(sorted({group.labels[PRODUCT_LABEL] for group in groups}))


def _products_by_name(gpu_type: str) -> tuple[str, ...]:
    """Return the values of the product label that a type of GPU can have: driver names, with `-` for blanks."""
    short = gpu_type.casefold().replace("_", "-")
    names = [
        name
        for facts in all_gpu_facts()
        if facts.vendor == "NVIDIA" and (facts.name.casefold().replace(" ", "-") + "-").startswith(f"{short}-")
        for name in facts.reported_names
    ]
    facts = gpu_facts(gpu_type)
    if facts is not None:
        names += facts.reported_names
    if not names:
        return (_label_value(gpu_type),)
    labels = (label for name in names for label in (f"NVIDIA-{name}", name))
    return tuple(dict.fromkeys(label.replace(" ", "-") for label in labels))


def _label_value(gpu_type: str) -> str:
    """Return an unknown type as the label's value, if it can be one."""
    value = gpu_type.replace(" ", "-")
    is_product = value != value.casefold() and "/" not in value
    if not is_product or _LABEL.fullmatch(value) is None:
        raise UsageError(
            f"`--gpu-type` must be a GPU in the catalogue or a value of the node label {PRODUCT_LABEL},"
            f" but is `{gpu_type}`",
            hint=f"kubectl get nodes -L {PRODUCT_LABEL}",
        )
    return value


def _with_gpu_memory(groups: Sequence[NodeGroup], needs: PodNeeds) -> list[NodeGroup]:
    least_mib = needs.gpu_memory_mib
    if least_mib is None:
        return list(groups)
    sizes = [_gpu_memory_mib(group) for group in groups]
    fitting = [group for group, size in zip(groups, sizes, strict=True) if size is not None and size >= least_mib]
    if not fitting:
        known = [size for size in sizes if size is not None]
        there = f"at most {max(known) * _MIB / 1e9:.4g} GB" if known else f"no label {GPU_MEMORY_LABEL}"
        raise UsageError(f"`--gpu-memory` is {least_mib * _MIB / 1e9:.4g} GB, but the GPUs of the nodes have {there}")
    return fitting


def _gpu_memory_mib(group: NodeGroup) -> int | None:
    text = group.labels.get(GPU_MEMORY_LABEL, "")
    return int(text) if text.isdecimal() and len(text) < 10 else None


def _with_network(groups: Sequence[NodeGroup], needs: PodNeeds) -> list[NodeGroup]:
    fitting = list(groups)
    for name, number in needs.network.items():
        most = max(group.resources.get(name, 0) for group in fitting)
        fitting = [group for group in fitting if group.resources.get(name, 0) >= max(number, 1)]
        if not fitting:
            raise UsageError(f"`--network` is {name}={max(number, 1)}, but the nodes that fit can allocate {most}")
    return fitting


def _with_room(groups: Sequence[NodeGroup], needs: PodNeeds) -> list[NodeGroup]:
    """Return the nodes with room for the CPUs and the memory that were asked for."""
    most_cpu_m = max(_free_cpu_m(group) for group in groups)
    if needs.cpu_m is not None and needs.cpu_m > most_cpu_m:
        raise UsageError(
            f"`--cpus` is {cpu_text(needs.cpu_m)}, but a node can allocate at most {cpu_text(most_cpu_m)} to the job"
        )
    most_memory = max(_free_memory(group) for group in groups)
    if needs.memory_bytes is not None and needs.memory_bytes > most_memory:
        raise UsageError(
            f"`--memory` is {memory_text(needs.memory_bytes)}, but a node can allocate at most"
            f" {memory_text(most_memory)} to the job"
        )
    fitting = [
        group
        for group in groups
        if (needs.cpu_m or 0) <= _free_cpu_m(group) and (needs.memory_bytes or 0) <= _free_memory(group)
    ]
    if not fitting:
        raise UsageError("no node has room for both `--cpus` and `--memory`")
    return fitting


def _free_cpu_m(group: NodeGroup) -> int:
    """Return the node's CPUs less those of DaemonSets."""
    if group.daemonsets_cpu_m is not None:
        return max(group.cpu_m - group.daemonsets_cpu_m, 0)
    return int(group.cpu_m * (1 - DAEMONSETS_SHARE))


def _free_memory(group: NodeGroup) -> int:
    if group.daemonsets_memory_bytes is not None:
        return max(group.memory_bytes - group.daemonsets_memory_bytes, 0)
    return int(group.memory_bytes * (1 - DAEMONSETS_SHARE))


def _shared_cpu_m(group: NodeGroup, num_gpus: int) -> int:
    """Return the CPUs that come with the GPUs, in whole cores where there is one."""
    shared = _free_cpu_m(group) * num_gpus // group.num_gpus if num_gpus else _free_cpu_m(group)
    return shared - shared % 1000 if shared >= 1000 else max(shared, 1)


def _shared_memory(group: NodeGroup, num_gpus: int) -> int:
    shared = _free_memory(group) * num_gpus // group.num_gpus if num_gpus else _free_memory(group)
    return shared - shared % GIB if shared >= GIB else shared


def _shared_devices(groups: Sequence[NodeGroup], name: str, needs: PodNeeds) -> int:
    """Return the job's share of a network resource, by its share of the GPUs."""
    shares = [
        group.resources[name] * needs.num_gpus // group.num_gpus if needs.num_gpus else group.resources[name]
        for group in groups
    ]
    return max(min(shares), 1)


def _check_memory(needs: PodNeeds) -> None:
    if needs.memory_bytes is not None and needs.shm_size_bytes >= needs.memory_bytes:
        raise UsageError(
            f"`--shm` must be less than the memory of the pod, because it counts as such, but they are"
            f" {memory_text(needs.shm_size_bytes)} and {memory_text(needs.memory_bytes)}"
        )


def _notes(
    needs: PodNeeds, groups: Sequence[NodeGroup] | None, *, num_nodes: int, is_queued: bool, topology: str | None
) -> list[str]:
    is_single = num_nodes == 1
    notes = []
    if needs.memory_bytes is None:
        notes.append(
            f"no memory is requested, and /dev/shm may take {memory_text(needs.shm_size_bytes)} of the node's: pass"
            " --kube-nodes or --memory"
        )
    if is_single and needs.topology is None:
        notes.append("without a required host, Kueue may admit the job while its GPUs are free on several hosts only")
    if is_single and is_queued and topology is None:
        notes.append(
            f"Kueue places the pod by {HOST_LABEL}: if no flavor of your queue has a Topology, pass --topology none"
        )
    if not is_single and not is_queued:
        notes.append("without --queue, the pods start one by one: some can hold GPUs while others wait")
    if is_queued and needs.network:
        names = ", ".join(needs.network)
        notes.append(f"the ClusterQueue must cover {names}, or Kueue never admits the job")
    unused = None if is_single or needs.network else _first_network(groups or ())
    if unused is not None:
        notes.append(f"the nodes have {unused}, which the pods do not use: pass --network {unused}")
    return notes


def _first_network(groups: Sequence[NodeGroup]) -> str | None:
    """Return the first network device, by its name, that some of the nodes have."""
    resources = {name for group in groups for name in group.resources}
    return min((name for name in resources if name.startswith(_NETWORKS)), default=None)
