"""How long groups of GPUs exchange data: NVLink inside a domain, shared network adapters between domains.

Bandwidth terms as in nccl-tests' doc/PERFORMANCE.md: all-reduce 2 (n-1)/n of the bytes over the bus, all-gather,
reduce-scatter and all-to-all (n-1)/n. A ring that leaves the domain runs at the rate of the adapters beside its members
there. Latencies: those of NCCL's src/graph/tuning.cc for the protocol Simple, a step each; all-gather and
reduce-scatter go around a ring, an all-reduce twice around it or up and down a tree, whichever is quicker.
"""

from __future__ import annotations

import numpy as np

from flatout.plan.case import Case, Column
from flatout.plan.constants import Constants

BASE_S, HOP_S, NETWORK_HOP_S = 8.4e-6, 3.4e-6, 14e-6  # of a call, of a step over NVLink, of one over the network


def members_in_domain(case: Case, size: Column, stride: Column) -> Column:
    """How many of a group's members share an NVLink domain, if they are `stride` ranks apart."""
    return np.clip(np.floor(case.domain / stride), 1.0, size)


def all_gather_s(
    case: Case, constants: Constants, num_bytes: Column, size: Column, stride: Column, calls: Column = 1.0
) -> Column:
    """Seconds until each of `size` ranks has all `num_bytes`, in so many calls; a reduce-scatter takes as long."""
    inside = members_in_domain(case, size, stride)
    rate = _ring_rate(case, constants, size, inside, stride)
    latency = calls * constants.latency * (BASE_S + _ring_latency_s(case, size, inside))
    return np.where(size > 1, num_bytes * (size - 1.0) / size / rate + latency, 0.0)


def all_reduce_s(case: Case, constants: Constants, num_bytes: Column, size: Column, stride: Column) -> Column:
    """Seconds until each of `size` ranks has the sum of `num_bytes`."""
    inside = members_in_domain(case, size, stride)
    rate = _ring_rate(case, constants, size, inside, stride)
    doublings = np.log2(np.maximum(size / inside, 1.0))
    tree = 2.0 * (HOP_S * (inside - 1.0) + NETWORK_HOP_S * case.network_latency * doublings)
    latency = constants.latency * (BASE_S + np.minimum(2.0 * _ring_latency_s(case, size, inside), tree))
    return np.where(size > 1, 2.0 * num_bytes * (size - 1.0) / size / rate + latency, 0.0)


def _ring_latency_s(case: Case, size: Column, inside: Column) -> Column:
    nodes = size / inside
    return HOP_S * (size - nodes) + NETWORK_HOP_S * case.network_latency * np.where(nodes > 1, nodes, 0.0)


def dispatch_s(
    case: Case, constants: Constants, token_bytes: Column, topk: Column, size: Column, stride: Column
) -> Column:
    """Seconds until each rank has sent each of its tokens to `topk` experts, spread evenly over `size` ranks.

    A token crosses to another domain once, however many of its experts are there (DeepSeek-AI, arXiv 2412.19437,
    3.2.2): of n domains, k experts reach n (1 - (1 - 1/n)^k) on average.
    """
    inside = members_in_domain(case, size, stride)
    domains = size / inside
    near = token_bytes * topk * (inside - 1.0) / inside / (case.link * constants.link)
    copies = (domains - 1.0) * (1.0 - (1.0 - 1.0 / domains) ** topk)
    rate = case.nic * _core_share(case, size * stride, case.pod)
    far = token_bytes * copies / rate  # point to point, without a ring: DeepEP reaches the adapter's rate
    latency = constants.latency * (
        BASE_S + HOP_S * (inside - 1.0) + NETWORK_HOP_S * case.network_latency * (domains > 1)
    )
    return np.where(size > 1, near + far + latency, 0.0)


def send_s(case: Case, constants: Constants, num_bytes: Column, stride: Column) -> Column:
    """Seconds of one transfer to the rank `stride` ranks away."""
    far = case.nic * constants.nic * _core_share(case, stride + 1.0, case.rail_pod)
    rate = np.where(stride < case.domain, case.link * constants.link, far)
    hop = np.where(stride < case.domain, HOP_S, NETWORK_HOP_S * case.network_latency)
    return num_bytes / rate + constants.latency * hop


def _core_share(case: Case, span: Column, pod: Column) -> Column:
    """Of the adapters' rate, where a group of so many consecutive GPUs reaches beyond a pod."""
    if np.all(np.asarray(case.core) == 1.0):
        return 1.0
    return np.where(span > pod, case.core, 1.0)


def _ring_rate(case: Case, constants: Constants, size: Column, inside: Column, stride: Column) -> Column:
    """Each member in a domain can use its own adapter: the rings of one node share its adapters evenly."""
    # On a network with rails, a ring of GPUs in the same place of their nodes stays on its rail's switch for longer.
    between = inside * case.nic * constants.nic
    if not np.all(np.asarray(case.core) == 1.0):
        pod = np.where(inside > 1, case.pod, case.rail_pod)
        between = between * _core_share(case, size * stride, pod)
    within = case.link * constants.link
    return np.where(size > inside, np.minimum(within, between), within)
