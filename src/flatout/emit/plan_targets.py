"""The targets of `flatout plan --emit NAME`: settings and launch lines of a chosen layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flatout.catalog.targets import facts_of_layout, target_named
from flatout.emit import plan_deepspeed, plan_fsdp2, plan_megatron, plan_nemo, plan_torchtitan
from flatout.errors import InputError
from flatout.records.plan import FULL_TRAINING, Training
from flatout.records.plan_details import PlannedJob
from flatout.records.tuning import Emitted

PLAN_TARGETS: Mapping[str, Callable[[PlannedJob], tuple[Emitted, ...]]] = {
    "megatron": plan_megatron.emit,
    "torchtitan": plan_torchtitan.emit,
    "deepspeed": plan_deepspeed.emit,
    "fsdp2": plan_fsdp2.emit,
    "nemo": plan_nemo.emit,
}


def settings_for(target: str, job: PlannedJob) -> tuple[Emitted, ...]:
    """Return the target's files for the job. Raise InputError for a layout that the target cannot run."""
    framework = target_named(target)
    broken = framework.broken_limit(facts_of_layout(job.layout, job.workload, job.precision, job.training))
    if broken is not None:
        raise InputError(
            f"{framework.title} cannot run this layout of `{job.workload.name}`: it {broken.why}",
            hint=f"plan for it: flatout plan --for {target}",
        )
    number_types = Training(gradients=job.training.gradients, is_pure_bf16=job.training.is_pure_bf16)
    if job.training not in (FULL_TRAINING, number_types):
        raise InputError(
            f"the settings for {framework.title} train the complete model with Adam, but the plan is for adapters, "
            "frozen parts or another optimizer",
            hint="plan without --emit, and set up the optimizer and what is trained in your script",
        )
    return PLAN_TARGETS[target](job)
