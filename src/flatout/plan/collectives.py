"""The time of communication in groups of GPUs: over NVLink within a domain, over shared adapters between domains.

Bandwidth terms follow nccl-tests' doc/PERFORMANCE.md: an all-reduce moves 2 (n-1)/n of the bytes over the bus;
all-gather, reduce-scatter and all-to-all move (n-1)/n. A ring that leaves the domain runs at the rate of the adapters
next to its members there. Latencies are those of NCCL's src/graph/tuning.cc for the protocol Simple, one per step: an
all-gather or reduce-scatter goes around a ring once; an all-reduce goes around it twice, or up and down a tree,
whichever is faster.
"""

from __future__ import annotations

import numpy as np

from flatout.plan.cables import exchange_share, neighbour_share
from flatout.plan.constants import Constants
from flatout.plan.inputs import Column, CostModelInputs

BASE_S, HOP_S, NETWORK_HOP_S = 8.4e-6, 3.4e-6, 14e-6  # per call, per step over NVLink, per step over the network


def members_in_domain(inputs: CostModelInputs, size: Column, stride: Column) -> Column:
    """Return how many members of a group share an NVLink domain, given members that are `stride` ranks apart."""
    return np.clip(np.floor(inputs.domain / stride), 1.0, size)


def all_gather_s(
    inputs: CostModelInputs,
    constants: Constants,
    num_bytes: Column,
    size: Column,
    stride: Column,
    calls: Column = 1.0,
) -> Column:
    """Return the seconds of an all-gather or reduce-scatter of `num_bytes` over `size` ranks, in `calls` calls."""
    inside = members_in_domain(inputs, size, stride)
    rate = _ring_rate(inputs, constants, size, inside, stride)
    transfer = num_bytes * (size - 1.0) / size / rate
    latency = calls * constants.latency * (BASE_S + _ring_latency_s(inputs, size, inside))
    return np.where(size > 1, transfer + latency, 0.0)


def all_reduce_s(
    inputs: CostModelInputs, constants: Constants, num_bytes: Column, size: Column, stride: Column
) -> Column:
    """Return the seconds of an all-reduce of `num_bytes` over `size` ranks."""
    inside = members_in_domain(inputs, size, stride)
    rate = _ring_rate(inputs, constants, size, inside, stride)
    transfer = 2.0 * num_bytes * (size - 1.0) / size / rate
    doublings = np.log2(np.maximum(size / inside, 1.0))
    tree = 2.0 * (HOP_S * (inside - 1.0) + NETWORK_HOP_S * inputs.network_latency * doublings)
    ring = 2.0 * _ring_latency_s(inputs, size, inside)
    latency = constants.latency * (BASE_S + np.minimum(ring, tree))
    return np.where(size > 1, transfer + latency, 0.0)


def _ring_latency_s(inputs: CostModelInputs, size: Column, inside: Column) -> Column:
    nodes = size / inside
    network_hops = np.where(nodes > 1, nodes, 0.0)
    return HOP_S * (size - nodes) + NETWORK_HOP_S * inputs.network_latency * network_hops


def dispatch_s(
    inputs: CostModelInputs, constants: Constants, token_bytes: Column, topk: Column, size: Column, stride: Column
) -> Column:
    """Return the seconds in which each rank sends its tokens to `topk` experts, spread evenly over the ranks.

    A token is sent to another domain only once, regardless of how many of its experts are there (DeepSeek-AI, arXiv
    2412.19437, 3.2.2): on average, k experts are on n (1 - (1 - 1/n)^k) of n domains.
    """
    inside = members_in_domain(inputs, size, stride)
    domains = size / inside
    near = token_bytes * topk * (inside - 1.0) / inside / (inputs.link * constants.link)
    copies = (domains - 1.0) * (1.0 - (1.0 - 1.0 / domains) ** topk)
    # These are point-to-point sends without a ring, for which DeepEP reaches the adapter's rate.
    network_share = _core_share(inputs, size * stride, inputs.pod) * exchange_share(inputs, size * stride)
    far = token_bytes * copies / (inputs.nic * network_share)
    network_hop = NETWORK_HOP_S * inputs.network_latency * (domains > 1)
    latency = constants.latency * (BASE_S + HOP_S * (inside - 1.0) + network_hop)
    return np.where(size > 1, near + far + latency, 0.0)


def send_s(inputs: CostModelInputs, constants: Constants, num_bytes: Column, stride: Column) -> Column:
    """Return the seconds of one transfer to the rank `stride` ranks away."""
    is_in_domain = stride < inputs.domain
    near_rate = inputs.link * constants.link
    network_share = _core_share(inputs, stride + 1.0, inputs.rail_pod) * neighbour_share(inputs, stride)
    far_rate = inputs.nic * constants.nic * network_share
    hop = np.where(is_in_domain, HOP_S, NETWORK_HOP_S * inputs.network_latency)
    return num_bytes / np.where(is_in_domain, near_rate, far_rate) + constants.latency * hop


def _has_full_core(inputs: CostModelInputs) -> bool:
    """Whether the network's core carries the adapters' full rate everywhere."""
    return bool(np.all(np.asarray(inputs.core) == 1.0))


def _core_share(inputs: CostModelInputs, span: Column, pod: Column) -> Column:
    """Return the share of the adapters' rate available to `span` consecutive GPUs: less than 1 beyond a pod."""
    if _has_full_core(inputs):
        return 1.0
    return np.where(span > pod, inputs.core, 1.0)


def _ring_rate(inputs: CostModelInputs, constants: Constants, size: Column, inside: Column, stride: Column) -> Column:
    """Return the rate of a ring.

    Each member in a domain can use its own adapter, and the rings of one node share its adapters evenly. On a network
    with rails, a ring of GPUs at the same position in their nodes reaches further within its rail's switch.
    """
    between = inside * inputs.nic * constants.nic * neighbour_share(inputs, stride)
    if not _has_full_core(inputs):
        pod = np.where(inside > 1, inputs.pod, inputs.rail_pod)
        between = between * _core_share(inputs, size * stride, pod)
    within = inputs.link * constants.link
    return np.where(size > inside, np.minimum(within, between), within)
