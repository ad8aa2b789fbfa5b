"""What is logged of each kind of result, with the numbers worked out by hand; what is unknown is left out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from flatout.cli import main
from flatout.errors import InputError, UsageError
from flatout.run_trackers.stores import log_to_mlflow
from flatout.run_trackers.values import logged_values


def diagnosis(**job: Any) -> dict[str, Any]:
    ranks = [{"rank": rank, "steps": [{"parts_s": {"compute": 0.1 * (rank + 1), "wait": 0.0}}]} for rank in (0, 1)]
    findings = [
        {"name": "straggler", "cost_s_per_step": 0.05, "title": "rank 1 is slower"},
        {"name": "host-bound", "cost_s_per_step": 0.01, "title": "the host is slow"},
    ]
    return {"schema": "flatout/diagnosis", "version": 2, "job": job, "ranks": ranks, "findings": findings}


def test_a_diagnosis_has_its_step_parts_and_findings() -> None:
    values = logged_values(diagnosis(step_s=0.2, mfu=None, tool_version="1"))
    assert values.numbers == {
        "flatout/step_s": 0.2,
        "flatout/parts.compute": pytest.approx(0.15),
        "flatout/parts.wait": 0.0,
        "flatout/finding.straggler": 0.05,
        "flatout/finding.host-bound": 0.01,
        "flatout/num_findings": 2.0,
    }
    assert values.tags == {"flatout.schema": "flatout/diagnosis", "flatout.findings": "straggler, host-bound"}
    assert values.summary == "- rank 1 is slower\n- the host is slow"


def test_a_healthy_job_has_no_finding_and_an_unknown_list_is_no_number() -> None:
    healthy = {**diagnosis(step_s=0.2), "findings": []}
    assert logged_values(healthy).numbers["flatout/num_findings"] == 0.0
    del healthy["findings"]
    assert "flatout/num_findings" not in logged_values(healthy).numbers


def test_a_comparison_has_its_verdict_with_the_interval() -> None:
    record = {
        "schema": "flatout/comparison",
        "objective": "step_s",
        "b": {"step_s": 0.1},
        "verdict": {"verdict": "better", "speedup": 1.25, "interval": [1.1, 1.4]},
    }
    values = logged_values(record)
    assert values.numbers["flatout/verdict.speedup"] == 1.25
    assert (values.numbers["flatout/verdict.low"], values.numbers["flatout/verdict.high"]) == (1.1, 1.4)
    assert values.tags["flatout.verdict"] == "better"


def test_a_tuning_has_its_verdict_and_its_changes() -> None:
    record = {
        "schema": "flatout/tuning",
        "baseline_step_s": 0.2,
        "tuned_step_s": 0.1,
        "verdict": "better",
        "speedup": 2.0,
        "interval": [1.8, 2.2],
        "changes": [{"name": "ddp-no-sync=4"}, {"name": "dataloader-workers=1"}],
    }
    values = logged_values(record)
    assert values.numbers["flatout/tuned_step_s"] == 0.1
    assert (values.numbers["flatout/verdict.speedup"], values.numbers["flatout/verdict.high"]) == (2.0, 2.2)
    assert values.tags["flatout.verdict"] == "better"
    assert values.tags["flatout.changes"] == "ddp-no-sync=4, dataloader-workers=1"


def test_a_ledger_has_its_goodput_and_shares() -> None:
    classes = [{"name": "productive", "share": 0.8}, {"name": "restart", "share": 0.2}, {"name": "hang", "share": None}]
    values = logged_values({"schema": "flatout/ledger-report", "goodput": 0.8, "classes": classes})
    assert values.numbers["flatout/goodput"] == 0.8
    assert values.numbers["flatout/share.restart"] == 0.2
    assert "flatout/share.hang" not in values.numbers


def test_what_is_not_a_result_is_refused() -> None:
    with pytest.raises(InputError, match="must have one of the schemas"):
        logged_values({"schema": "flatout/plan"})


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UsageError, match="`--mlflow` needs mlflow, which is not installed") as raised:
        log_to_mlflow(logged_values(diagnosis(step_s=0.2)), {})
    assert raised.value.hint == "pip install mlflow-skinny"


def test_a_tracker_must_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["flatout", "log", str(tmp_path / "x.json")])
    assert main() == 2
    assert capsys.readouterr().err.startswith("error: a tracker is needed: --mlflow, --wandb or --tensorboard")
