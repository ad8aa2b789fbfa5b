"""The targets of `flatout plan --emit NAME`: settings and launch lines of a chosen layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flatout.emit import plan_deepspeed, plan_fsdp2, plan_megatron, plan_nemo, plan_torchtitan
from flatout.records.plan_details import PlannedJob
from flatout.records.tuning import Emitted

PLAN_TARGETS: Mapping[str, Callable[[PlannedJob], tuple[Emitted, ...]]] = {
    "megatron": plan_megatron.emit,
    "torchtitan": plan_torchtitan.emit,
    "deepspeed": plan_deepspeed.emit,
    "fsdp2": plan_fsdp2.emit,
    "nemo": plan_nemo.emit,
}
