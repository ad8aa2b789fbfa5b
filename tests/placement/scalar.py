"""The bytes on each link and the cost of an order, computed transfer by transfer with dictionaries.

Written from the description of the rules alone, to compare with the columns of `flatout.placement`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from flatout.records.placement import Fabric, GroupExchange, Pattern

Loads = dict[tuple[str, ...], float]
SWITCHED = ("fat-tree", "rail")


class Scalar:
    def __init__(self, fabric: Fabric, order: Sequence[int]) -> None:
        self.fabric = fabric
        self.order = order  # the slot of each rank
        self.loads: Loads = defaultdict(float)

    def node(self, slot: int) -> int:
        return slot // self.fabric.gpus_per_node

    def box(self, slot: int) -> int:
        return slot // max(self.fabric.gpus_per_node, self.fabric.nvlink_gpus)

    def leaf(self, slot: int) -> str:
        leaf = self.fabric.leaf_of_node[self.node(slot)]
        rail = slot % self.fabric.gpus_per_node
        return f"{leaf}/{rail}" if self.fabric.kind == "rail" else f"{leaf}"

    def pair(self, kind: str, source: object, target: object, num_bytes: float) -> None:
        self.loads[kind, "out", str(source)] += num_bytes
        self.loads[kind, "in", str(target)] += num_bytes

    def near(self, source: int, target: int, num_bytes: float) -> None:
        domain = self.fabric.nvlink_gpus
        self.pair("nvlink" if source // domain == target // domain else "host", source, target, num_bytes)

    def far(self, source: int, target: int, num_bytes: float) -> None:
        if self.fabric.kind not in SWITCHED:
            self.cables(self.node(source), self.node(target), num_bytes)
            return
        self.pair("adapter", source, target, num_bytes)
        if self.leaf(source) != self.leaf(target):
            self.pair("core", self.leaf(source), self.leaf(target), num_bytes)

    def cables(self, source: int, target: int, num_bytes: float) -> None:
        at = list(np.unravel_index(source, self.fabric.shape))
        to = np.unravel_index(target, self.fabric.shape)
        for axis, size in enumerate(self.fabric.shape):
            forward, backward = (to[axis] - at[axis]) % size, (at[axis] - to[axis]) % size
            start = list(at)
            for step, hops in ((1, forward), (-1, backward)):
                share = 0.5 if forward == backward else float(hops == min(forward, backward))
                place = list(start)
                for _ in range(hops):
                    self.loads["cable", str(axis), str(step), str([int(value) for value in place])] += share * num_bytes
                    place[axis] = (place[axis] + step) % size
            at[axis] = to[axis]

    def transfer(self, first: int, second: int, num_bytes: float) -> None:
        """From rank to rank."""
        source, target = self.order[first], self.order[second]
        if self.box(source) == self.box(target):
            self.near(source, target, num_bytes)
            return
        if self.fabric.kind == "rail":
            helper = source - source % self.fabric.gpus_per_node + target % self.fabric.gpus_per_node
            if helper != source and helper // self.fabric.nvlink_gpus == source // self.fabric.nvlink_gpus:
                self.pair("nvlink", source, helper, num_bytes)
                source = helper
        self.far(source, target, num_bytes)

    def collective(self, group: Sequence[int], num_bytes: float) -> None:
        boxes: dict[int, list[int]] = {}
        for rank in group:  # ascending: boxes in the order of their lowest rank
            boxes.setdefault(self.box(self.order[rank]), []).append(self.order[rank])
        stays = [sorted(slots, key=lambda slot: slot // self.fabric.nvlink_gpus) for slots in boxes.values()]
        for slots in stays:
            if len(slots) > 1:
                for source, target in pairwise([*slots, slots[0]]):
                    self.near(source, target, num_bytes)
        if len(stays) == 1:
            return
        channels = min(len(slots) for slots in stays)
        for channel in range(channels):
            gates = [slots[channel * len(slots) // channels] for slots in stays]
            for source, target in pairwise([*gates, gates[0]]):
                self.far(source, target, num_bytes / channels)

    def add(self, exchange: GroupExchange) -> None:
        num_bytes = exchange.bytes_to_neighbour
        for group in exchange.groups:
            if exchange.pattern is Pattern.COLLECTIVE_RING:
                self.collective(group, num_bytes)
            elif exchange.pattern is Pattern.RING:
                for first, second in pairwise([*group, group[0]]):
                    self.transfer(first, second, num_bytes)
            elif exchange.pattern is Pattern.ALL_TO_ALL:
                for first in group:
                    for second in group:
                        if first != second:
                            self.transfer(first, second, num_bytes)
            else:
                closed = [group[0]] if exchange.pattern is Pattern.CLOSED_CHAIN else []
                for first, second in pairwise([*group, *closed]):
                    self.transfer(first, second, num_bytes)
                    self.transfer(second, first, num_bytes)

    def seconds(self) -> float:
        return max((load / self.rate(link) for link, load in self.loads.items()), default=0.0)

    def rate(self, link: tuple[str, ...]) -> float:
        fabric = self.fabric
        if link[0] == "core":
            below = sum(self.leaf(slot) == link[2] for slot in range(fabric.num_gpus))
            return below * fabric.adapter_bytes_per_s / fabric.oversubscription
        if link[0] == "cable":
            dimensions = sum(size > 1 for size in fabric.shape)
            return fabric.adapter_bytes_per_s * fabric.gpus_per_node / (2 * dimensions)
        rates = {
            "nvlink": fabric.nvlink_bytes_per_s,
            "host": fabric.host_bytes_per_s,
            "adapter": fabric.adapter_bytes_per_s,
        }
        return rates[link[0]]


def scalar_seconds(fabric: Fabric, exchanges: Sequence[GroupExchange], order: Sequence[int]) -> float:
    total = 0.0
    for exchange in exchanges:
        one = Scalar(fabric, order)
        one.add(exchange)
        total += one.seconds()
    return total
