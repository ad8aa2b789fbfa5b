"""A recording that Flatout 0.1.0 wrote, of one rank on a CPU, is still read and diagnosed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from flatout.cli import app
from flatout.profile import read_recording
from flatout.profile.read_facts import read_facts

MEASURED_S = (0.0140437, 0.0111131, 0.01303853, 0.01540756, 0.00958327)
NUM_STEPS = 84
# The steps of the warm-up and of the recorder count as the median of the measured ones.
MEAN_S = (sum(MEASURED_S) + (NUM_STEPS - len(MEASURED_S)) * np.median(MEASURED_S)) / NUM_STEPS
GOLDEN = Path(__file__).with_name("golden") / "of_0_1"


def test_its_numbers_are_those_of_then() -> None:
    recording = read_recording(GOLDEN)
    (rank,), (host,) = recording.ranks, recording.hosts
    assert (rank.rank, rank.world_size, rank.ended_by, rank.problems) == (0, 1, "exit", ())
    assert recording.measured.regular_samples_per_s == pytest.approx(613.57, abs=0.01)
    assert len(rank.steps.number) == NUM_STEPS
    assert recording.measured.samples_per_s == pytest.approx(8 / MEAN_S, rel=1e-3)
    assert rank.untraced_step_s == pytest.approx(0.012438191)
    assert (host.cores_allowed, recording.problems) == (2.0, ())
    facts = read_facts(GOLDEN, recording)
    assert (facts.num_ranks, facts.optimizer, facts.loader_workers) == (1, "SGD", 0)


def test_its_diagnosis_is_that_of_then() -> None:
    done = CliRunner().invoke(app, ["diagnose", "--json", str(GOLDEN)])
    assert done.exit_code == 0
    diagnosis = json.loads(done.stdout)
    (finding,) = diagnosis["findings"]  # two steps of the warm-up were long, which is no stall
    assert (finding["name"], finding["ranks"]) == ("host-bound", [0])
    # 0.01242 s of the mean traced step of 0.01311 s, and that share of the recording's mean step. The median traced
    # step is shorter than the untraced one, so no cost of the recorder is subtracted.
    assert finding["cost_s_per_step"] == pytest.approx(0.012422 * MEAN_S / 0.0131078, rel=1e-3)
    evidence = finding["evidence"]
    assert (evidence["cores_allowed"], evidence["cores_busy"]) == (2.0, 2.0)
    assert evidence["recorder_cost_source"] == "below the noise of the steps"
    assert (diagnosis["job"]["num_steps"], diagnosis["job"]["step_s"]) == (3, pytest.approx(0.0131078163))
