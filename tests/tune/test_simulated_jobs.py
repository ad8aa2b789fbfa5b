"""A slice of `benchmarks/tune_simulated_jobs.py`: what five minutes prove of jobs whose truth is known."""

from __future__ import annotations

import pytest
from benchmarks.tune_simulated_jobs import JOBS, tune_once
from tests.tune import simulated


@pytest.mark.parametrize("name", ["2x", "1.1x", "noisy, 2x", "nothing to gain"])
def test_five_minutes_prove_a_gain_and_make_none_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("STEP_S", "COSTS"):  # which the benchmark sets for each job
        monkeypatch.setattr(simulated, variable, getattr(simulated, variable))
    (job,) = [job for job in JOBS if job.name == name]
    row = tune_once(job, seed=1, budget_s=300.0)
    assert row["spent_s"] <= 300
    if name == "nothing to gain":
        assert row["verdict"] is None
        return
    low, high = row["interval"]
    assert (row["verdict"], low <= job.true_speedup <= high) == ("better", True)
    assert row["verdict_s"] < 260  # four candidates have a trial before
