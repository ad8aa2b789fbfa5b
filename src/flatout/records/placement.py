"""The records of rank placement: a network, what groups of ranks exchange, and an order of ranks with its cost."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class FabricKind(StrEnum):
    """How the switches or cables of a cluster connect its nodes."""

    FAT_TREE = "fat-tree"  # all adapters of a node are on one leaf switch
    RAIL = "rail"  # the adapters at one position in their nodes share a leaf switch
    RING = "ring"  # each node is cabled to two neighbours
    TORUS = "torus"  # each node is cabled to two neighbours in each dimension


class Fabric(msgspec.Struct, frozen=True, kw_only=True):
    """The nodes of a job and the links between their GPUs. Rates are per direction."""

    kind: FabricKind
    nodes: tuple[str, ...]  # in the order in which ranks are placed without an order of ours
    gpus_per_node: int
    nvlink_gpus: int  # GPUs that reach each other over NVLink; may span nodes
    leaf_of_node: tuple[int, ...]  # the leaf switch, or with rails the group of leaf switches, of each node
    oversubscription: float = 1.0  # of the links above the leaf switches
    shape: tuple[int, ...] = ()  # of a ring or torus: nodes in each dimension
    nvlink_bytes_per_s: float  # per GPU
    host_bytes_per_s: float  # per GPU, to GPUs of its node that NVLink does not reach
    adapter_bytes_per_s: float  # per GPU

    @property
    def num_gpus(self) -> int:
        return len(self.nodes) * self.gpus_per_node


class Pattern(StrEnum):
    """Who sends to whom within a group."""

    COLLECTIVE_RING = "collective ring"  # NCCL orders the ring: the ranks of a node follow one another
    RING = "ring"  # each rank sends to the next one in the order of ranks, and the last to the first
    CHAIN = "chain"  # neighbours send to each other in both directions
    CLOSED_CHAIN = "closed chain"  # a chain whose ends are neighbours too: interleaved pipelines
    ALL_TO_ALL = "all-to-all"


class GroupExchange(msgspec.Struct, frozen=True, kw_only=True):
    """What the groups of one kind exchange in a step."""

    name: str  # `tensor`, `context`, `data`, `expert`, `pipeline`, ...
    pattern: Pattern
    groups: tuple[tuple[int, ...], ...]  # ranks; groups of one size that exchange at the same time
    # What a rank sends to one neighbour in a step; of an all-to-all, what it sends to one other member.
    bytes_to_neighbour: float


class LinkKind(StrEnum):
    NVLINK = "NVLink"
    HOST = "PCIe"
    ADAPTER = "adapter"
    CORE = "leaf uplink"
    CABLE = "cable"


class LinkLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of a step on one link, in its busier direction."""

    link: str  # for example `node-3 GPU 2`, `leaf 1`, `node-0 to node-1`
    kind: LinkKind
    bytes_before: float
    bytes_after: float


class ExchangeTime(msgspec.Struct, frozen=True, kw_only=True):
    """The time that the busiest link needs for an exchange, and the kind of that link."""

    name: str
    seconds_before: float
    seconds_after: float
    busiest_before: LinkKind
    busiest_after: LinkKind
    num_groups: int
    group_size: int
    groups_across_nodes_before: int
    groups_across_nodes_after: int


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """An order of ranks, with the bytes on each link in the given order (before) and in the best one found (after)."""

    fabric: str
    num_ranks: int
    gpus_per_node: int
    ranks_of_nodes: dict[str, tuple[int, ...]]  # by node, in the order of its GPUs
    is_changed: bool
    keeps_nodes_whole: bool  # each node has consecutive ranks, so that an order of nodes is enough
    node_order: tuple[str, ...]  # the best order of nodes where each node has consecutive ranks
    seconds_before: float
    seconds_after: float
    seconds_with_node_order: float
    exchanges: tuple[ExchangeTime, ...]
    links: tuple[LinkLoad, ...]


class SlowLinks(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of a step on the links of one kind outside nodes, in both orders of ranks."""

    kind: LinkKind
    busiest_before: float  # bytes on the link that carries the most, in its busier direction
    busiest_after: float
    sum_before: float  # of all links of this kind
    sum_after: float


class PlannedPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """The order of ranks that a quick search finds for a plan's first layout; before: the given order; after: this."""

    fabric: str
    ranks_of_nodes: dict[str, tuple[int, ...]]  # by node, in the order of its GPUs
    is_changed: bool
    keeps_nodes_whole: bool  # each node has consecutive ranks, so that an order of nodes is enough
    seconds_before: float  # of the exchanges of a step, one after the other
    seconds_after: float
    seconds_with_node_order: float  # in the best order found in which each node has consecutive ranks
    slow_links: tuple[SlowLinks, ...]
