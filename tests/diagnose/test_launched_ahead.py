"""A host that launches many steps before it waits for the GPU has long steps, which are no stalls: the GPU works on.

Each job here is a host and a GPU with a queue between them, whose times make both the step log and the trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import pytest
from tests.diagnose.jobs import GEMM, attributed, names
from tests.step_log.recorded_ranks import rank_of, steps_of
from tests.trial.recordings import measured

from flatout.diagnose.find import diagnose
from flatout.diagnose.launched_ahead import without_waits_for_gpu
from flatout.inside.protocol import StepKind
from flatout.recorded_job_pipeline import recorded_time_of
from flatout.records.diagnosis import Diagnosis
from flatout.records.job_log import JobLog, StallCause
from flatout.records.recorded_time import BinKind
from flatout.records.recording import RankRecording, Recording
from flatout.report.recorded_text import latency_sentence
from flatout.step_log.job_log import job_log
from flatout.testing import TraceBuilder

NUM_STEPS = 400
TRACED = (103, 104, 105)
GPU_S = 0.0167
LAUNCH_S = 0.0015  # of all work of a step
PERIOD = 20


def run(
    gpu_s: Sequence[float],
    *,
    awaited: Sequence[int] = (),
    pauses_s: Mapping[int, float] | None = None,
    busy_s: Mapping[int, float] | None = None,
    depth: int = 1000,
) -> list[float]:
    """Return the host's time of each step. At the end of an awaited step, the host waits for the GPU.

    In a pause, the host does something else while the GPU is idle; `busy_s` is such work while the GPU works on. The
    queue holds the launches of `depth` steps.
    """
    host = free = 0.0
    ends: list[float] = []
    durations: list[float] = []
    for step, work_s in enumerate(gpu_s):
        begin = host
        if step >= depth:
            host = max(host, ends[step - depth])
        host += LAUNCH_S + (busy_s or {}).get(step, 0.0)
        free = max(free, host) + work_s
        ends.append(free)
        pause_s = (pauses_s or {}).get(step, 0.0)
        if step in awaited or pause_s:
            host = max(host, free) + pause_s
        durations.append(host - begin)
    return durations


def recorded(durations: Sequence[float], **columns: Mapping[int, float]) -> RankRecording:
    kind = [StepKind.TRACED if step in TRACED else "" for step in range(len(durations))]
    return rank_of(0, steps_of(durations, kind=kind, **columns), 1)


def logged(durations: Sequence[float], **columns: Mapping[int, float]) -> JobLog:
    log = job_log([recorded(durations, **columns)])
    assert log is not None
    return log


def traced(gpu_s: float, *, idle_s: float = 0.0, rank: int = 0) -> TraceBuilder:
    """Steps whose work was launched ahead; the GPU is idle for a time between two of them."""
    trace, free = TraceBuilder(rank, 2), 10.0
    for place, number in enumerate(TRACED):
        begin = place * LAUNCH_S * 1e6
        trace.step(number, begin, LAUNCH_S * 1e6)
        trace.launch(GEMM, begin + 1, 5, free, gpu_s * 1e6)
        free += (gpu_s + idle_s) * 1e6
    return trace


def diagnosed(log: JobLog, trace: TraceBuilder) -> Diagnosis:
    job = attributed(trace)
    return diagnose(job, log=without_waits_for_gpu(log, job))


def notes(diagnosis: Diagnosis) -> str:
    return "; ".join(f"{note.problem}: {note.effect}" for note in diagnosis.data_quality)


AWAITED = range(PERIOD - 1, NUM_STEPS, PERIOD)
EVEN = [GPU_S] * NUM_STEPS


@pytest.mark.parametrize("depth", [1000, 9])
def test_a_host_that_waits_every_20_steps_for_a_busy_gpu_has_no_finding(depth: int) -> None:
    """With 9 steps in the queue, steps grow from those of launching to those of the GPU, and one takes nine of them."""
    log = logged(run(EVEN, awaited=AWAITED, depth=depth))
    as_before = diagnose(attributed(traced(GPU_S)), log=log)
    assert "periodic-stall" in names(as_before) and ("epoch-sawtooth" in names(as_before)) == (depth == 9)
    diagnosis = diagnosed(log, traced(GPU_S))
    assert names(diagnosis) == []
    assert "the host runs ahead of the GPU and waits for it every 20 steps" in notes(diagnosis)
    assert "only the mean is that of the GPU" in notes(diagnosis)
    assert diagnosis.job.traced_share == pytest.approx(1.0)


@pytest.mark.parametrize("is_ahead", [True, False])
def test_a_stall_in_which_the_gpu_is_idle_is_found(is_ahead: bool) -> None:
    """The regular steps are 100 % busy all the same. They take the regular step's time, not that of the mean step."""
    pauses_s = dict.fromkeys(AWAITED, 0.15)
    log = logged(run(EVEN, awaited=() if is_ahead else range(NUM_STEPS), pauses_s=pauses_s))
    diagnosis = diagnosed(log, traced(GPU_S))
    assert names(diagnosis) == ["periodic-stall"]
    assert "runs ahead" not in notes(diagnosis)


