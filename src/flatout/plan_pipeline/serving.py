"""Turn the options of `flatout plan serve` into a plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from flatout.plan.clusters import cluster, of_system, system
from flatout.plan.model_names import executed_file, workload
from flatout.plan.serving.activations import LargestStep
from flatout.plan.serving.model import ServedModel, served_model
from flatout.plan.serving.search import planned
from flatout.plan.serving.step import MOST_REQUESTS, Served
from flatout.plan.serving.types import cache_bytes, weight_type
from flatout.records.plan import ClusterSpec
from flatout.records.serving_plan import ServedLoad, ServingPlan

MOST_TOKENS = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingRequest:
    """What to serve, on which GPU, and under which load."""

    model: str
    gpu: str
    weights: str
    cache: str | None  # None: the weights' type if it has 16 bits or more, else bf16
    load: ServedLoad
    step_tokens: int = LargestStep().tokens
    most_held: int | None = None  # None: as many as engines hold by default


def planned_serving(request: ServingRequest, note: Callable[[str], object]) -> ServingPlan:
    """Return the plan. `note` is called before one of the user's files is executed.

    Raises UsageError for an unknown type, and InputError for a model or a GPU that cannot be planned.
    """
    weight_type(request.weights)
    cache = request.cache or _cache_of(request.weights)
    cache_bytes(cache)
    machine, shares = _machine(request.gpu)
    if (file := executed_file(request.model)) is not None:
        note(
            f"note: `--model` executes `{file}` as you, with all that you may do: plan only with a file that you trust"
        )
    model = served_model(workload(request.model))
    sampled = LargestStep().requests if request.most_held is None else request.most_held
    copies_of = tuple(
        Served(
            model=model,
            cluster=msgspec.structs.replace(machine, num_gpus=group),
            matmul_share=shares,
            group=group,
            weights=request.weights,
            cache=cache,
            largest_step=LargestStep(tokens=request.step_tokens, requests=sampled),
            most_held=request.most_held or MOST_REQUESTS,
        )
        for group in _groups(model, machine)
    )
    return planned(copies_of, request.load)


def _cache_of(weights: str) -> str:
    return weights if weights in ("fp32", "fp16") else "bf16"


def _machine(gpu: str) -> tuple[ClusterSpec, dict[str, float]]:
    """Return a cluster of the GPU: of a system's name, or of a TOML file that describes one."""
    if gpu.endswith(".toml"):
        return cluster(gpu)
    return of_system(gpu, system(gpu), 1)


def _groups(model: ServedModel, machine: ClusterSpec) -> tuple[int, ...]:
    """Return the degrees of tensor parallelism: powers of 2 within the GPUs' own links that split the heads evenly."""
    groups = [2**power for power in range(8) if 2**power <= max(machine.nvlink_domain, 1)]
    return tuple(group for group in groups if model.num_heads % group == 0)
