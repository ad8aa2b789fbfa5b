"""Say what a plan for serving found: the same sentences and cells for the terminal and the page."""

from __future__ import annotations

from flatout.records.serving_plan import (
    RefusedOption,
    ServingAccuracy,
    ServingOption,
    ServingPlan,
)
from flatout.report.phrases import counted
from flatout.units import num_bytes, number, percent, seconds

OPTION_HEADER = ["GPUs", "90 %", "copies", "TP", "TTFT", "ITL", "at a time", "copy", "limit"]
CACHE_HEADER = ["tokens of a request", "KV cache of one", "fit in a copy"]
LIMITED_BY = {
    "ttft": "TTFT",
    "itl": "ITL",
    "cache": "KV cache",
    "batch": "batch",
}
KINDS = {"dense": "dense models", "experts": "mixtures of experts"}


def headline(plan: ServingPlan) -> str:
    """Return the answer in one sentence."""
    if not plan.options:
        return f"{plan.model} on {plan.gpu}: no number of GPUs answers within these limits"
    best = plan.options[0]
    gpus = counted(best.num_gpus, "GPU")
    copies = "1 copy" if best.copies == 1 else f"{best.copies:,} copies of {best.tensor_parallel} each"
    return f"{plan.model} on {gpus} ({plan.gpu}): {copies}"


def facts(plan: ServingPlan) -> list[str]:
    """Return what was asked."""
    load = plan.load
    limits = [
        f"mean {name} at most {seconds(most_s)}"
        for name, most_s in (("TTFT", load.most_ttft_s), ("ITL", load.most_itl_s))
        if most_s is not None
    ]
    return [
        f"{number(plan.num_parameters)} parameters in {plan.weights}, KV cache in {plan.cache}",
        f"{load.rate_per_s:g} requests a second of {load.input_tokens:,} tokens in and {load.output_tokens:,} out",
        *(limits or ["no limit of latency"]),
    ]


def option_cells(option: ServingOption) -> list[str]:
    """Return the cells of one row under OPTION_HEADER."""
    low, high = option.num_gpus_interval
    return [
        f"{option.num_gpus:,}",
        f"{low:,} to {high:,}" if high is not None else f"{low:,} to none",
        f"{option.copies:,}",
        str(option.tensor_parallel),
        seconds(option.ttft_s),
        seconds(option.itl_s),
        f"{option.concurrent:,.0f} of {option.most_concurrent:,}",
        f"{option.rate_per_s:.3g}/s",
        LIMITED_BY[option.limited_by],
    ]


def refused_words(refused: RefusedOption, plan: ServingPlan) -> str:
    """Say why a degree of tensor parallelism is not offered."""
    if refused.why == "memory":
        needed = num_bytes(refused.needed_bytes or 0.0)
        usable = num_bytes(refused.usable_bytes or plan.usable_bytes)
        return f"one request needs {needed} on each GPU, of {usable} that engines use"
    name = {"ttft": "first token", "itl": "next token"}[refused.why]
    return f"the {name} of a request that is alone takes {seconds(refused.best_s or 0.0)}"


def legend(plan: ServingPlan) -> str:
    """Say what the columns of the options are."""
    return (
        "GPUs: of all copies, with a 90 % interval. TP: GPUs that share a copy. At a time: requests that a copy holds "
        "in the mean, of those whose KV cache fits. Copy: requests that it answers. Batch: the "
        f"{plan.most_held:,} requests that the engine holds at most."
    )


def memory_sentence(plan: ServingPlan) -> str:
    """Say what one GPU of the best option holds."""
    best = plan.options[0]
    tokens = plan.load.input_tokens + plan.load.output_tokens
    weights, cache = num_bytes(best.weight_bytes), num_bytes(best.cache_bytes_per_request)
    return (
        f"Each GPU holds {weights} of weights and {cache} of KV cache for each request of {tokens:,} tokens, of "
        f"{num_bytes(plan.usable_bytes)} that engines use of it by default. {num_bytes(best.activation_bytes)} more "
        f"are kept for activations of {plan.step_tokens:,} tokens in one step."
    )


def accuracy_sentence(accuracy: ServingAccuracy) -> str:
    """Say how wrong the predictions were on published results, and what the interval is."""
    results = f"{accuracy.num_results} published results of {KINDS[accuracy.models]}"
    return (
        f"On {results} from {accuracy.num_sources} sources, none of which had a part in the fit that judged it, the "
        f"predicted output rate is off by {percent(accuracy.mean_error)} in the mean. The intervals cover 90 % of such "
        "errors. Means are planned, not p99: measure those before you buy."
    )