@pytest.mark.parametrize("is_epoch", [True, False])
def test_sorted_batches_on_a_busy_gpu_are_still_a_sawtooth(is_epoch: bool) -> None:
    """Without a wait in each tooth, or where a loader's epochs are the teeth, even if the traced step is the mean."""
    tooth = list(np.linspace(0.010, 0.030, PERIOD))
    awaited = AWAITED if is_epoch else range(NUM_STEPS)
    ends = dict.fromkeys(range(PERIOD, NUM_STEPS, PERIOD), 1.0) if is_epoch else {}
    durations = run(tooth * (NUM_STEPS // PERIOD), awaited=awaited, depth=2)
    log = logged(durations, num_loader_ends=ends)
    diagnosis = diagnosed(log, traced(log.step_s))
    assert "epoch-sawtooth" in names(diagnosis)
    assert "runs ahead" not in notes(diagnosis)


def test_known_causes_stay_and_a_hidden_collection_does_not() -> None:
    saved_s, collected_s = dict.fromkeys(range(50, NUM_STEPS, 100), 1.0), dict.fromkeys(range(7, NUM_STEPS, 10), 0.01)
    durations = run(EVEN, awaited=AWAITED, pauses_s=saved_s, busy_s=collected_s)
    log = logged(durations, checkpoint_s=saved_s, collection_s=collected_s)
    job = attributed(traced(GPU_S))
    assert {stall.cause for stall in log.stalls} == {
        StallCause.UNKNOWN,
        StallCause.CHECKPOINT,
        StallCause.GARBAGE_COLLECTION,
    }
    executed = without_waits_for_gpu(log, job)
    assert {stall.cause for stall in executed.stalls} == {StallCause.CHECKPOINT}
    assert executed.step_s == log.step_s
    stalled_s = executed.per_step_s(executed.stalls)
    assert executed.without_stalls_s + stalled_s == pytest.approx(log.step_s)
    assert names(diagnose(job, log=executed)) == ["checkpoint-stall"]


def is_ahead(log: JobLog, trace: TraceBuilder) -> bool:
    return without_waits_for_gpu(log, attributed(trace)).launched_ahead is not None


@pytest.mark.parametrize(
    ("gpu_share", "busy_share", "expected"),
    [
        (1.0, 0.955, True),
        (1.0, 0.945, False),
        (0.955, 1.0, True),
        (0.945, 1.0, False),
        (1.09, 1.0, True),
        (1.11, 1.0, False),
    ],
)
def test_the_gpu_is_busy_for_as_long_as_the_mean_step(gpu_share: float, busy_share: float, expected: bool) -> None:
    work_s = GPU_S * gpu_share * busy_share
    idle_s = GPU_S * gpu_share * (1 - busy_share) * len(TRACED) / (len(TRACED) - 1)
    assert is_ahead(logged(run(EVEN, awaited=AWAITED)), traced(work_s, idle_s=idle_s)) == expected


@pytest.mark.parametrize(
    ("stalled_share", "left_share", "expected"),
    [(0.055, 0.0, True), (0.045, 0.0, False), (0.1, 0.024, True), (0.1, 0.026, False)],
)
def test_waits_and_stalls_differ_by_the_traced_step(stalled_share: float, left_share: float, expected: bool) -> None:
    """The stalls take a share of the mean step, and the traced step is shorter than the mean step by another share."""
    regular_s = GPU_S * (1 - stalled_share)
    durations = [regular_s + (PERIOD * GPU_S * stalled_share if step in AWAITED else 0.0) for step in range(NUM_STEPS)]
    assert is_ahead(logged(durations), traced(GPU_S * (1 - left_share))) == expected


@pytest.mark.parametrize(("num_waits", "expected"), [(3, True), (2, False)])
def test_two_cycles_are_needed(num_waits: int, expected: bool) -> None:
    log = logged(run(EVEN[: PERIOD * num_waits], awaited=AWAITED))
    assert is_ahead(log, traced(GPU_S)) == expected


@pytest.mark.parametrize(("share", "period_steps"), [(0.38, PERIOD), (0.45, None)])
def test_a_short_stall_between_two_waits_is_no_wait(share: float, period_steps: int | None) -> None:
    """The host is busy once between two waits, for a share of what it then waits."""
    in_all_s = PERIOD * GPU_S - (PERIOD - 1) * LAUNCH_S
    busy_s = dict.fromkeys(range(7, NUM_STEPS, PERIOD), in_all_s * share / (1 + share))
    log = logged(run(EVEN, awaited=AWAITED, busy_s=busy_s))
    ahead = without_waits_for_gpu(log, attributed(traced(GPU_S))).launched_ahead
    assert ahead is not None and ahead.period_steps == period_steps


@pytest.mark.parametrize(("num_in_ten", "expected"), [(8, True), (7, False)])
def test_teeth_without_waits_are_those_of_batches(num_in_ten: int, expected: bool) -> None:
    tooth = np.linspace(0.010, 0.030, PERIOD)
    durations = np.tile(tooth, NUM_STEPS // PERIOD)
    durations[[step for step in AWAITED if step // PERIOD % 10 < num_in_ten]] += 0.1
    log = logged(durations.tolist())
    assert log.sawtooth is not None
    assert is_ahead(log, traced(float(durations.mean()))) == expected


def test_a_rank_whose_gpu_is_idle_makes_the_others_wait() -> None:
    log = logged(run(EVEN, awaited=AWAITED))
    other = traced(0.9 * GPU_S, idle_s=0.1 * GPU_S, rank=1)
    assert without_waits_for_gpu(log, attributed(traced(GPU_S), other)).launched_ahead is None
    assert without_waits_for_gpu(log, attributed(traced(GPU_S), traced(GPU_S, rank=1))).launched_ahead is not None


def test_the_time_of_the_whole_recording_has_no_stalls_either() -> None:
    rank = recorded(run(EVEN, awaited=AWAITED))
    recording = Recording(path="r", ranks=(rank,), hosts=(), runs=(), measured=measured(), problems=())
    log = job_log([rank])
    assert log is not None
    before = recorded_time_of(recording)
    after = recorded_time_of(recording, without_waits_for_gpu(log, attributed(traced(GPU_S))))
    assert before is not None and after is not None
    assert before.parts_s["stalls"] > 0.5 * before.wall_s
    assert after.parts_s["stalls"] == 0 and after.stalls_s == {}
    assert sum(after.parts_s.values()) == pytest.approx(before.wall_s)
    assert BinKind.STALL in before.timeline.lanes[0].kinds
    assert BinKind.STALL not in after.timeline.lanes[0].kinds


def test_times_of_calls_that_are_only_launched_are_said_to_be_so() -> None:
    """Batches of 8 and 16 samples take as long to launch, and the script does something else for 2 ms between two."""
    awaited_calls = run(EVEN, awaited=AWAITED, busy_s=dict.fromkeys(range(NUM_STEPS), 0.003))
    rank = recorded(awaited_calls)
    steps = msgspec.structs.replace(
        rank.steps,
        model_s=rank.steps.duration_s - 0.002,
        num_samples=np.tile([8.0, 16.0], NUM_STEPS // 2),
        num_tokens=np.full(NUM_STEPS, np.nan),
        num_known_tokens=np.full(NUM_STEPS, np.nan),
        num_backward=np.zeros(NUM_STEPS, dtype=np.int64),
    )
    rank = msgspec.structs.replace(rank, steps=steps, steps_from="forward")
    log = job_log([rank])
    assert log is not None
    job = attributed(traced(GPU_S))
    assert {"small-batch", "preprocessing"} <= set(names(diagnose(job, log=log)))
    executed = without_waits_for_gpu(log, job)
    assert names(diagnose(job, log=executed)) == []
    recording = Recording(path="r", ranks=(rank,), hosts=(), runs=(), measured=measured(), problems=())
    launching, usual = recorded_time_of(recording, executed), recorded_time_of(recording)
    assert launching is not None and usual is not None
    assert "as the host launches them, ahead of the GPU: p50" in latency_sentence(launching.calls[0])
    assert "from one call to the next: p50" in latency_sentence(usual.calls[0])
    assert launching.calls[0].is_launching is True and usual.calls[0].is_launching is msgspec.UNSET
