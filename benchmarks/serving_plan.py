"""Fit `flatout plan serve` to published results, and judge it on sources that had no part in the fit.

In: `catalog/serving_results.toml`. Out: with --write, the constants that Flatout ships (`plan/serving/constants.json`)
and a table of errors by source, each by constants that were fitted to all other sources (`results/serving_plan.json`).

    .venv/bin/python benchmarks/serving_plan.py [--write]
"""

from __future__ import annotations

import argparse
import math
from dataclasses import asdict
from pathlib import Path

import msgspec
import numpy as np

from flatout.plan.serving import constants as shipped
from flatout.plan.serving.fit import fitted, held_out, log_error
from flatout.plan.serving.published import PublishedResult, published_results
from flatout.records.serving_plan import ServingAccuracy

KEPT = Path(__file__).parent / "results" / "serving_plan.json"
CONSTANTS = Path(shipped.__file__).with_name("constants.json")


class SourceErrors(msgspec.Struct, frozen=True, kw_only=True):
    """The errors on one source's results of one kind of model."""

    source: str
    models: str
    num_results: int
    mean_error: float  # of the output rate, as a share of the measured one
    bias: float  # mean of predicted / measured - 1
    within_interval: float  # share of the results inside the shipped 90 % interval
    ttft_error: float | None  # of results whose requests all fit
    itl_error: float | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the constants and the table")
    arguments = parser.parse_args()
    results = published_results()
    by_source = held_out(results)
    accuracy = tuple(_accuracy(results, by_source, models) for models in ("dense", "experts"))
    table = [
        _errors(source, models, results, by_source[source], next(a for a in accuracy if a.models == models))
        for source in by_source
        for models in ("dense", "experts")
        if any(result.source == source and _models(result) == models for result in results)
    ]
    everything = fitted(results)
    print(f"{'source':26s}{'models':9s}{'n':>3s} {'error':>7s} {'bias':>7s} {'in 90 %':>8s} {'TTFT':>7s} {'ITL':>7s}")
    for row in table:
        times = "".join(
            f"{share:8.0%}" if share is not None else f"{'-':>8s}" for share in (row.ttft_error, row.itl_error)
        )
        print(
            f"{row.source:26s}{row.models:9s}{row.num_results:3d} {row.mean_error:7.0%} {row.bias:+7.0%} "
            f"{row.within_interval:8.0%}{times}"
        )
    for each in accuracy:
        print(f"{each.models}: {each.num_results} results, mean error {each.mean_error:.0%}, log sd {each.log_sd:.2f}")
    if arguments.write:
        constants = {name: float(f"{value:.4g}") for name, value in asdict(everything).items()}
        CONSTANTS.write_bytes(_pretty({"constants": constants, "accuracy": accuracy}))
        kept = {
            "judged": "each source by constants fitted to all other sources",
            "accuracy": accuracy,
            "sources": table,
        }
        KEPT.write_bytes(_pretty(kept))


def _pretty(content: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(content), indent=1).rstrip() + b"\n"


def _models(result: PublishedResult) -> str:
    return "experts" if result.served.model.expert_weights else "dense"


def _accuracy(results: tuple[PublishedResult, ...], by_source: dict[str, object], models: str) -> ServingAccuracy:
    errors: dict[str, list[float]] = {}
    for result in results:
        if _models(result) == models:
            errors.setdefault(result.source, []).append(log_error(result, by_source[result.source]))  # type: ignore[arg-type]
    squares = [float(np.mean(np.square(of_source))) for of_source in errors.values()]
    every = [error for of_source in errors.values() for error in of_source]
    return ServingAccuracy(
        models=models,
        num_results=len(every),
        num_sources=len(errors),
        mean_error=round(float(np.mean([abs(math.exp(-error) - 1) for error in every])), 4),
        log_sd=round(math.sqrt(float(np.mean(squares))), 4),
    )


def _errors(source, models, results, constants, accuracy) -> SourceErrors:  # type: ignore[no-untyped-def]
    own = [result for result in results if result.source == source and _models(result) == models]
    logs = np.array([log_error(result, constants) for result in own])
    shares = np.exp(-logs) - 1
    return SourceErrors(
        source=source,
        models=models,
        num_results=len(own),
        mean_error=round(float(np.mean(np.abs(shares))), 4),
        bias=round(float(np.mean(shares)), 4),
        within_interval=round(float(np.mean(np.abs(logs) <= 1.645 * accuracy.log_sd)), 4),
        ttft_error=_time_error(own, constants, "ttft_s"),
        itl_error=_time_error(own, constants, "itl_s"),
    )


def _time_error(own, constants, name: str) -> float | None:  # type: ignore[no-untyped-def]
    shares = []
    for result in own:
        measured = getattr(result, name)
        fits = result.concurrent <= result.served.most_concurrent(result.input_tokens + result.output_tokens)
        if measured is not None and fits:
            shares.append(abs(getattr(result.predicted(constants), name) / measured - 1))
    return round(float(np.mean(shares)), 4) if shares else None


if __name__ == "__main__":
    main()
