"""Read the published results of served models, and predict each of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

import flatout.catalog
from flatout.input_records import read_record
from flatout.plan.clusters import cluster
from flatout.plan.model_names import workload
from flatout.plan.serving.constants import StepConstants
from flatout.plan.serving.model import served_model
from flatout.plan.serving.steady import SteadyState, at_concurrency
from flatout.plan.serving.step import Served

_FILE = Path(flatout.catalog.__file__).with_name("serving_results.toml")


class _ResultSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    model: str
    gpu: str
    tensor_parallel: int
    weights: str
    cache: str
    rows: list[tuple[int, int, int, float, float, float]]
    attention: str = "split"
    max_batch: int = 0


class _Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    engine: str
    url: str
    read: str
    set: list[_ResultSet]
    note: str = ""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    source: list[_Source]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedResult:
    """One measured point of a served model. Times that were not published are None."""

    source: str
    engine: str
    served: Served
    input_tokens: int
    output_tokens: int
    concurrent: int  # as published, or as many as fit
    is_as_many_as_fit: bool
    output_tokens_per_s: float
    ttft_s: float | None
    itl_s: float | None

    def predicted(self, constants: StepConstants) -> SteadyState:
        """Return the state that the model predicts for this point."""
        return at_concurrency(self.served, constants, self.concurrent, self.input_tokens, self.output_tokens)


@cache
def published_results() -> tuple[PublishedResult, ...]:
    """Return all published results of the catalogue."""
    file = read_record(_FILE, _File, hint="")
    results: list[PublishedResult] = []
    for source in file.source:
        for result_set in source.set:
            served = _served(result_set)
            results += [_result(source, result_set, served, row) for row in result_set.rows]
    return tuple(results)


def _served(result_set: _ResultSet) -> Served:
    group = result_set.tensor_parallel
    machine, shares = cluster(f"{result_set.gpu}x{group}")
    return Served(
        model=served_model(workload(result_set.model)),
        cluster=machine,
        matmul_share=shares,
        group=group,
        weights=result_set.weights,
        cache=result_set.cache,
        has_own_attention=result_set.attention == "replicated",
    )


def _result(
    source: _Source, result_set: _ResultSet, served: Served, row: tuple[int, int, int, float, float, float]
) -> PublishedResult:
    input_tokens, output_tokens, concurrent, rate, ttft_ms, itl_ms = row
    most = served.most_concurrent(input_tokens + output_tokens)
    limit = result_set.max_batch * (result_set.tensor_parallel if served.has_own_attention else 1)
    return PublishedResult(
        source=source.name,
        engine=source.engine,
        served=served,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        concurrent=concurrent or min(most, limit),
        is_as_many_as_fit=concurrent == 0,
        output_tokens_per_s=rate,
        ttft_s=ttft_ms / 1e3 or None,
        itl_s=itl_ms / 1e3 or None,
    )
