"""A goodput ledger that Flatout 0.1.0 wrote, of a run that failed once and was started again, is still read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flatout.cli import app

GOLDEN = Path(__file__).with_name("golden") / "of_0_1.jsonl"


def test_each_second_is_counted_as_it_was_then() -> None:
    done = CliRunner().invoke(app, ["ledger", "--json", str(GOLDEN)])
    assert done.exit_code == 0
    report = json.loads(done.stdout)
    assert (report["runs"], report["attempts"], report["failures"], report["hangs"]) == (1, 2, 1, 0)
    assert (report["damaged_lines"], report["unfinished_runs"], report["steps"]) == (0, 0, 251)
    seconds = {one["name"]: one["device_s"] for one in report["classes"]}
    written = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    for name in ("productive", "recomputed", "start_up", "restart", "other"):
        expected = sum(line["ns"].get(name, 0) for line in written if line["event"] == "seconds") / 1e9
        assert seconds[name] == pytest.approx(expected) and expected > 0
    assert report["allocated_device_s"] == pytest.approx(29.237558456)
    assert report["goodput"] == pytest.approx(seconds["productive"] / report["allocated_device_s"])
    assert seconds["throttled"] is None
