"""The fabric of a cluster: which nodes share a leaf switch, and the rates of the links.

In: a cluster, and where they are known the names of its nodes and their leaf switches. Out: a `Fabric`. Where the leaf
switches are unknown, each has as many nodes as a switch of the catalogue's size serves.
"""

from __future__ import annotations

from collections.abc import Sequence

from flatout.catalog.fabrics import nodes_per_leaf
from flatout.errors import InputError
from flatout.records.placement import Fabric, FabricKind
from flatout.records.plan import ClusterSpec

MOST_RANKS = 8192


def fabric_of(cluster: ClusterSpec, nodes: Sequence[str] = (), leaf_of_node: Sequence[int] = ()) -> Fabric:
    """Return the fabric. Raise InputError if the nodes are not all full, or their number is not that of the cluster."""
    per_node = min(cluster.gpus_per_node, cluster.num_gpus)
    if cluster.num_gpus % per_node:
        raise InputError(
            f"a placement needs full nodes, but {cluster.num_gpus} GPUs leave one of {per_node} GPUs partly empty",
            hint=f"plan for {cluster.num_gpus // per_node * per_node} GPUs",
        )
    if cluster.num_gpus > MOST_RANKS:
        raise InputError(
            f"a placement can have at most {MOST_RANKS:,} ranks, but the cluster has {cluster.num_gpus:,} GPUs",
            hint="place the ranks of one pod or of one replica",
        )
    num_nodes = cluster.num_gpus // per_node
    names = tuple(nodes) or tuple(f"node-{number}" for number in range(num_nodes))
    if len(names) != num_nodes:
        raise InputError(
            f"`--nodes` must name the {num_nodes} nodes of {cluster.num_gpus} GPUs, but names {len(names)}",
            hint=f"for example: --nodes node[1-{num_nodes}]",
        )
    kind = FabricKind(cluster.fabric)
    leaves = tuple(leaf_of_node) or tuple(number // leaf_nodes(cluster) for number in range(num_nodes))
    return Fabric(
        kind=kind,
        nodes=names,
        gpus_per_node=per_node,
        nvlink_gpus=_nvlink_gpus(cluster, per_node),
        leaf_of_node=leaves,
        oversubscription=cluster.oversubscription,
        shape=cluster.torus,
        nvlink_bytes_per_s=cluster.link_bytes_per_s,
        host_bytes_per_s=cluster.host_link_bytes_per_s,
        adapter_bytes_per_s=cluster.nic_bytes_per_s,
    )


def leaf_nodes(cluster: ClusterSpec) -> int:
    """Return the nodes below a leaf switch, or with rails below each switch of a group of leaf switches."""
    if cluster.pod_gpus > cluster.gpus_per_node:
        return cluster.pod_gpus // cluster.gpus_per_node
    return nodes_per_leaf(cluster.fabric, cluster.oversubscription, cluster.gpus_per_node)


def _nvlink_gpus(cluster: ClusterSpec, per_node: int) -> int:
    """Return the GPUs of an NVLink domain: part of a node, a node, or several whole nodes of the cluster."""
    domain = min(cluster.nvlink_domain, cluster.num_gpus)
    if domain <= per_node:
        return domain if per_node % domain == 0 else 1
    # Schedulers give a job as many nodes of one domain as of another: of 72 GPUs each, 4 domains give 64 of 256 GPUs.
    num_nodes, most_nodes = cluster.num_gpus // per_node, domain // per_node
    return per_node * max(nodes for nodes in range(1, most_nodes + 1) if num_nodes % nodes == 0)
