"""A slice of `benchmarks/block_error_rates.py`: identical arms are hardly ever told apart, planted gains are found."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

KEPT = Path(__file__).parents[2] / "benchmarks" / "results" / "block_error_rates.json"
ERROR_RATE = 0.05
NUM_JOBS = 60
# Of 60 jobs with a rate of 5 %, more than nine have a false claim in one of a thousand slices.
MOST_FALSE = 9 / NUM_JOBS


def _benchmark() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks" / "block_error_rates.py"
    spec = importlib.util.spec_from_file_location("block_error_rates", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


BENCHMARK = _benchmark()


@pytest.mark.parametrize("name", list(BENCHMARK.SCENARIOS))
def test_identical_arms_are_hardly_ever_told_apart(name: str) -> None:
    has_power = name == "white 5 %"
    rates = BENCHMARK.rates(BENCHMARK.SCENARIOS[name], num_jobs=NUM_JOBS, seed=2, has_power=has_power)
    assert rates.false_claims <= MOST_FALSE
    assert not has_power or rates.power >= 0.95


def test_orders_that_favour_an_arm_by_the_period_of_the_job_are_left_to_chance() -> None:
    """Work every four blocks always meets the same place of a unit: with one fixed order, the arms would differ."""
    scenario = BENCHMARK.SCENARIOS["every 4 blocks, unknown"]
    rates = BENCHMARK.rates(scenario, num_jobs=NUM_JOBS, seed=3, has_power=False)
    assert rates.false_claims <= MOST_FALSE


def test_the_kept_results_are_within_the_error_rate() -> None:
    kept = json.loads(KEPT.read_text())
    assert kept["jobs"] >= 2000
    assert kept["rates"].keys() == BENCHMARK.SCENARIOS.keys()
    assert max(rates["false_claims"] for rates in kept["rates"].values()) <= ERROR_RATE
