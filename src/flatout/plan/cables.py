"""The share of the adapters' rate that a ring or torus of nodes leaves to a transfer.

In a ring or torus, a node's adapters are shared evenly by its cables, two in each dimension. Between neighbours, a
transfer has one cable. All groups of a kind communicate at once, so between nodes that are h hops apart in a dimension,
each cable there carries h transfers. An all-to-all over m nodes uses all cables of the dimensions that it spans, each
message for the mean number of hops. `placement/` counts every cable; this is what the search over layouts uses. In a
network with switches, the shares are 1.
"""

from __future__ import annotations

import numpy as np

from flatout.plan.inputs import Column, CostModelInputs


def is_cabled(inputs: CostModelInputs) -> bool:
    """Whether the nodes are cabled to each other, without switches."""
    return bool(np.any(np.asarray(inputs.torus_x) * inputs.torus_y * inputs.torus_z > 1))


def neighbour_share(inputs: CostModelInputs, stride: Column) -> Column:
    """Return the share for a transfer between GPUs that are `stride` apart, where all GPUs have such a transfer."""
    if not is_cabled(inputs):
        return 1.0
    rest = np.maximum(np.floor(stride / inputs.node_gpus), 1.0)
    most_hops: Column = 1.0
    for size in _sizes(inputs):
        along = rest % size
        most_hops = np.maximum(most_hops, np.minimum(along, size - along))
        rest = np.floor(rest / size)
    return 1.0 / (2.0 * _num_dimensions(inputs) * most_hops)


def exchange_share(inputs: CostModelInputs, span: Column) -> Column:
    """Return the share for an all-to-all among `span` consecutive GPUs."""
    if not is_cabled(inputs):
        return 1.0
    rest = np.maximum(span / inputs.node_gpus, 1.0)
    hops: Column = 0.0
    num_used: Column = 0.0
    for size in _sizes(inputs):
        along = np.minimum(rest, size)
        # Around a whole ring, a message takes a quarter of it in the mean; along a part of it, a third.
        hops = hops + np.where(along >= size, size / 4.0, along / 3.0) * (along > 1)
        num_used = num_used + (along > 1)
        rest = np.maximum(rest / size, 1.0)
    share_of_cables = np.maximum(num_used, 1.0) / _num_dimensions(inputs)
    return np.minimum(share_of_cables / np.maximum(hops, 1.0), 1.0)


def _sizes(inputs: CostModelInputs) -> tuple[Column, Column, Column]:
    """Return the nodes in each dimension, the one of consecutive nodes first."""
    return inputs.torus_z, inputs.torus_y, inputs.torus_x


def _num_dimensions(inputs: CostModelInputs) -> Column:
    used: Column = 0.0
    for size in _sizes(inputs):
        used = used + (np.asarray(size) > 1)
    return np.maximum(used, 1.0)
