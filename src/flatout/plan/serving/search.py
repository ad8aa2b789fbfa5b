"""Find the fewest GPUs that answer a load within its limits.

In: a model, a GPU and a load. Out: for each degree of tensor parallelism, what one copy answers and how many copies it
takes, or why it cannot. Copies share the requests evenly; other ways to split a model (pipeline, expert and context
parallelism, separate prompts) are not tried.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from flatout.errors import InputError
from flatout.plan.serving.constants import StepConstants, shipped_accuracy, shipped_constants
from flatout.plan.serving.steady import SteadyState, at_concurrency, at_rate
from flatout.plan.serving.step import Served
from flatout.records.serving_plan import (
    CacheNeed,
    RefusedOption,
    ServedLoad,
    ServingAccuracy,
    ServingOption,
    ServingPlan,
)

OF_90_PERCENT = 1.645  # standard deviations on either side of a 90 % interval
LENGTHS = (1024, 4096, 16_384, 65_536, 131_072)


@dataclass(frozen=True, slots=True)
class _Most:
    """The most that one copy answers within the limits."""

    state: SteadyState
    limited_by: str


def planned(copies_of: tuple[Served, ...], load: ServedLoad) -> ServingPlan:
    """Return the plan for copies on groups of each of these sizes. Raise InputError if not one of them is possible."""
    constants = shipped_constants()
    first = copies_of[0]
    accuracy = shipped_accuracy(has_experts=first.model.expert_weights > 0)
    found = [_option(served, load, constants, accuracy) for served in copies_of]
    options = [option for option in found if isinstance(option, ServingOption)]
    options.sort(key=lambda option: (option.num_gpus, option.itl_s))
    refused = [option for option in found if isinstance(option, RefusedOption)]
    largest = copies_of[-1]
    if not options and all(option.why == "memory" for option in refused):
        raise _too_large(largest, load, refused[-1].needed_bytes or 0.0)
    shown = next((served for served in copies_of if options and served.group == options[0].tensor_parallel), largest)
    return ServingPlan(
        model=first.model.name,
        gpu=first.cluster.gpu,
        num_parameters=first.model.num_parameters,
        weights=first.weights,
        cache=first.cache,
        load=load,
        usable_bytes=shown.usable_bytes,
        step_tokens=first.largest_step.tokens,
        most_held=first.most_held,
        options=tuple(options),
        refused=tuple(refused),
        cache_needs=tuple(_cache_need(shown, tokens) for tokens in LENGTHS),
        accuracy=accuracy,
    )


def _too_large(served: Served, load: ServedLoad, needed_bytes: float) -> InputError:
    tokens = load.input_tokens + load.output_tokens
    gpus = f"each of {served.group} {served.cluster.gpu}"
    return InputError(
        f"`{served.model.name}` must fit on GPUs that share one copy, but needs {_gib(needed_bytes)} GiB on {gpus} for "
        f"one request of {tokens:,} tokens, of {_gib(served.usable_bytes)} GiB that engines use",
        hint="pass a GPU with more memory, --weights fp8 or int4, --kv-cache fp8, fewer tokens, or a smaller "
        "--max-batched-tokens",
    )


def _option(
    served: Served, load: ServedLoad, constants: StepConstants, accuracy: ServingAccuracy
) -> ServingOption | RefusedOption:
    tokens = load.input_tokens + load.output_tokens
    fitting = served.most_concurrent(tokens)
    if fitting < 1:
        needed = served.weight_bytes + served.cache_bytes(tokens)
        return RefusedOption(
            tensor_parallel=served.group, why="memory", needed_bytes=needed, usable_bytes=served.usable_bytes
        )
    most = _most_within(served, load, constants, fitting)
    if isinstance(most, RefusedOption):
        return most
    # A factor of 2 means that everything takes twice as long as predicted: half the limits apply, at half the rate.
    spread = math.exp(OF_90_PERCENT * accuracy.log_sd)
    slow, fast = (_rate_at(served, load, constants, fitting, factor) for factor in (spread, 1 / spread))
    rate = most.state.rate_per_s
    copies = _copies(load.rate_per_s, rate)
    slow_copies = _copies(load.rate_per_s, slow) if slow else None
    held = _held(served, fitting)
    shared = at_rate(served, constants, load.rate_per_s / copies, load.input_tokens, load.output_tokens, held)
    state = shared or most.state
    return ServingOption(
        tensor_parallel=served.group,
        weight_bytes=served.weight_bytes,
        cache_bytes_per_request=served.cache_bytes(tokens),
        activation_bytes=served.activation_bytes,
        most_concurrent=fitting,
        rate_per_s=rate,
        rate_interval_per_s=(slow, fast),
        limited_by=most.limited_by,
        copies=copies,
        num_gpus=copies * served.group,
        num_gpus_interval=(
            _copies(load.rate_per_s, fast) * served.group,
            slow_copies * served.group if slow_copies is not None else None,
        ),
        ttft_s=state.ttft_s,
        itl_s=state.itl_s,
        concurrent=state.concurrent,
        output_tokens_per_s=load.rate_per_s * load.output_tokens,
    )


def _most_within(served: Served, load: ServedLoad, constants: StepConstants, fitting: int) -> _Most | RefusedOption:
    """Return the most that a copy answers within the limits, or the limit that one request alone breaks."""

    def state_of(concurrent: float) -> SteadyState:
        return at_concurrency(served, constants, concurrent, load.input_tokens, load.output_tokens)

    alone = state_of(1.0)
    broken = _broken(alone, load)
    if broken is not None:
        best_s = alone.ttft_s if broken == "ttft" else alone.itl_s
        return RefusedOption(tensor_parallel=served.group, why=broken, best_s=best_s)
    held = _held(served, fitting)
    all_held = state_of(float(held))
    limited_by = _broken(all_held, load)
    if limited_by is None:
        return _Most(all_held, "batch" if held < fitting else "cache")
    within, beyond = 1.0, float(held)
    for _ in range(50):
        middle = (within + beyond) / 2
        if _broken(state_of(middle), load) is None:
            within = middle
        else:
            beyond = middle
    return _Most(state_of(within), _broken(state_of(beyond), load) or limited_by)


def _rate_at(served: Served, load: ServedLoad, constants: StepConstants, fitting: int, factor: float) -> float:
    """Return the rate that a copy answers within the limits if all takes `factor` times as long; 0 if it cannot."""
    scaled = ServedLoad(
        input_tokens=load.input_tokens,
        output_tokens=load.output_tokens,
        rate_per_s=load.rate_per_s,
        most_ttft_s=None if load.most_ttft_s is None else load.most_ttft_s / factor,
        most_itl_s=None if load.most_itl_s is None else load.most_itl_s / factor,
    )
    most = _most_within(served, scaled, constants, fitting)
    return most.state.rate_per_s / factor if isinstance(most, _Most) else 0.0


def _broken(state: SteadyState, load: ServedLoad) -> str | None:
    if load.most_ttft_s is not None and state.ttft_s > load.most_ttft_s:
        return "ttft"
    if load.most_itl_s is not None and state.itl_s > load.most_itl_s:
        return "itl"
    return None


def _held(served: Served, fitting: int) -> int:
    return min(fitting, served.most_held)


def _copies(wanted_per_s: float, rate_per_s: float) -> int:
    return max(math.ceil(wanted_per_s / rate_per_s - 1e-9), 1)


def _cache_need(served: Served, tokens: int) -> CacheNeed:
    on_one = served.cache_bytes(tokens)
    return CacheNeed(
        tokens=tokens, bytes_per_request=on_one * served.group, most_concurrent=served.most_concurrent(tokens)
    )


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:,.0f}"
