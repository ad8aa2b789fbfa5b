"""The records of a plan for serving: what is asked, and for each degree of tensor parallelism what it would take."""

from __future__ import annotations

import msgspec


class ServedLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The requests that a language model has to answer, and the limits of their mean times."""

    input_tokens: int  # of a request, in the mean
    output_tokens: int
    rate_per_s: float  # requests that come in a second
    most_ttft_s: float | None = None  # limit of the mean time to the first token; null: none
    most_itl_s: float | None = None  # limit of the mean time between two tokens of a request; null: none


class ServingOption(msgspec.Struct, frozen=True, kw_only=True):
    """Copies of the model, each on `tensor_parallel` GPUs, that answer the load within its limits.

    Intervals are 90 % intervals by the errors on published results whose source had no part in the fit.
    """

    tensor_parallel: int
    weight_bytes: float  # on one GPU
    cache_bytes_per_request: float  # on one GPU, for all tokens of one request
    activation_bytes: float = 0.0  # on one GPU, that the engine keeps for its largest step
    most_concurrent: int  # requests whose caches fit at a time
    rate_per_s: float  # requests that one copy answers within the limits
    rate_interval_per_s: tuple[float, float]
    limited_by: str  # why a copy does not take more: ttft, itl, cache, or batch (what engines hold by default)
    copies: int
    num_gpus: int
    num_gpus_interval: tuple[int, int | None]  # null: at the slow end of the interval no number of copies is enough
    # at the load's rate, spread over the copies
    ttft_s: float
    itl_s: float
    concurrent: float  # requests in one copy at a time, in the mean
    output_tokens_per_s: float  # of all copies


class RefusedOption(msgspec.Struct, frozen=True, kw_only=True):
    """A degree of tensor parallelism that cannot answer the load."""

    tensor_parallel: int
    why: str  # memory, ttft, itl, or heads
    needed_bytes: float | None = None  # on one GPU, for one request
    usable_bytes: float | None = None  # of one GPU's memory, for weights and cache
    best_s: float | None = None  # the time of a request that is alone, where that is above its limit


class CacheNeed(msgspec.Struct, frozen=True, kw_only=True):
    """The cache that requests of one length take, and how many fit on the GPUs of the best option."""

    tokens: int
    bytes_per_request: float  # on all GPUs of a copy together
    most_concurrent: int


class ServingAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """How wrong predictions were on published results, none of whose source had a part in the fit."""

    models: str  # `dense`, or `experts` for mixtures of experts
    num_results: int
    num_sources: int
    mean_error: float  # of the output tokens/s, as a share of the measured rate: mean over results
    log_sd: float  # standard deviation of the logarithm of measured / predicted, each source counted equally


class ServingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The fewest GPUs that serve a model at a load within its limits."""

    model: str
    gpu: str
    num_parameters: int
    weights: str
    cache: str
    load: ServedLoad
    usable_bytes: float  # of one GPU's memory, for weights and cache, with the best option
    step_tokens: int = 8192  # that the engine computes in one step, at most
    most_held: int = 1024  # requests that it holds at a time, at most
    options: tuple[ServingOption, ...]  # fewest GPUs first; may be empty
    refused: tuple[RefusedOption, ...]
    cache_needs: tuple[CacheNeed, ...]
    accuracy: ServingAccuracy
    notes: tuple[str, ...] = ()
