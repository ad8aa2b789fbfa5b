"""The record of `flatout plan place`: a layout, and the placement of its ranks."""

from __future__ import annotations

import msgspec

from flatout.records.placement import Placement
from flatout.records.plan import Layout


class PlacedJob(msgspec.Struct, frozen=True, kw_only=True):
    """The layout of a model on a cluster, and the placement of its ranks."""

    workload: str
    cluster: str
    layout: Layout
    step_time_s: float  # predicted for the layout where ranks are in the given order
    placement: Placement
