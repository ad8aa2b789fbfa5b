"""What the stages of a profile say about the number of workers, as candidates, predictions and a note."""

from __future__ import annotations

from typing import Any

import pytest
from tests.change.jobs import facts
from tests.loading.test_speed import a_loader, a_stage

from flatout.change.dataloader import worker_counts
from flatout.loading.causes import find_causes
from flatout.loading.speed import loader_speeds
from flatout.records.loading import LoadingProfile, RankLoading, SampleStage
from flatout.tune.loader_model import note_on_workers, with_loader_model


def a_profile(*stages: SampleStage, **changed: Any) -> LoadingProfile:
    """A rank that computes 10 ms a step, on 8 samples, and waits 32 ms for them."""
    loading = a_loader(*stages, **changed)
    values = {name: getattr(loading, name) for name in loading.__struct_fields__}
    loading = RankLoading(**{**values, "speeds": loader_speeds(loading)})
    return LoadingProfile(recording="r", ranks=(loading,), slowest_rank=0, is_waiting=True, causes=find_causes(loading))


def counts(profile: LoadingProfile, num_workers: int = 0) -> tuple[int, ...]:
    return worker_counts(with_loader_model(facts(loader_workers=num_workers), profile))


def test_the_candidates_are_the_best_number_and_its_neighbours() -> None:
    # A sample of 4 ms: 3.2 workers make eight of them in the 10 ms of a step.
    assert counts(a_profile()) == (4, 8, 2)
    modelled = with_loader_model(facts(loader_workers=0), a_profile())
    assert modelled.loader_best_gain == pytest.approx(4.2)
    assert modelled.loader_pace_s[:5] == pytest.approx((0.032, 0.032, 0.016, 0.032 / 3, 0.008))


def test_workers_that_wait_are_more_than_the_cores() -> None:
    waiting = a_stage("read", waiting_s=0.02)
    slow: dict[str, Any] = {"step_s": 0.17, "loader_wait_s": 0.16, "cores_allowed": 2}
    assert counts(a_profile(waiting, **slow)) == (16, 32, 8)


def test_workers_that_decode_are_no_more_than_the_cores() -> None:
    decoding: dict[str, Any] = {"num_workers": 2, "cores_allowed": 2, "step_s": 0.016, "loader_wait_s": 0.014}
    profile = a_profile(a_stage("decode", cpu_s=0.004), **decoding)
    assert max(counts(profile, num_workers=2), default=0) <= 2


def test_where_workers_are_not_the_fix_one_trial_still_compares_the_model_with_the_job() -> None:
    decoding: dict[str, Any] = {"num_workers": 8, "cores_allowed": 2, "step_s": 0.016, "loader_wait_s": 0.014}
    profile = a_profile(a_stage("decode", cpu_s=0.004), **decoding)
    modelled = with_loader_model(facts(loader_workers=8), profile)
    assert modelled.loader_best_gain == pytest.approx(1.0)
    assert worker_counts(modelled) == (2,)
    note = note_on_workers(modelled, profile)
    assert note is not None and "decode-bound" in note and "limited by its cores" in note


def test_where_the_ranks_keep_all_cores_busy_workers_are_not_the_fix() -> None:
    """pytorch/pytorch#65288: two ranks on two cores tokenize in `__getitem__`, without workers."""
    busy: dict[str, Any] = {"cores_allowed": 2, "ranks_on_host": 2, "training_cores": 10 / 42}
    profile = a_profile(**busy)  # 32 ms of a step of 42 ms make the samples, 10 ms train
    modelled = with_loader_model(facts(loader_workers=0), profile)
    assert modelled.loader_pace_s[1:4] == pytest.approx((0.042, 0.042, 0.042))
    assert modelled.loader_best_gain == pytest.approx(1.0)
    assert worker_counts(modelled) == (1,)
    note = note_on_workers(modelled, profile)
    assert note is not None and "limited by its cores" in note


@pytest.mark.parametrize(("training_cores", "limit"), [(0.6, "main process"), (0.64, "cores")])
def test_cores_limit_where_they_are_busy_for_nine_tenths_of_a_step_with_a_worker(
    training_cores: float, limit: str
) -> None:
    """With one worker a step takes 32 ms; on two cores its work takes (32 + 42 * `training_cores`) / 2 ms."""
    profile = a_profile(cores_allowed=2, training_cores=training_cores)
    assert with_loader_model(facts(loader_workers=0), profile).loader_limit == limit


@pytest.mark.parametrize(("training_cores", "is_said"), [(8 / 42, True), (2 / 42, True), (1 / 42, False)])
def test_little_that_busy_cores_leave_is_said(training_cores: float, is_said: bool) -> None:
    """Two cores for two ranks: making the samples takes 32 ms of CPU time in a step of 42 ms."""
    busy: dict[str, Any] = {"cores_allowed": 2, "ranks_on_host": 2, "training_cores": training_cores}
    modelled = with_loader_model(facts(loader_workers=0), a_profile(**busy))
    assert modelled.loader_best_gain == pytest.approx(42 / (32 + 42 * training_cores))
    note = note_on_workers(modelled, a_profile(**busy))
    assert (note is not None and "take turns with it on busy cores" in note) is is_said


@pytest.mark.parametrize(
    ("changed", "is_said"),
    [
        ({}, True),
        ({"cores_busy_by_job": 1.8}, False),  # they would do its work 1.11 times as fast
        ({"cores_busy_by_job": None}, False),
        ({"loader_cpu_share": 0.2}, False),  # it waits
        ({"loader_load": 0.04}, False),
    ],
)
def test_without_timed_stages_busy_cores_are_said_too(changed: dict[str, Any], is_said: bool) -> None:
    nothing = LoadingProfile(recording="r", ranks=(), slowest_rank=None, is_waiting=None)
    busy: dict[str, Any] = {"cores_allowed": 2.0, "cores_busy_by_job": 1.95, "loader_load": 0.8, "loader_workers": 0}
    note = note_on_workers(facts(**busy | changed), nothing)
    assert (note is not None and "of the 2 cores busy" in note) is is_said


@pytest.mark.parametrize(("steady_wait_s", "is_said"), [(0.0009, True), (0.0007, False)])
def test_where_the_training_waits_for_loaders_to_start_no_word_is_said_of_workers(
    steady_wait_s: float, is_said: bool
) -> None:
    decoding: dict[str, Any] = {"num_workers": 8, "cores_allowed": 2, "step_s": 0.016, "loader_wait_s": 0.014}
    starts = {"aside_s": 0.014 - steady_wait_s, "steady_wait_s": steady_wait_s}
    profile = a_profile(a_stage("decode", cpu_s=0.004), **decoding, **starts)
    modelled = facts(loader_workers=8, loader_best_gain=1.0, loader_limit="cores")
    assert (note_on_workers(modelled, profile) is not None) is is_said


def test_there_is_no_note_where_workers_help_or_the_batches_arrive_in_time() -> None:
    profile = a_profile()
    assert note_on_workers(with_loader_model(facts(), profile), profile) is None
    in_time = LoadingProfile(recording="r", ranks=profile.ranks, slowest_rank=0, is_waiting=False)
    assert note_on_workers(with_loader_model(facts(loader_workers=8), in_time), in_time) is None


def test_without_timed_stages_the_facts_are_as_before() -> None:
    nothing = LoadingProfile(recording="r", ranks=(), slowest_rank=None, is_waiting=None)
    assert with_loader_model(facts(), nothing) == facts()
