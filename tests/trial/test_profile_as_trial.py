"""When the steps of a profile before its trace count as a trial: each condition on both of its sides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.change.jobs import facts
from tests.trial.recordings import START_UNIX_S, measured, rank, recording

from flatout.inside.phases.consensus import num_untraced_steps
from flatout.inside.settings import StopRule
from flatout.records.change import JobFacts
from flatout.records.recording import HostRecording, RankRecording, Recording
from flatout.records.trial import TrialResult
from flatout.trial.profile_as_trial import profile_as_trial

TIMES = (0.099, 0.101, 0.100, 0.098, 0.102, 0.100)
NO_LOADER = facts(loader_workers=None, loader_watch_s=None, loader_batches=None)


def profiled(times: Sequence[float] = TIMES, number: int = 0, **values: object) -> RankRecording:
    """A rank whose warm-up has three steps, and whose operations are counted in the step after `times`."""
    durations = (2.0, 0.5, 0.1, *times, 0.7, 0.9, 0.8)
    kind = ("first", "", "", *("" for _ in times), "flops", "recovery", "traced")
    made = rank(number, durations, settled=3, kind=kind)
    steps = {name: values.pop(name) for name in ("num_loader_ends", "num_samples") if name in values}
    steps = {"num_loader_ends": np.zeros(len(durations))} | steps
    made = msgspec.structs.replace(made, **({"disturbed_from": 3 + len(times)} | values))  # type: ignore[arg-type]
    return msgspec.structs.replace(made, steps=msgspec.structs.replace(made.steps, **steps))  # type: ignore[arg-type]


def recorded(*ranks: RankRecording, exit_code: int = 0, num_runs: int = 1) -> Recording:
    run = HostRecording(
        tool_version="1", command=("python", "train.py"), run_id="1", hostname="host", is_light=False,
        start_unix_s=START_UNIX_S, end_unix_s=START_UNIX_S + 20, exit_code=exit_code,
    )  # fmt: skip
    whole = [msgspec.structs.replace(rank, world_size=len(ranks)) for rank in ranks]
    made = recording(Path("recording"), *whole, numbers=measured(samples_per_step=64.0, peak_memory_bytes=100))
    return msgspec.structs.replace(made, runs=(run,) * num_runs)


def taken(
    *ranks: RankRecording, facts: JobFacts = NO_LOADER, is_coarse: bool = False, **values: int
) -> TrialResult | None:
    return profile_as_trial(recorded(*(ranks or (profiled(),)), **values), facts, index=4, is_coarse=is_coarse)


def test_the_steps_between_the_warm_up_and_the_trace_are_the_trial() -> None:
    result = taken(profiled(), profiled([2 * step_s for step_s in TIMES], number=1))
    assert result is not None and result.is_complete
    assert result.step_s == pytest.approx([1.5 * step_s for step_s in TIMES])
    assert (result.index, result.arm, result.first_step, result.unmeasured_steps) == (4, "baseline", 3, ())
    assert result.samples_per_step == 64.0
    assert result.start_s == pytest.approx(10 + 2.6)
    assert result.took_s == pytest.approx(20.0)
    assert len(result.losses) == 12  # those of disturbed steps are the job's own too


def test_what_the_trace_affects_is_unknown() -> None:
    result = taken()
    assert result is not None
    assert (result.peak_memory_bytes, result.energy_j_per_step, result.gradients, result.start) == (None, None, (), ())


@pytest.mark.parametrize(("num_steps", "is_sound"), [(5, True), (4, False)])
def test_few_steps_are_no_trial(num_steps: int, is_sound: bool) -> None:
    assert (taken(profiled(TIMES[:num_steps])) is not None) == is_sound


@pytest.mark.parametrize(("factor", "is_sound"), [(0.9, True), (1.1, False)])
def test_steps_that_differ_too_much_are_no_trial(factor: float, is_sound: bool) -> None:
    deviation = factor * 0.05 * np.sqrt(6 - 1)  # of six steps that are as often above the mean as below
    times = 0.1 * (1 + deviation * np.array([1, -1, 1, -1, 1, -1]))
    assert (taken(profiled(times.tolist())) is not None) == is_sound


@pytest.mark.parametrize(("watch_s", "passes", "is_sound"), [(0.0009, 1, True), (0.0011, 1, False), (0.0006, 2, False)])
def test_a_loader_may_be_watched_for_a_hundredth_of_a_step(watch_s: float, passes: int, is_sound: bool) -> None:
    job = facts(loader_workers=2, loader_watch_s=watch_s, passes_per_step=passes)
    assert (taken(facts=job) is not None) == is_sound


def test_a_loader_of_which_it_is_unknown_how_long_it_was_watched_is_no_trial() -> None:
    assert taken(facts=facts(loader_workers=2, loader_watch_s=None)) is None
    samples = np.full(12, 8.0)
    assert taken(profiled(num_samples=samples)) is None


@pytest.mark.parametrize(
    ("workers", "settled", "passes", "is_sound"),
    [(0, 16, 1, True), (0, 15, 1, False), (0, 8, 2, True), (2, 32, 1, True), (2, 31, 1, False), (1, 16, 1, True)],
)
def test_a_loader_whose_first_batches_are_made_is_no_longer_watched(
    workers: int, settled: int, passes: int, is_sound: bool
) -> None:
    """Sixteen batches of each process that makes them are watched, here for far too long."""
    times = (0.1, *(0.1 for _ in range(settled - 1)), *TIMES, 0.7)
    ranked = rank(0, times, settled=settled)
    steps = msgspec.structs.replace(ranked.steps, num_loader_ends=np.zeros(len(times)))
    ranked = msgspec.structs.replace(ranked, steps=steps, disturbed_from=settled + len(TIMES))
    job = facts(loader_workers=workers, loader_watch_s=1.0, passes_per_step=passes)
    assert (taken(ranked, facts=job) is not None) == is_sound


@pytest.mark.parametrize(("step", "is_sound"), [(2, True), (3, False), (8, False), (9, True)])
def test_a_loader_that_starts_again_in_these_steps_is_no_trial(step: int, is_sound: bool) -> None:
    ends = np.zeros(12)
    ends[step] = 1
    assert (taken(profiled(num_loader_ends=ends)) is not None) == is_sound


def test_a_coarse_trial_may_contain_the_end_of_an_epoch_and_steps_that_differ() -> None:
    ends = np.zeros(12)
    ends[4] = 1
    times = (0.1, 16.0, *TIMES[2:])
    coarse = taken(profiled(times, num_loader_ends=ends), is_coarse=True)
    assert coarse is not None and coarse.is_complete
    assert coarse.step_s == pytest.approx(times) and coarse.epoch_ends == (1,)
    assert not coarse.has_other_samples
    assert taken(profiled(times, num_loader_ends=ends)) is None
    assert taken(profiled(times[:4], num_loader_ends=ends[:10]), is_coarse=True) is None


@pytest.mark.parametrize(("watch_s", "is_sound"), [(0.0049, True), (0.0051, False)])
def test_a_loader_may_be_watched_for_a_twentieth_of_a_step_of_a_coarse_trial(watch_s: float, is_sound: bool) -> None:
    job = facts(loader_workers=2, loader_watch_s=watch_s)
    assert (taken(facts=job, is_coarse=True) is not None) == is_sound
    assert taken(facts=facts(loader_workers=2, loader_watch_s=None), is_coarse=True) is None


def test_a_job_that_failed_or_lacks_a_rank_is_no_trial() -> None:
    assert taken(exit_code=1) is None
    assert taken(num_runs=2) is None
    assert taken(profiled(), profiled(number=1, settled_step=None)) is None
    assert taken(profiled(), profiled(number=1, disturbed_from=None)) is None
    assert taken(profiled(), profiled(number=1, disturbed_from=3)) is None  # no step is left
    assert profile_as_trial(recorded(), NO_LOADER) is None


@pytest.mark.parametrize(
    ("step_s", "num_steps"),
    [(0.0, 5), (1.0, 8), (0.1, 30), (2.0, 8), (0.001, 3000), (4.0, 8)],
)
def test_a_profile_measures_as_many_steps_as_a_trial_at_least(step_s: float, num_steps: int) -> None:
    rule = StopRule(min_steps=8, max_steps=4000, min_s=3.0, max_s=20.0)
    assert num_untraced_steps(rule, step_s) == num_steps


def test_the_steps_before_a_trace_are_bounded() -> None:
    assert num_untraced_steps(None, 1.0) == 5
    assert num_untraced_steps(StopRule(min_steps=2, max_steps=50, min_s=3.0), 0.001) == 50
    assert num_untraced_steps(StopRule(min_steps=2, max_steps=50), 1.0) == 5
    assert num_untraced_steps(StopRule(min_steps=2, max_steps=900, min_s=3.0, max_s=3.0), 0.1) == 30
