"""CSV of records: the numbers of the JSON contract, unknown ones empty, and no text that a spreadsheet would run."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path

import msgspec
import pytest

from flatout.cli import main
from flatout.report.csv_rows import csv_text


class Inner(msgspec.Struct, frozen=True, kw_only=True):
    hours: float | None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    total: Inner
    shares: dict[str, float] = {}
    series: tuple[float, ...] = ()


def test_a_row_has_the_values_of_the_record() -> None:
    rows = [
        Row(name="a, b", total=Inner(hours=1.25), shares={"hang": 0.1}, series=(1.0,)),
        Row(name="=1+1", total=Inner(hours=None)),
    ]
    read = list(csv.DictReader(io.StringIO(csv_text(rows))))
    assert read == [
        {"name": "a, b", "total.hours": "1.25", "shares.hang": "0.1"},
        {"name": "'=1+1", "total.hours": "", "shares.hang": ""},
    ]


def test_a_replay_writes_its_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two jobs of 100 s that each need all GPUs: the second waits for the first."""
    jobs, out = tmp_path / "jobs.csv", tmp_path / "out.csv"
    jobs.write_text("submit_s,num_gpus,duration_s\n0,8,100\n0,8,100\n")
    words = ["schedule", "replay", str(jobs), "--nodes", "1", "--gpus-per-node", "8", "--csv", str(out)]
    monkeypatch.setattr(sys, "argv", ["flatout", *words])
    assert main() == 0
    (row,) = csv.DictReader(io.StringIO(out.read_text()))
    assert (row["policy"], float(row["wait_mean_s"])) == ("fifo", 50.0)
    assert main() == 2  # it exists
