"""Explain why no layout is valid or none fits into memory, and find the nearest number of GPUs that works."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np

from flatout.errors import InputError
from flatout.plan.counts import num_parameters
from flatout.plan.fits import USABLE
from flatout.plan.layouts import TrainingSpec, all_layouts, degrees
from flatout.plan.search_context import Array, SearchContext, any_fits
from flatout.plan.targets import runnable
from flatout.units import num_bytes, percent

MOST_DOUBLINGS = 11
CERTAIN = 0.95  # a layout above this probability of running out of memory is not worth a try


def no_valid_layout(spec: TrainingSpec) -> InputError:
    """Return the error for a training without any valid layout: the batch must split over the replicas."""
    workload, num_gpus = spec.workload, spec.cluster.num_gpus
    nearest = _nearest_valid(spec)
    return InputError(
        f"no layout of `{workload.name}` divides: tp * pp * cp * dp must equal {num_gpus} GPUs, with tp dividing "
        f"{workload.num_heads} heads, pp at most {workload.num_layers} layers, and dp dividing a global batch "
        f"of {spec.global_batch}",
        hint=f"the nearest number of GPUs that works is {nearest}" if nearest else "change --global-batch",
    )


def _nearest_valid(spec: TrainingSpec) -> int | None:
    """Return the number of GPUs nearest to the cluster's that some layout divides."""
    num_gpus = spec.cluster.num_gpus
    for distance in range(1, num_gpus):
        for nearby in (num_gpus - distance, num_gpus + distance):
            if _has_valid_layout(spec, nearby):
                return nearby
    return None


def _has_valid_layout(spec: TrainingSpec, num_gpus: int) -> bool:
    resized = replace(spec, cluster=msgspec.structs.replace(spec.cluster, num_gpus=num_gpus))
    replicas = (num_gpus // (split.tp * split.pp * split.cp) for split in degrees(resized))
    return any(spec.global_batch % dp == 0 for dp in replicas)


def too_large(context: SearchContext, totals: Array, probabilities: Array, fixed: tuple[str, ...]) -> InputError:
    """Return the error if no layout is below the risk.

    Per layout, `totals` are the bytes of the rank that uses the most memory, and `probabilities` those of running out.
    """
    spec = context.spec
    num_gpus = spec.cluster.num_gpus
    safest = int(np.lexsort((totals, probabilities))[0])
    probability, expected = float(probabilities[safest]), num_bytes(float(totals[safest]))
    usable = num_bytes(USABLE * spec.cluster.memory_bytes)
    nonetheless = f"; --risk {_next_risk(probability)} plans nonetheless" if probability < CERTAIN else ""
    return InputError(
        f"a layout must run out of memory with a probability below {percent(context.risk)}, but the safest of "
        f"{len(totals):,} layouts of `{spec.workload.name}` ({num_parameters(spec.workload):,} parameters) on "
        f"{num_gpus} GPUs has {percent(probability)}: it is expected to need {expected} of the usable {usable} per GPU",
        hint=_hint_for_room(context, fixed) + nonetheless,
    )


def _next_risk(probability: float) -> int:
    """Return the next whole number of per cent above a probability."""
    return int(probability * 100) + 1


def _hint_for_room(context: SearchContext, fixed: tuple[str, ...]) -> str:
    fitting = _fitting_num_gpus(context)
    if fixed:
        with_host = replace(context, spec=replace(context.spec, offloads=True))
        if _any_runnable_fits(with_host):
            num_gpus = context.spec.cluster.num_gpus
            return f"other layouts fit on {num_gpus} GPUs: remove --fix {' --fix '.join(fixed)}"
        if fitting:
            return f"other layouts than those with {', '.join(fixed)} fit on {fitting:,} GPUs of this kind"
    if fitting:
        return f"it fits on {fitting:,} GPUs of this kind"
    return f"it does not fit on up to {1 << MOST_DOUBLINGS:,} times as many GPUs of this kind"


def _fitting_num_gpus(context: SearchContext) -> int | None:
    """Return the smallest number of GPUs, by doublings of the cluster's, on which a layout fits.

    As in a plan for those GPUs, the optimizer is in the host's memory if nothing else fits.
    """
    spec = context.spec
    for doublings in range(1, MOST_DOUBLINGS + 1):
        num_gpus = spec.cluster.num_gpus << doublings
        if num_parameters(spec.workload) > num_gpus * spec.cluster.memory_bytes:
            continue  # its parameters, at a byte each, are more than the memory of all: no layout need be tried
        cluster = msgspec.structs.replace(spec.cluster, num_gpus=num_gpus)
        larger = replace(context, spec=replace(spec, cluster=cluster, offloads=True))
        if _any_runnable_fits(larger):
            return num_gpus
    return None


def _any_runnable_fits(context: SearchContext) -> bool:
    """Whether a layout that the plan's target can run fits into memory."""
    spec = context.spec
    columns, _ = runnable(spec, all_layouts(spec), target=context.target, precision=context.precision)
    return any_fits(context, columns)
