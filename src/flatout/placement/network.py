"""The links of a fabric as one row of numbers: their rates, their names, and the path of a transfer over them.

A slot is a place for a rank: slot s is GPU s modulo `gpus_per_node` of a node. Each link has two directions with a
number each, except for cables, whose two directions are separate links. Paths:

- between GPUs that NVLink connects, NVLink; between others of one node, PCIe;
- between nodes, the adapters of both GPUs, and where they are on different leaf switches, the links above the leaves;
- in a ring or torus, the cables of the shortest way, one dimension after the other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from flatout.records.placement import Fabric, FabricKind, LinkKind

Slots = npt.NDArray[np.int64]
Array = npt.NDArray[np.float64]
_CABLED = (FabricKind.RING, FabricKind.TORUS)


class LinkRange(NamedTuple):
    """The numbers of the links of one kind, in one direction."""

    kind: LinkKind
    first: int
    size: int

    @property
    def numbers(self) -> slice:
        return slice(self.first, self.first + self.size)


class Network:
    """The links of a fabric."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        num_gpus, num_nodes = fabric.num_gpus, len(fabric.nodes)
        slots = np.arange(num_gpus)
        self.node = slots // fabric.gpus_per_node
        self.island = slots // fabric.nvlink_gpus
        # GPUs that reach each other without the network: a node, or an NVLink domain of several nodes.
        self.box_gpus = max(fabric.gpus_per_node, fabric.nvlink_gpus)
        self.box = slots // self.box_gpus
        self.position = slots % fabric.gpus_per_node
        self.is_cabled = fabric.kind in _CABLED
        self.has_rails = fabric.kind is FabricKind.RAIL
        self.leaf = self._leaf_of_slots()
        self.shape = fabric.shape or (num_nodes,)
        self.coordinates = np.stack(np.unravel_index(np.arange(num_nodes), self.shape))
        self.dimensions = [axis for axis, size in enumerate(self.shape) if size > 1] if self.is_cabled else []
        num_leaves = int(self.leaf.max()) + 1
        self.ranges: dict[str, LinkRange] = {}
        self.num_links = 0
        for direction in ("out", "in"):
            self._append(f"nvlink_{direction}", LinkKind.NVLINK, num_gpus)
            self._append(f"host_{direction}", LinkKind.HOST, num_gpus)
            self._append(f"adapter_{direction}", LinkKind.ADAPTER, 0 if self.is_cabled else num_gpus)
            self._append(f"core_{direction}", LinkKind.CORE, 0 if self.is_cabled else num_leaves)
        for axis in self.dimensions:
            for direction in ("forward", "backward"):
                self._append(f"cable_{axis}_{direction}", LinkKind.CABLE, num_nodes)
        self.rates = self._rates()

    def _append(self, name: str, kind: LinkKind, size: int) -> None:
        self.ranges[name] = LinkRange(kind, self.num_links, size)
        self.num_links += size

    def _leaf_of_slots(self) -> Slots:
        leaf = np.asarray(self.fabric.leaf_of_node)[self.node]
        return leaf * self.fabric.gpus_per_node + self.position if self.has_rails else leaf

    def _rates(self) -> Array:
        """Return the bytes per second of each link in each direction."""
        fabric = self.fabric
        rates = np.empty(self.num_links)
        below_leaf = np.bincount(self.leaf, minlength=int(self.leaf.max()) + 1) * fabric.adapter_bytes_per_s
        # Each node's adapters are shared evenly by its cables.
        of_cable = fabric.adapter_bytes_per_s * fabric.gpus_per_node / max(2 * len(self.dimensions), 1)
        for links in self.ranges.values():
            of_kind = {
                LinkKind.NVLINK: fabric.nvlink_bytes_per_s,
                LinkKind.HOST: fabric.host_bytes_per_s,
                LinkKind.ADAPTER: fabric.adapter_bytes_per_s,
                LinkKind.CORE: np.maximum(below_leaf, 1.0)[: links.size] / fabric.oversubscription,
                LinkKind.CABLE: of_cable,
            }
            rates[links.numbers] = of_kind[links.kind]
        return rates

    def gateways(self, source: Slots, target: Slots) -> Slots:
        """Return the GPUs whose adapters send for `source`.

        With rails, NCCL hands what is for another rail to the GPU of the node on that rail, over NVLink (PXN).
        """
        if not self.has_rails:
            return source
        on_rail = source - self.position[source] + self.position[target]
        return np.where(self.island[on_rail] == self.island[source], on_rail, source)

    def crosses_core(self, source: Slots, target: Slots) -> npt.NDArray[np.bool_]:
        return np.asarray(self.leaf[source] != self.leaf[target])

    def names(self) -> list[tuple[str, LinkKind, tuple[int, ...]]]:
        """Return the name of each link, and the numbers of its directions."""
        named: list[tuple[str, LinkKind, tuple[int, ...]]] = []
        for kind in ("nvlink", "host", "adapter"):
            out, into = self.ranges[f"{kind}_out"], self.ranges[f"{kind}_in"]
            for slot in range(out.size):
                gpu = f"{self.fabric.nodes[self.node[slot]]} GPU {self.position[slot]}"
                named.append((gpu, out.kind, (out.first + slot, into.first + slot)))
        up, down = self.ranges["core_out"], self.ranges["core_in"]
        named += [(self._leaf_name(leaf), up.kind, (up.first + leaf, down.first + leaf)) for leaf in range(up.size)]
        for axis in self.dimensions:
            named += self._cable_names(axis)
        return named

    def _leaf_name(self, leaf: int) -> str:
        if not self.has_rails:
            return f"leaf {leaf}"
        group, rail = divmod(leaf, self.fabric.gpus_per_node)
        return f"leaf {group} rail {rail}"

    def _cable_names(self, axis: int) -> list[tuple[str, LinkKind, tuple[int, ...]]]:
        names = self.fabric.nodes
        named: list[tuple[str, LinkKind, tuple[int, ...]]] = []
        for direction, step in (("forward", 1), ("backward", -1)):
            links = self.ranges[f"cable_{axis}_{direction}"]
            for node in range(links.size):
                there = self.coordinates[:, node].copy()
                there[axis] = (there[axis] + step) % self.shape[axis]
                neighbour = int(np.ravel_multi_index(tuple(there), self.shape))
                named.append((f"{names[node]} to {names[neighbour]}", links.kind, (links.first + node,)))
        return named
