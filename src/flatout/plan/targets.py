"""Keep the layouts that the target of a plan can run, and count the others by the limit that they break.

The limits are data: `catalog/targets.toml`. The target `any` is met if at least one framework can run the layout.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from flatout.catalog.targets import NO_LIMIT, Target, target_named, targets, with_workload
from flatout.errors import InputError
from flatout.plan.layouts import Columns, TrainingSpec, input_columns
from flatout.records.plan import ExcludedLayouts

ANY = "any"
MOST_REASONS = 3  # reasons in one sentence


def runnable(
    spec: TrainingSpec, columns: Columns, *, target: str, precision: str
) -> tuple[Columns, tuple[ExcludedLayouts, ...]]:
    """Return the layouts that the target can run, and why the others cannot be run; the most frequent reason first.

    If no framework can run any of the layouts, such as those with a fixed schedule, `any` keeps all of them: the user
    may have another framework.
    """
    if not target:
        return columns, ()
    num_layouts = len(columns["tp"])
    candidates = targets() if target == ANY else (target_named(target),)
    facts = with_workload(input_columns(columns, slice(None)), spec.workload, precision, spec.training)
    broken = [candidate.broken_limits(facts, num_layouts) for candidate in candidates]
    can_run = np.any([limits == NO_LIMIT for limits in broken], axis=0)
    # If none of several can run a layout, the one that can run the most layouts is cited.
    ablest = int(np.argmax([np.count_nonzero(limits == NO_LIMIT) for limits in broken]))
    excluded = _counted(candidates[ablest], broken[ablest][~can_run])
    if target == ANY and not can_run.any():
        return columns, excluded
    return {name: values[can_run] for name, values in columns.items()}, excluded


def _counted(target: Target, broken: npt.NDArray[np.intp]) -> tuple[ExcludedLayouts, ...]:
    indices, counts = np.unique(broken, return_counts=True)
    reasons = [
        ExcludedLayouts(framework=target.title, why=target.limit[index].why, num_layouts=int(count))
        for index, count in zip(indices, counts, strict=True)
    ]
    return tuple(sorted(reasons, key=lambda reason: -reason.num_layouts))


def none_runnable(
    spec: TrainingSpec, target: str, excluded: Sequence[ExcludedLayouts], fixed: Sequence[str]
) -> InputError:
    """Return the error for a target that can run no layout with the `fixed` parameters."""
    title = target_named(target).title
    asked = f"with {', '.join(fixed)} " if fixed else ""
    reasons = "; ".join(f"it {reason.why}" for reason in excluded[:MOST_REASONS])
    way_out = f"remove --fix {' --fix '.join(fixed)}, or " if fixed else ""
    return InputError(
        f"{title} can run no layout of `{spec.workload.name}` {asked}on {spec.cluster.num_gpus} GPUs: {reasons}",
        hint=f"{way_out}pass another --for: {', '.join(each.name for each in targets())} or {ANY}",
    )
