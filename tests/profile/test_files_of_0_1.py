"""A recording that Flatout 0.1.0 wrote, of one rank on a CPU, is still read and diagnosed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flatout.cli import app
from flatout.profile import read_recording
from flatout.profile.read_facts import read_facts

GOLDEN = Path(__file__).with_name("golden") / "of_0_1"


def test_its_numbers_are_those_of_then() -> None:
    recording = read_recording(GOLDEN)
    (rank,), (host,) = recording.ranks, recording.hosts
    assert (rank.rank, rank.world_size, rank.ended_by, rank.problems) == (0, 1, "exit", ())
    assert recording.measured.regular_samples_per_s == pytest.approx(613.57, abs=0.01)
    assert recording.measured.samples_per_s == pytest.approx(669.85, abs=0.01)  # most steps are shorter than the median
    assert rank.untraced_step_s == pytest.approx(0.012438191)
    assert (host.cores_allowed, recording.problems) == (2.0, ())
    facts = read_facts(GOLDEN, recording)
    assert (facts.num_ranks, facts.optimizer, facts.loader_workers) == (1, "SGD", 0)


def test_its_diagnosis_is_that_of_then() -> None:
    done = CliRunner().invoke(app, ["diagnose", "--json", str(GOLDEN)])
    assert done.exit_code == 0
    diagnosis = json.loads(done.stdout)
    finding, stalls = diagnosis["findings"]
    assert (finding["name"], finding["ranks"]) == ("host-bound", [0])
    # 0.01175 s of the traced step, which took longer than the regular steps of the recording: held against those.
    assert finding["cost_s_per_step"] == pytest.approx(0.009675354942)
    assert (stalls["name"], stalls["evidence"]["num_stalled_steps"]) == ("periodic-stall", 2)
    evidence = finding["evidence"]
    assert (evidence["cores_allowed"], evidence["cores_busy"]) == (2.0, 2.0)
    assert evidence["recorder_cost_source"] == "below the noise of the steps"
    assert (diagnosis["job"]["num_steps"], diagnosis["job"]["step_s"]) == (3, pytest.approx(0.0131078163))
