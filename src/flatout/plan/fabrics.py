"""Put another network between the nodes of a cluster, for questions of what if.

In: a cluster and the options of the network. Out: the cluster with that network. Where the nodes below a leaf switch
are not given, they are as many as a switch of the catalogue's size serves.
"""

from __future__ import annotations

import re
from math import prod

import msgspec

from flatout.catalog.fabrics import FABRICS, nodes_per_leaf
from flatout.errors import InputError, UsageError
from flatout.records.plan import ClusterSpec

_SWITCHED = ("fat-tree", "rail")
_TORUS = re.compile(r"[1-9]\d{0,5}(?:x[1-9]\d{0,5}){1,2}")


class FabricRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The network as the user gives it; None: that of the cluster."""

    fabric: str | None = None
    oversubscription: float | None = None
    leaf_nodes: int | None = None
    torus: str | None = None  # such as 4x4


CLUSTERS_OWN = FabricRequest()


def with_fabric(cluster: ClusterSpec, request: FabricRequest) -> ClusterSpec:
    """Return the cluster with the requested network. Raise UsageError for options that contradict each other."""
    if request == CLUSTERS_OWN:
        return cluster
    fabric = request.fabric or ("torus" if request.torus else cluster.fabric)
    _check(request, fabric)
    is_switched = fabric in _SWITCHED
    given = 1.0 if not is_switched else request.oversubscription
    oversubscription = cluster.oversubscription if given is None else given
    leaf_nodes = request.leaf_nodes or _known_leaf_nodes(cluster, request)
    if leaf_nodes is None:
        leaf_nodes = nodes_per_leaf(fabric, oversubscription, cluster.gpus_per_node)
    num_nodes = max(cluster.num_gpus // cluster.gpus_per_node, 1)
    return msgspec.structs.replace(
        cluster,
        fabric=fabric,
        is_rail_optimized=fabric == "rail",
        oversubscription=oversubscription,
        pod_gpus=leaf_nodes * cluster.gpus_per_node if is_switched else 0,
        torus=() if is_switched else _shape(fabric, request.torus, num_nodes),
    )


def _check(request: FabricRequest, fabric: str) -> None:
    """Raise UsageError for an unknown kind of network, or for options of another kind than this one."""
    if fabric not in FABRICS:
        raise UsageError(f"`--fabric` must be one of {', '.join(FABRICS)}, but is `{fabric}`")
    has_oversubscription = request.oversubscription is not None
    has_option_of_switches = has_oversubscription or request.leaf_nodes is not None
    if has_option_of_switches and fabric not in _SWITCHED:
        option = "--oversubscription" if has_oversubscription else "--leaf-nodes"
        raise UsageError(f"`{option}` is for switches, but a {fabric} has none", hint="--fabric fat-tree or rail")
    if request.torus is not None and fabric != "torus":
        raise UsageError(f"`--torus` is for a torus, but `--fabric` is {fabric}", hint=f"--torus {request.torus}")


def _known_leaf_nodes(cluster: ClusterSpec, request: FabricRequest) -> int | None:
    """Return the nodes per leaf that the cluster's file gives, where its kind of network stays."""
    is_same = request.fabric in (None, cluster.fabric)
    return cluster.pod_gpus // cluster.gpus_per_node if is_same and cluster.pod_gpus > cluster.gpus_per_node else None


def _shape(fabric: str, torus: str | None, num_nodes: int) -> tuple[int, ...]:
    """Return the nodes in each dimension; without `--torus`, as square as possible."""
    if fabric == "ring":
        return (num_nodes,)
    if torus is None:
        side = max(size for size in range(1, int(num_nodes**0.5) + 1) if num_nodes % size == 0)
        return (side, num_nodes // side)
    if not _TORUS.fullmatch(torus):
        raise UsageError(
            f"`--torus` must be the nodes in two or three dimensions, but is `{torus}`", hint="--torus 4x4"
        )
    shape = tuple(int(size) for size in torus.split("x"))
    if prod(shape) != num_nodes:
        raise InputError(
            f"a torus of {torus} has {prod(shape)} nodes, but the cluster has {num_nodes}",
            hint="the product of the dimensions must be the number of nodes",
        )
    return shape
