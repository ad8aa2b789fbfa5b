"""How a trial ended and what it measured, from recordings whose steps are known."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest
from tests.trial.recordings import START_UNIX_S, failure, measured, rank, recording

from flatout.launch import ExitStatus
from flatout.records.change import ChangeSet
from flatout.records.machine import Xid
from flatout.records.recording import GpuUse, HostUse, Recording
from flatout.records.trial import TrialResult
from flatout.trial.result import TrialRun, error_line, mean_losses, mean_steps, trial_result


def result(
    folder: Path, found: Recording | None, *, code: int | None = 0, timed_out: bool = False, output: str = ""
) -> TrialResult:
    (folder / "output.log").write_text(output)
    ended = ExitStatus(
        code=code,
        signal=None,
        start_unix_s=START_UNIX_S,
        end_unix_s=START_UNIX_S + 12,
        is_timed_out=timed_out,
    )
    run = TrialRun(
        index=3,
        changes=ChangeSet(),
        recording=found,
        folder=folder,
        output=folder / "output.log",
        ended=ended,
        began_unix_s=START_UNIX_S,
        took_s=12.0,
        limit_s=60.0,
    )
    return trial_result(run)


def test_a_step_is_the_mean_over_the_ranks_of_settled_steps_that_all_have() -> None:
    one = rank(0, (9.0, 0.10, 0.20, 0.30, 0.40), settled=1)
    other = rank(1, (9.0, 9.0, 0.40, 0.50), settled=2)  # settled a step later, and ended a step earlier
    assert mean_steps([one, other]) == pytest.approx((0.30, 0.40))


def test_what_the_recorder_did_between_steps_does_not_count() -> None:
    kind = ("first", "", "flops", "", "traced")
    assert mean_steps([rank(0, (9.0, 0.1, 7.0, 0.2, 8.0), settled=0, kind=kind)]) == pytest.approx((0.1, 0.2))


def test_steps_are_matched_by_their_number_and_not_by_their_place() -> None:
    one, other = rank(0, (0.1, 0.2, 0.3), settled=0), rank(1, (0.4, 0.5, 0.6), settled=0, first=1)
    assert mean_steps([one, other]) == pytest.approx(((0.2 + 0.4) / 2, (0.3 + 0.5) / 2))


def test_a_rank_that_never_settled_leaves_nothing_to_compare() -> None:
    assert mean_steps([rank(0), rank(1, settled=None)]) == ()
    assert mean_steps([]) == ()


def test_a_loss_that_one_rank_lacks_is_not_known() -> None:
    losses = mean_losses([rank(0, losses=(3.0, 2.0, 1.0, 1.0, 1.0)), rank(1, losses=(5.0, math.nan, 2.0, 1.0, 1.0))])
    assert losses[0] == 4.0 and math.isnan(losses[1]) and losses[2:] == (1.5, 1.0, 1.0)


def test_losses_go_as_far_as_the_shortest_rank() -> None:
    assert mean_losses([rank(0, (1.0, 1.0), losses=(1.0, 2.0)), rank(1, (1.0,), losses=(3.0,))]) == (2.0,)
    assert mean_losses([]) == ()


def test_a_complete_trial_has_all_that_was_measured(tmp_path: Path) -> None:
    gpus = [
        GpuUse(index=i, power_w=300.0 + 100 * i, sm_clock_hz=1e9 * (1 + i), temperature_c=50.0 + i,
               throttle_share={"power": 0.1 * i})
        for i in range(2)
    ]  # fmt: skip
    numbers = measured(samples_per_step=32.0, tokens_per_step=200.0, peak_memory_bytes=77)
    found = result(tmp_path, recording(tmp_path, rank(0), rank(1), numbers=numbers, gpus=gpus))
    assert (found.outcome, found.problem, found.index, found.arm) == ("completed", "", 3, "baseline")
    assert found.step_s == pytest.approx((0.1,) * 4)
    assert (found.samples_per_step, found.tokens_per_step) == pytest.approx((32.0, 200.0))
    assert found.peak_memory_bytes == 77
    assert found.energy_j_per_step == pytest.approx(0.1 * 700)
    assert found.start_s == pytest.approx(10.5, abs=1e-6)  # the first step, which takes 0.5 s, is not settled
    assert found.covariates.sm_clock_hz == pytest.approx(1.5e9)
    assert (found.covariates.temperature_c, found.covariates.throttle_share) == (51.0, {"power": 0.1})


@pytest.mark.parametrize(
    ("reason", "stopped_by"),
    [
        ("enough", "enough"),
        ("abandoned", "abandoned"),
        ("max", "max"),
        ("steps", "max"),
        ("time", "time"),
        (None, "job ended"),
        ("of a newer version", None),
    ],
)
def test_a_trial_says_why_it_stopped(tmp_path: Path, reason: str | None, stopped_by: str | None) -> None:
    ranks = [msgspec.structs.replace(rank(number), stopped_by=reason) for number in range(2)]
    assert result(tmp_path, recording(tmp_path, *ranks)).stopped_by == stopped_by


def test_a_trial_that_failed_was_not_stopped(tmp_path: Path) -> None:
    assert result(tmp_path, recording(tmp_path, rank(0)), code=1).stopped_by is None


def test_energy_of_which_a_part_is_missing_is_not_known(tmp_path: Path) -> None:
    gpus = [GpuUse(index=0, power_w=300.0), GpuUse(index=1)]
    assert result(tmp_path, recording(tmp_path, rank(0), gpus=gpus)).energy_j_per_step is None


def test_too_few_settled_steps_are_a_failure_that_says_why(tmp_path: Path) -> None:
    found = result(tmp_path, recording(tmp_path, rank(0, (0.1,) * 3), problems=["the job ended at step 3"]))
    assert (found.outcome, found.cause) == ("failed", "too_few_steps") and not found.is_complete
    assert found.problem == "it made 2 steps after the warm-up, but at least 3 are needed (the job ended at step 3)"


def test_a_command_that_trains_nothing_is_a_failure(tmp_path: Path) -> None:
    found = result(tmp_path, None)
    assert (found.outcome, found.cause, found.step_s, found.losses) == ("failed", "no_step", (), ())
    assert found.problem == "no training step was seen in it"


def test_memory_that_ran_out_on_any_rank_is_the_cause_though_another_failed_first(tmp_path: Path) -> None:
    failure(tmp_path, 0, "torch.distributed.DistBackendError", "connection closed by peer", unix_s=1.0)
    failure(tmp_path, 1, "torch.OutOfMemoryError", "CUDA out of memory.\nmore", kind="out_of_memory", unix_s=2.0)
    found = result(tmp_path, recording(tmp_path, rank(0)), code=1)
    assert found.outcome == "out_of_memory"
    assert found.problem == "rank 1: torch.OutOfMemoryError: CUDA out of memory."


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RuntimeError: [enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory",
        "MemoryError",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=3.0. Some of the step tasks have been OOM Killed.",
        "slurmstepd: error: Detected 2 oom-kill event(s) in StepId=3.batch. Some of your processes may be killed",
    ],
)
def test_memory_that_ran_out_is_known_from_what_was_printed_where_no_rank_left_a_word(
    tmp_path: Path, line: str
) -> None:
    found = result(tmp_path, recording(tmp_path), code=1, output=f"step 1\n[rank1]: {line}\nbye\n".replace(
        "[rank1]: MemoryError", "MemoryError"
    ))  # fmt: skip
    assert found.outcome == "out_of_memory"


def test_a_job_that_only_prints_of_memory_and_ends_well_has_not_failed(tmp_path: Path) -> None:
    found = result(tmp_path, recording(tmp_path, rank(0)), output="CUDA out of memory, trying again\n")
    assert found.outcome == "completed"


def test_the_rank_that_failed_first_is_told(tmp_path: Path) -> None:
    failure(tmp_path, 0, "RuntimeError", "connection reset", unix_s=20.0)
    failure(tmp_path, 5, "ValueError", "bad sample", unix_s=10.0)
    (tmp_path / "failure-7.json").write_text('{"rank": 7, "ki')  # cut short
    found = result(tmp_path, recording(tmp_path, rank(0)), code=1, output="RuntimeError: connection reset\n")
    assert (found.outcome, found.problem) == ("failed", "exit code 1: rank 5: ValueError: bad sample")


def test_a_signal_is_told(tmp_path: Path) -> None:
    found = result(tmp_path, recording(tmp_path, rank(0)), code=None, output="step 7\n\n")
    assert (found.outcome, found.problem) == ("failed", "ended by a signal: step 7")


def test_a_trial_that_was_ended_for_its_time_is_not_called_otherwise(tmp_path: Path) -> None:
    failure(tmp_path, 0, "KeyboardInterrupt", "", unix_s=1.0)
    found = result(tmp_path, recording(tmp_path, rank(0)), code=None, timed_out=True)
    assert (found.outcome, found.problem) == ("timed_out", "it ran for more than 60 s, and was ended")


def test_a_rank_that_ran_out_of_memory_while_the_others_waited_for_it_is_no_mere_timeout(tmp_path: Path) -> None:
    failure(tmp_path, 1, "OutOfMemoryError", "CUDA out of memory", unix_s=1.0, kind="out_of_memory")
    found = result(tmp_path, recording(tmp_path, rank(0), rank(1)), code=None, timed_out=True)
    assert (found.outcome, found.problem) == ("out_of_memory", "rank 1: OutOfMemoryError: CUDA out of memory")


@pytest.mark.parametrize(
    ("printed", "line"),
    [
        ("", "it printed nothing"),
        ("one\ntwo\n\n", "two"),
        ("ValueError: a\nmore\n", "ValueError: a"),
        (
            "[rank1]: KeyError: 'x'\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError: \nfooter\n",
            "KeyError: 'x'",
        ),
        ("the Error is here\nplain\n", "plain"),
    ],
)
def test_the_line_that_names_the_error_is_found(tmp_path: Path, printed: str, line: str) -> None:
    (tmp_path / "log").write_text(printed)
    assert error_line(tmp_path / "log") == line


def test_output_that_is_missing_is_no_error(tmp_path: Path) -> None:
    assert error_line(tmp_path / "log") == "it printed nothing"


@pytest.mark.parametrize(
    ("of_hosts", "expected"),
    [(((), (79,)), (79,)), (((), ()), ()), (((), None), None), (((48,), None), (48,)), ((), None)],
)
def test_gpu_errors_are_those_of_all_hosts_and_unknown_where_one_is_not_watched(
    tmp_path: Path, of_hosts: tuple[tuple[int, ...] | None, ...], expected: tuple[int, ...] | None
) -> None:
    hosts = tuple(
        HostUse(
            hostname=f"n{place}",
            num_samples=3,
            cores_allowed=8.0 - place,
            cores_busy_by_others=0.5 * place,
            xids=None if numbers is None else tuple(Xid(number=number, gpu=0) for number in numbers),
        )
        for place, numbers in enumerate(of_hosts)
    )
    made = msgspec.structs.replace(recording(tmp_path, rank(0), rank(1)), hosts=hosts)
    found = result(tmp_path, made).covariates
    assert (None if found.xids is None else tuple(xid.number for xid in found.xids)) == expected
    assert (found.cores_busy_by_others, found.cores_allowed) == ((0.5, 7.0) if hosts else (None, None))
