"""Steps are found without help, however a script is written."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from tests.profile.runs import job, recorded
from tests.trial.recordings import rank as made_rank

from flatout.diagnosis_pipeline import diagnose_paths
from flatout.profile.measure import measure
from flatout.records.recording import RankRecording

pytestmark = pytest.mark.usefixtures("warm")


def only_rank(tmp_path: Path, *arguments: object, options: tuple[str, ...] = ("--light",)) -> RankRecording:
    recording, _ = recorded(tmp_path / "r", job(*arguments), *options)
    (rank,) = recording.ranks
    return rank


def test_accumulated_gradients_are_one_step(tmp_path: Path) -> None:
    rank = only_rank(tmp_path, "--steps", 12, "--passes", 4)
    assert rank.steps_from == "optimizer"
    steps = rank.steps
    assert len(steps.number) == 12
    assert set(steps.num_backward[1:]) == {4}  # the first one's end alone shows that batches are no steps
    assert set(steps.num_samples[1:]) == {16.0}


def test_batches_fetched_ahead_count_and_those_of_an_evaluation_do_not(tmp_path: Path) -> None:
    steps = only_rank(tmp_path, "--steps", 12, "--passes", 2, "--mode", "fetched-ahead").steps
    assert len(steps.number) == 12
    assert set(steps.num_backward[1:]) == {2}
    assert set(steps.num_samples[1:]) == {8.0}


def test_the_loss_is_what_was_descended(tmp_path: Path) -> None:
    recording, done = recorded(tmp_path / "r", job("--steps", 12, "--passes", 4), "--light")
    printed = [float.fromhex(line) for line in done.stdout.split()]
    assert np.isnan(recording.ranks[0].steps.loss[0])
    assert recording.ranks[0].steps.loss[1:] == pytest.approx(printed[1:], rel=1e-6)


@pytest.mark.parametrize("mode", ["scaler", "fused-scaler"])
def test_steps_that_a_scaler_skips_are_steps(tmp_path: Path, mode: str) -> None:
    steps = only_rank(tmp_path, "--steps", 20, "--mode", mode).steps
    assert len(steps.number) == 20
    assert list(np.flatnonzero(steps.is_skipped)) == [4, 9, 14, 19]
    assert set(steps.num_backward) == {1}
    losses = np.delete(steps.loss, [4, 9, 14, 19])
    assert ((losses > 1) & (losses < 8)).all()  # not scaled
    assert np.isinf(steps.loss[4])


def test_two_optimizers_in_turn_are_one_step(tmp_path: Path) -> None:
    steps = only_rank(tmp_path, "--steps", 20, "--mode", "adversarial").steps
    assert len(steps.number) == 20
    assert set(steps.num_backward[1:]) == {2}
    assert set(steps.num_samples[1:]) == {4.0}


def test_without_an_optimizer_a_batch_is_a_step(tmp_path: Path) -> None:
    rank = only_rank(tmp_path, "--steps", 150, "--mode", "inference", options=("--warmup", "12"))
    assert rank.steps_from == "batch"
    assert len(rank.steps.number) >= 149
    assert set(rank.steps.num_samples) == {4.0}
    assert len(rank.traced_steps) == 3


def test_in_a_script_that_only_infers_a_call_of_the_model_is_a_step(tmp_path: Path) -> None:
    rank = only_rank(tmp_path, "--steps", 150, "--mode", "answering", "--passes", 7, options=("--warmup", "12"))
    assert rank.steps_from == "forward"
    assert rank.is_pooled and not rank.problems
    num_on_first_thread, num_on_second = 149, 7  # the program's tail after the last call is no step
    assert len(rank.steps.number) == num_on_first_thread + num_on_second
    assert set(rank.steps.num_samples) == {4.0}
    assert set(rank.steps.num_tokens) == {48.0}
    assert set(rank.steps.num_backward) == {0}
    assert len(rank.traced_steps) == 3


@pytest.mark.parametrize(("num_steps", "traced"), [(22, ()), (24, (22, 23))])
def test_the_end_of_the_program_is_no_step(tmp_path: Path, num_steps: int, traced: tuple[int, ...]) -> None:
    """The trace begins with step 22: after 12 steps, 5 that are measured, and 4 for the FLOPs and the profiler."""
    recording, done = recorded(tmp_path / "r", job("--steps", num_steps), "--warmup", "12")
    (rank,) = recording.ranks
    assert (len(rank.steps.number), rank.traced_steps) == (num_steps, traced)
    assert (tmp_path / "r" / "rank0.json.gz").exists() == bool(traced)
    if traced:
        assert diagnose_paths([tmp_path / "r"]).diagnosis.job.num_steps == len(traced)
        return
    problem = "the job ended before the first traced step was complete"
    assert problem in [quality.problem for quality in rank.problems]
    assert "bound" not in done.stderr


def test_an_evaluation_before_the_training_is_forgotten(tmp_path: Path) -> None:
    rank = only_rank(tmp_path, "--steps", 120, "--mode", "evaluated-first", options=("--warmup", "12"))
    assert rank.steps_from == "optimizer"
    assert 58 <= len(rank.steps.number) <= 60
    assert set(rank.steps.num_backward[1:]) == {1}
    assert len(rank.traced_steps) == 3


def test_without_optimizer_and_loader_a_backward_pass_is_a_step(tmp_path: Path) -> None:
    rank = only_rank(tmp_path, "--steps", 30, "--mode", "by-hand")
    assert rank.steps_from == "backward"
    assert len(rank.steps.number) == 29
    assert np.isnan(rank.steps.num_samples).all()


@pytest.mark.parametrize("at", [19, 22])
def test_the_scripts_own_profiler_comes_first(tmp_path: Path, at: int) -> None:
    recording, done = recorded(
        tmp_path / "r", job("--steps", 40, "--mode", "own-profiler", "--profile-at", at), "--warmup", "10"
    )
    assert done.stdout == "True\n"
    (rank,) = recording.ranks
    assert len(rank.steps.number) == 40
    assert any("torch.profiler itself" in note.problem for note in rank.problems)


TEN_STEPS = """
import atexit
import time
import torch
import torch.distributed
atexit.register(time.sleep, 0.1)  # else gloo may abort the process, see jobs/ends_later.py
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(10):
    time.sleep(0.1)
    model(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_ten_steps_are_enough_for_a_trace_where_the_warm_up_is_given(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TEN_STEPS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    recording, _ = recorded(tmp_path / "r", command, "--warmup", "0", "--steps", "2")
    assert [len(rank.traced_steps) for rank in recording.ranks] == [2, 2]
    assert recording.ranks[0].traced_steps == recording.ranks[1].traced_steps


@pytest.mark.parametrize(("settled", "why"), [(1, "no step's operations were counted"), (None, "were stable")])
def test_why_operations_are_unknown_is_told(settled: int | None, why: str) -> None:
    measured = measure([made_rank(settled=settled)])
    assert measured.flops_per_step is measured.mfu is None
    assert why in measured.reasons["flops_per_step"] and why in measured.reasons["mfu"]
