"""Make the schedule of blocks for changes that can be switched while a job runs.

In: sets of changes, without those that are applied to the whole job. Out: FLATOUT_BLOCKS for `inside.blocks`, or the
reason why a change needs a fresh start. A change can be switched if taking it back leaves nothing behind that makes the
steps after it faster or slower for longer than a few steps.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence

import msgspec

from flatout.records.change import Change, ChangeSet, JobFacts, Patch, Scalar

UNIT = 4  # blocks: two of the baseline and two with changes
MIN_STEPS = 10
MIN_BLOCK_S = 0.25
DDP_TIMED_STEPS = 10  # DistributedDataParallel waits for the GPU in the first steps of a new reducer, to time them
DEFAULT_PREFETCH = 2  # torch's
_THREADS = {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}


class BlockArm(msgspec.Struct, frozen=True, kw_only=True):
    """A set of changes as settings that can be switched."""

    name: str
    settings: tuple[Patch, ...]
    carry_over: int  # steps after a switch that are not measured, by the kinds of the settings
    keeps_spikes: bool = False  # it acts on long steps, so none is set aside


def block_arm(changes: ChangeSet, facts: JobFacts) -> BlockArm | str:
    """Return the changes as one arm, or why one of them cannot be switched while the job runs."""
    problems = (_why_not(change, facts) for change in changes.changes)
    problem = next((problem for problem in problems if problem is not None), None)
    if problem is not None:
        return problem
    settings = changes.patches
    if changes.environment:
        number = int(changes.environment["OMP_NUM_THREADS"])
        settings = (*settings, Patch(name="threads", parameters={"number": number}))
    if not settings:
        return "there is no change to switch"
    return BlockArm(
        name=changes.name,
        settings=settings,
        carry_over=max(_carry_over(setting, facts) for setting in settings),
        keeps_spikes=any(setting.name in _ACT_ON_SPIKES for setting in settings),
    )


def _why_not(change: Change, facts: JobFacts) -> str | None:
    """Return why the change cannot be switched, after its name; None if it can."""
    if change.argument is not None:
        return f"{change.name} is an argument of the script, which reads it once"
    if change.launch:
        return f"{change.name} is an option of the launcher, which reads it once"
    if not change.environment.keys() <= _THREADS:
        return f"{change.name} sets variables that are read once, when the job starts"
    if change.patch is None:
        return None
    check = SWITCHABLE.get(change.patch.name)
    if check is None:
        reason: str | None = WHY_NOT.get(change.patch.name, "cannot be switched while the job runs")
    else:
        reason = check(change.patch.parameters, facts)
    return None if reason is None else f"{change.name} {reason}"


Check = Callable[[Mapping[str, Scalar], JobFacts], str | None]


def _always(parameters: Mapping[str, Scalar], facts: JobFacts) -> str | None:
    del parameters, facts
    return None


def _collection(parameters: Mapping[str, Scalar], facts: JobFacts) -> str | None:
    del facts
    if parameters.get("how") == "freeze":
        return "needs a full collection to be taken back, which puts off those that it is compared with"
    if parameters.get("how") == "together":
        return "collects so rarely that a block holds no fair share of its collections"
    return None


def _loader(parameters: Mapping[str, Scalar], facts: JobFacts) -> str | None:
    if parameters.get("persistent_workers") or parameters.get("multiprocessing_context"):
        return "acts where epochs begin, which are too rare for blocks"
    if facts.loader_is_iterable:
        return "cannot be switched within an epoch of an iterable dataset, whose position is in its iterator"
    return None


def _ddp(parameters: Mapping[str, Scalar], facts: JobFacts) -> str | None:
    del facts
    return "is fixed in the first step" if parameters.get("static_graph") else None


# Patches that can be switched, each with what may prevent it.
SWITCHABLE: Mapping[str, Check] = {
    "autocast": _always,
    "bind_cores": _always,
    "dataloader": _loader,
    "ddp": _ddp,
    "ddp_hook": _always,
    "ddp_no_sync": _always,
    "garbage_collection": _collection,
    "non_blocking_copies": _always,
    "tf32": _always,
}
_ACT_ON_SPIKES = {"garbage_collection", "dataloader", "bind_cores"}
WHY_NOT: Mapping[str, str] = {
    "cudnn_benchmark": "has no effect on shapes that cuDNN has seen: it keeps the plan that it chose first",
    "compile": "compiles for longer than a block",
    "channels_last": "changes the layout of the weights for the rest of the job",
    "activation_checkpointing": "changes what the allocator holds, for longer than a block",
    "keep_cache": "changes what the allocator holds, for longer than a block",
    "optimizer": "is read when the optimizer is made, which keeps state in its form",
    "fused_attention": "is read when the model is built",
    "background_checkpoint": "acts on checkpoints, which are too rare for blocks",
    "fsdp2": "is read when the model is sharded",
    "work_share": "is read when the loader is made",
    "local_sgd": "lets the weights of the ranks differ, also in later blocks",
}


def _carry_over(setting: Patch, facts: JobFacts) -> int:
    """Return the steps after a switch that differ by the kind of the setting, in either direction."""
    if setting.name in ("ddp", "ddp_hook"):
        # Buckets are ordered after the first step, and PowerSGD begins in the step after.
        return DDP_TIMED_STEPS + 3
    if setting.name == "dataloader":
        own = _batches_ahead(facts.loader_workers, facts.loader_prefetch)
        workers = setting.parameters.get("num_workers", facts.loader_workers)
        wanted = _batches_ahead(workers, setting.parameters.get("prefetch_factor", facts.loader_prefetch))
        return 2 + math.ceil((own + wanted) / (facts.passes_per_step or 1))
    return 2


def _batches_ahead(workers: Scalar | None, prefetch: Scalar | None) -> int:
    """Return the number of batches that workers have ready or in work."""
    return int(workers or 0) * int(prefetch or DEFAULT_PREFETCH)


def orders(num_arms: int, num_units: int, numbers: random.Random) -> list[int]:
    """Return the arm of each block, 0 for the baseline: `num_units` units of each arm.

    All arms have a unit before one has the next. A unit is A X X A or X A A X, equally often, by chance:
    work with a period of some blocks cannot favour an arm, and neither can a drift.
    """
    begins_with_baseline: dict[int, list[bool]] = {}
    for arm in range(1, num_arms + 1):
        begins = [number % 2 == 0 for number in range(num_units)]
        if num_units % 2 and numbers.random() < 0.5:
            begins = [not flag for flag in begins]
        numbers.shuffle(begins)
        begins_with_baseline[arm] = begins
    order: list[int] = []
    for number in range(num_units):
        arms = list(range(1, num_arms + 1))
        numbers.shuffle(arms)
        for arm in arms:
            order += [0, arm, arm, 0] if begins_with_baseline[arm][number] else [arm, 0, 0, arm]
    return order


def schedule_text(
    arms: Sequence[BlockArm],
    *,
    num_units: int,
    max_s: float,
    seed: int,
    min_steps: int = MIN_STEPS,
    min_block_s: float = MIN_BLOCK_S,
) -> str:
    """Return the value of FLATOUT_BLOCKS: `num_units` comparisons of each arm, or as many as `max_s` seconds allow."""
    return json.dumps(
        {
            "arms": [
                {
                    "name": arm.name,
                    "settings": [msgspec.to_builtins(setting) for setting in arm.settings],
                    "carry_over": arm.carry_over,
                }
                for arm in arms
            ],
            "order": orders(len(arms), num_units, random.Random(seed)),
            "unit": UNIT,
            "min_steps": min_steps,
            "min_block_s": min_block_s,
            "max_s": max_s,
        }
    )
