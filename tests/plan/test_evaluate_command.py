"""`flatout plan evaluate`, and `--calibrate`, as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.test_plan import PLAN, run


def test_an_evaluation_has_the_keys_of_the_contract(
    sample: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "plan", "evaluate", str(sample), "--json") == 0
    said = json.loads(capfd.readouterr().out)
    assert said["schema"] == "flatout/plan-evaluation"
    assert {"source", "rows", "mape", "mape_calibrated", "bias", "coverage_90", "memory_mape"} <= set(
        said["sources"][0]
    )
    assert {"group", "n", "regret_top1", "regret_top3", "regret_top5"} <= set(said["groups"][0])
    assert isinstance(said["mape"], float) and isinstance(said["mape_calibrated"], float)


def test_an_evaluation_as_text(
    sample: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "plan", "evaluate", str(sample), "--shipped") == 0
    assert "Korthikanti" in capfd.readouterr().out


def test_runs_of_ones_own_correct_a_plan(
    sample: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *PLAN, "--calibrate", str(sample), "--json") == 0
    assert json.loads(capfd.readouterr().out)["calibrated_with"] > 30
