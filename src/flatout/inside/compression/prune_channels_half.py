"""prune-channels-half: remove half of the hidden channels between two layers, as `prune-channels` does a quarter."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn

from flatout.inside.compression import prune_channels
from flatout.inside.compression.changed import Changed

SHARE = 0.5


def compress(model: nn.Module, skip: Collection[str] = ()) -> Changed:
    """Remove half of the channels of the model's hidden layers."""
    return prune_channels.compress(model, skip, SHARE)
