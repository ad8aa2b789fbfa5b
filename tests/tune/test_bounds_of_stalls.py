"""The bounds and predictions of a tuning run refer to the whole job, here one whose every epoch starts with a stall.

The two recordings are of the same job, without and with persistent workers. What the script printed for all epochs is
the truth about their effect: 34.7 and 11.3 s.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from tests.diagnose.test_whole_job import GOLDEN, PRINTED_S

from flatout.change.candidates import candidates, share_in_trial
from flatout.diagnosis_pipeline import diagnose_paths
from flatout.predict.predict import predict_together, situation_of
from flatout.predict.situation import Situation
from flatout.profile.read_facts import read_facts
from flatout.profile.read_recording import read_recording
from flatout.records.diagnosis import Diagnosis
from flatout.records.prediction import Prediction
from flatout.records.tuning import ALL_BUT_COMPUTATION, Bound
from flatout.tune.choose import choose
from flatout.tune.options import TuneOptions
from flatout.tune.profiled import Profiled
from flatout.tune.progress import Progress, Setup
from flatout.tune.result import bounds

PERSISTENT = "dataloader-persistent-workers"
TRUE_SPEEDUP = PRINTED_S["epoch_stall"] / PRINTED_S["epoch_stall_pw"]


class Idle:
    """A runner that has run nothing yet."""

    usual_s, num_trials, out = 10.0, 0, Path()

    def spent_s(self) -> float:
        return 0.0


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Profiled:
    folder = tmp_path_factory.mktemp("recording")
    with tarfile.open(GOLDEN / "epoch_stall_cpu.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    path: Path = folder / "epoch_stall"
    recording = read_recording(path)
    done = diagnose_paths([path], with_tracks=True)
    return Profiled(done=done, recording=recording, facts=read_facts(path, recording))


def test_the_bound_of_the_right_change_is_not_below_what_it_gains(profiled: Profiled) -> None:
    """Its bound was "at most 1.38x", from the traced steps alone."""
    setup = Setup(runner=cast(Any, Idle()), options=TuneOptions(allowed_safety="semantic"), say=lambda text: None)
    _, first_round = choose(setup, Progress(objective="step_s", num_steps=20), 1, profiled)
    assert first_round.candidates[0].name == PERSISTENT
    highest = {name: promise.max_speedup for name, promise in first_round.promises.items()}
    assert highest[PERSISTENT] >= TRUE_SPEEDUP
    assert highest[PERSISTENT] == max(highest.values())


def test_bounds_are_shares_of_the_jobs_mean_step(profiled: Profiled) -> None:
    diagnosis = profiled.done.diagnosis
    (finding,) = (each for each in diagnosis.findings if each.name == "epoch-boundary")
    mean_step_s = profiled.recording.measured.mean_step_s
    assert mean_step_s is not None and diagnosis.job.mean_step_s == mean_step_s
    assert finding.share_of_step == pytest.approx(finding.cost_s_per_step / mean_step_s)
    (change,) = (each for each in candidates(diagnosis, profiled.facts, "semantic") if each.name == PERSISTENT)
    # The change saves all that the steps take above the regular one, for this is the only finding on stalls, and half
    # of data loading; a trial does not have the wait for the first batch.
    other_s = sum(each.cost_s_per_step for each in diagnosis.findings if each.name == "data-loading")
    first_wait_s = diagnosis.job.first_wait_s / diagnosis.job.num_recorded_steps
    in_trial_s, regular_s = mean_step_s - first_wait_s, diagnosis.job.regular_step_s
    assert isinstance(regular_s, float) and finding.cost_s_per_step < in_trial_s - regular_s
    saved_share = (in_trial_s - regular_s + 0.5 * other_s) / in_trial_s
    assert change.predicted_speedup == pytest.approx(1 / (1 - saved_share))


def test_without_findings_the_computation_of_the_job_gives_the_bound(profiled: Profiled) -> None:
    def found_nothing(*, compute_s: float, device: str | None = "NVIDIA H200", **job: Any) -> Profiled:
        """Each rank has 3 steps of 1 s; the second rank computes for half as long."""
        diagnosis = profiled.done.diagnosis
        ranks = []
        for rank, computing_s in zip(diagnosis.ranks[:1] * 2, (compute_s, compute_s / 2), strict=True):
            steps = [
                msgspec.structs.replace(step, window_s=1.0, parts_s={**step.parts_s, "compute": computing_s})
                for step in rank.steps[:3]
            ]
            ranks.append(msgspec.structs.replace(rank, steps=tuple(steps)))
        job = msgspec.structs.replace(
            diagnosis.job, **{"device": device, "traced_share": 1.0, "mean_step_s": 1.0, "first_wait_s": 0.0, **job}
        )
        nothing = msgspec.structs.replace(diagnosis, findings=(), ranks=tuple(ranks), job=job)
        return Profiled(
            done=msgspec.structs.replace(profiled.done, diagnosis=nothing),
            recording=profiled.recording,
            facts=profiled.facts,
        )

    (bound,) = bounds(found_nothing(compute_s=0.96))
    most = pytest.approx(1 / 0.96)  # the steps are alike
    assert bound == Bound(finding=ALL_BUT_COMPUTATION, speedup=pytest.approx(1 / 0.96, rel=0.01), most=most)
    (bound,) = bounds(found_nothing(compute_s=0.96, traced_share=0.5))
    assert bound.speedup == pytest.approx(2 / 0.96, rel=0.05)
    assert bounds(found_nothing(compute_s=0.96, device=None)) == ()
    assert bounds(found_nothing(compute_s=0.0)) == ()
    assert [one.finding for one in bounds(profiled)] == [one.name for one in profiled.done.diagnosis.findings]


def test_what_another_finding_on_stalls_explains_is_no_part_of_the_bound(profiled: Profiled) -> None:
    """A cause can account only for step time above the regular step that no other finding explains."""
    diagnosis = profiled.done.diagnosis
    (finding,) = (each for each in diagnosis.findings if each.name == "epoch-boundary")
    regular_s, mean_s = diagnosis.job.regular_step_s, diagnosis.job.mean_step_s
    assert isinstance(regular_s, float) and isinstance(mean_s, float)
    rest_share = 1 - regular_s / mean_s - finding.share_of_step
    of_checkpoints = msgspec.structs.replace(finding, name="checkpoint-stall", share_of_step=rest_share)
    explained = msgspec.structs.replace(diagnosis, findings=(finding, of_checkpoints))
    alone = msgspec.structs.replace(diagnosis, findings=(finding,))

    def bound(of: Diagnosis) -> float:
        (change,) = (each for each in candidates(of, profiled.facts, "semantic") if each.name == PERSISTENT)
        assert change.predicted_speedup is not None
        return change.predicted_speedup

    assert bound(explained) == pytest.approx(1 / (1 - share_in_trial(diagnosis, finding)), rel=0.001)
    assert bound(alone) > bound(explained) * 1.2


def test_no_prediction_lowers_a_bound_of_the_job_and_none_speeds_up_its_stalls(profiled: Profiled) -> None:
    """A change of the regular step cannot gain more than the regular steps' share of the job."""
    share = profiled.done.diagnosis.job.traced_share
    assert isinstance(share, float) and share < 0.5
    step_s = profiled.recording.measured.step_s
    situation = situation_of(profiled.done.job, profiled.facts, step_s, share)
    assert isinstance(situation, Situation)
    num_predicted = 0
    for change in candidates(profiled.done.diagnosis, profiled.facts, "semantic"):
        bound = change.predicted_speedup
        prediction = predict_together(situation, (change,), bound=bound)
        if bound is not None and isinstance(prediction, Prediction):
            num_predicted += 1
            assert prediction.high >= bound
            assert prediction.speedup <= 1 / (1 - share) * 1.01
    assert num_predicted
