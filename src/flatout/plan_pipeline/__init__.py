"""Run `flatout plan` from its options to its files: readers, search, measured corrections, prices, and output.

`search_context` makes the context of a search from a `PlanRequest`, `calibrated` corrects it by measurements,
`with_goal` answers a goal with prices and carbon, `with_network` and `with_placement` add what the network does and
where ranks go, and `PlanFiles` writes the page and the settings for other tools.
"""

from __future__ import annotations

from flatout.plan_pipeline.files import PlanFiles, planned_files
from flatout.plan_pipeline.goal import GoalRequest, planned, requested_goal, with_goal
from flatout.plan_pipeline.network import with_network
from flatout.plan_pipeline.placement import PlaceRequest, placed, with_placement, write_files
from flatout.plan_pipeline.request import PlanRequest, requested_fabric, requested_training, search_context

__all__ = [
    "GoalRequest",
    "PlaceRequest",
    "PlanFiles",
    "PlanRequest",
    "placed",
    "planned",
    "planned_files",
    "requested_fabric",
    "requested_goal",
    "requested_training",
    "search_context",
    "with_goal",
    "with_network",
    "with_placement",
    "write_files",
]
