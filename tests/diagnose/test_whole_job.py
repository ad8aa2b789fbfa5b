"""Two recordings of a real job whose every epoch of 20 steps starts with workers that each take a second.

The second one keeps its workers. Both have two ranks, 15 epochs and 9600 samples, on two cores that others used too.
The truth is what the scripts printed themselves: 34.7 and 11.3 s for all epochs, including the recorder's work.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from flatout.diagnosis_pipeline import diagnose_paths
from flatout.records.diagnosis import Diagnosis
from flatout.report.diff import diff

GOLDEN = Path(__file__).parents[1] / "profile" / "golden"
NUM_SAMPLES = 9600
PRINTED_S = {"epoch_stall": 34.71, "epoch_stall_pw": 11.30}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Diagnosis]:
    folder = tmp_path_factory.mktemp("recordings")
    for name in PRINTED_S:
        with tarfile.open(GOLDEN / f"{name}_cpu.tar.xz") as archive:
            archive.extractall(folder, filter="data")
    return {name: diagnose_paths([folder / name]).diagnosis for name in PRINTED_S}


@pytest.mark.parametrize("name", PRINTED_S)
def test_rates_are_those_of_all_epochs(jobs: dict[str, Diagnosis], name: str) -> None:
    job, recorded = jobs[name].job, jobs[name].recorded
    printed_s = PRINTED_S[name] - recorded.parts_s["recorder"] - recorded.parts_s["warm_up"]
    assert job.num_recorded_steps == 300
    assert job.samples_per_s == pytest.approx(NUM_SAMPLES / printed_s, rel=0.07)
    assert job.mean_step_s == pytest.approx(printed_s / 300, rel=0.07)


def test_the_regular_step_alone_would_be_five_times_too_fast(jobs: dict[str, Diagnosis]) -> None:
    job = jobs["epoch_stall"].job
    assert job.samples_per_s == pytest.approx(301, rel=0.01)
    assert job.regular_samples_per_s == pytest.approx(1578, rel=0.01)


@pytest.mark.parametrize("name", PRINTED_S)
def test_the_parts_of_the_recording_sum_to_its_wall_time(jobs: dict[str, Diagnosis], name: str) -> None:
    recorded = jobs[name].recorded
    assert sum(recorded.parts_s.values()) == pytest.approx(recorded.wall_s, abs=1e-6)
    assert sum(recorded.stalls_s.values()) == pytest.approx(recorded.parts_s["stalls"], abs=1e-6)


def test_the_starts_of_epochs_are_the_stalls(jobs: dict[str, Diagnosis]) -> None:
    """15 starts of at least a second each, and little else."""
    recorded = jobs["epoch_stall"].recorded
    (cause, seconds), *_ = recorded.stalls_s.items()
    assert cause == "loader start"
    assert 15.0 < seconds < 15 * 1.6
    assert seconds > 0.9 * recorded.parts_s["stalls"]
    for lane in recorded.timeline.lanes:
        late = sorted(range(300), key=lambda step: -lane.longest_s[step])[:15]
        assert sum(step % 20 == 0 for step in late) >= 14
        assert {lane.kinds[step] for step in range(100, 300, 20)} == {"s"}  # until 40: warm-up; 60 and 80: recorder


def test_keeping_the_workers_is_faster_as_the_scripts_printed_it(jobs: dict[str, Diagnosis]) -> None:
    result = diff(jobs["epoch_stall"], jobs["epoch_stall_pw"])
    assert result.basis == "recording"
    assert result.speedup == pytest.approx(PRINTED_S["epoch_stall"] / PRINTED_S["epoch_stall_pw"], rel=0.1)
    assert result.recorded_parts[0].part == "stalls: loader start"
    assert sum(part.change_s for part in result.recorded_parts) == pytest.approx(result.change_s, abs=1e-9)
    assert sum(part.change_s for part in result.parts) == pytest.approx(result.traced_change_s, abs=1e-9)


def test_nothing_is_charged_to_the_recorder(jobs: dict[str, Diagnosis]) -> None:
    """One of twenty steps spikes, so a longer traced step shows nothing."""
    sources = {finding.evidence.get("recorder_cost_source") for finding in jobs["epoch_stall"].findings}
    assert sources <= {None, "untraced steps spike too"}
