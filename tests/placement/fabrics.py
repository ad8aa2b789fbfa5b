"""Small fabrics and layouts for the tests of placement."""

from __future__ import annotations

from collections.abc import Sequence

from flatout.placement import groups
from flatout.placement.groups import LayoutDegrees
from flatout.records.placement import Fabric, FabricKind, GroupExchange, Pattern

NVLINK, HOST, ADAPTER = 450e9, 100e9, 50e9
BYTES = {"tensor": 40e9, "context": 5e9, "data": 8e9, "pipeline": 1e9, "expert": 3e9}


def fabric(
    kind: str,
    num_nodes: int,
    gpus_per_node: int,
    *,
    leaves: Sequence[int] = (),
    oversubscription: float = 1.0,
    shape: Sequence[int] = (),
    nvlink_gpus: int | None = None,
) -> Fabric:
    return Fabric(
        kind=FabricKind(kind),
        nodes=tuple(f"node-{number}" for number in range(num_nodes)),
        gpus_per_node=gpus_per_node,
        nvlink_gpus=nvlink_gpus or gpus_per_node,
        leaf_of_node=tuple(leaves) or (0,) * num_nodes,
        oversubscription=oversubscription,
        shape=tuple(shape),
        nvlink_bytes_per_s=NVLINK,
        host_bytes_per_s=HOST,
        adapter_bytes_per_s=ADAPTER,
    )


def exchanges(degrees: LayoutDegrees) -> list[GroupExchange]:
    kinds = {
        "tensor": (Pattern.COLLECTIVE_RING, groups.tensor_groups(degrees)),
        "context": (Pattern.RING, groups.context_groups(degrees)),
        "data": (Pattern.COLLECTIVE_RING, groups.data_groups(degrees)),
        "pipeline": (Pattern.CHAIN, groups.pipeline_groups(degrees)),
        "expert": (Pattern.ALL_TO_ALL, groups.expert_groups(degrees)),
    }
    return [
        GroupExchange(name=name, pattern=pattern, groups=members, bytes_to_neighbour=BYTES[name])
        for name, (pattern, members) in kinds.items()
        if len(members[0]) > 1
    ]


# Ranks on nodes that Slurm lists without regard to their switches: neighbours in the list are on different leaves.
EIGHT = {
    "fat-tree": fabric("fat-tree", 4, 2, leaves=(0, 1, 0, 1)),
    "oversubscribed": fabric("fat-tree", 4, 2, leaves=(0, 1, 0, 1), oversubscription=4),
    "rail": fabric("rail", 4, 2, leaves=(0, 1, 0, 1), oversubscription=2),
    "ring": fabric("ring", 4, 2, shape=(4,)),
    "torus": fabric("torus", 4, 2, shape=(2, 2)),
}
SIX = {
    "fat-tree": fabric("fat-tree", 3, 2, leaves=(0, 1, 0), oversubscription=3),
    "rail": fabric("rail", 3, 2, leaves=(0, 1, 0), oversubscription=3),
    "ring": fabric("ring", 6, 1, shape=(6,)),
    "torus": fabric("torus", 6, 1, shape=(2, 3)),
    "PCIe pairs": fabric("fat-tree", 2, 3, leaves=(0, 1), nvlink_gpus=1),
    "NVLink over nodes": fabric("fat-tree", 3, 2, leaves=(0, 1, 2), nvlink_gpus=4),
}
LAYOUTS_OF_EIGHT = (
    LayoutDegrees(tp=2, dp=2, pp=2),
    LayoutDegrees(tp=2, dp=4),
    LayoutDegrees(tp=4, pp=2),
    LayoutDegrees(dp=8, ep=4),
    LayoutDegrees(cp=2, dp=2, pp=2),
    LayoutDegrees(pp=8),
)
LAYOUTS_OF_SIX = (
    LayoutDegrees(tp=2, dp=3),
    LayoutDegrees(tp=3, pp=2),
    LayoutDegrees(dp=6, ep=3),
    LayoutDegrees(cp=3, dp=2),
    LayoutDegrees(pp=6),
)
