"""Why the training waits: each cause, and both sides of each threshold."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.loading.test_speed import a_loader, a_stage

from flatout.loading import causes
from flatout.loading.causes import find_causes
from flatout.loading.speed import loader_speeds
from flatout.records.loading import LoaderFinding, RankLoading


def first_cause(loading: RankLoading) -> LoaderFinding | None:
    found = find_causes(loading)
    return found[0].name if found else None


@pytest.mark.parametrize(
    ("stages", "name"),
    [
        ([("decode", 4, 0), ("code", 1, 0)], LoaderFinding.DECODE),
        ([("decode", 1, 4), ("code", 1, 0)], LoaderFinding.STORAGE),
        ([("decompress", 4, 0), ("decode", 1, 0)], LoaderFinding.DECOMPRESS),
        ([("read", 0, 4), ("decode", 1, 0)], LoaderFinding.STORAGE),
        ([("open", 0, 4), ("decode", 1, 0)], LoaderFinding.OPENING),
        ([("collate", 4, 0), ("decode", 1, 0)], LoaderFinding.COLLATE),
        ([("code", 4, 0), ("decode", 1, 0)], LoaderFinding.CODE),
        ([("code", 0, 4), ("decode", 1, 0)], LoaderFinding.CODE_WAITS),
        ([("transform Crop", 3, 0), ("transform Flip", 2, 0), ("decode", 4, 0)], LoaderFinding.TRANSFORM),
    ],
)
def test_the_stage_with_most_work_is_the_cause(stages: list[tuple[str, int, int]], name: LoaderFinding) -> None:
    made = [a_stage(stage, cpu_s=cpu * 1e-3, waiting_s=waiting * 1e-3) for stage, cpu, waiting in stages]
    assert first_cause(a_loader(*made)) == name


@pytest.mark.parametrize(("files", "name"), [(3.0, LoaderFinding.OPENING), (2.9, LoaderFinding.DECODE)])
def test_where_a_sample_has_several_files_opening_and_reading_them_count_together(
    files: float, name: LoaderFinding
) -> None:
    opened = msgspec.structs.replace(a_stage("open", cpu_s=0.003), num_calls=files, share=0.3)
    read = msgspec.structs.replace(a_stage("read", cpu_s=0.002), share=0.2)
    (cause,) = find_causes(a_loader(a_stage("decode", cpu_s=0.004), opened, read))
    assert cause.name == name
    if name == LoaderFinding.OPENING:
        assert (cause.stage, cause.share_of_sample) == ("open", 0.5)


def test_batches_that_waited_for_cores_are_no_slow_samples() -> None:
    """At a load of 8 on two cores, the batches of four jobs of equal samples differed by more than half."""
    stage = a_stage("decode", cpu_s=0.004, queued_s=0.004)
    found = find_causes(a_loader(stage, num_workers=2, busy_share=0.5, batch_spread=0.9))
    assert [cause.name for cause in found] == [LoaderFinding.BUSY_CORES, LoaderFinding.DECODE]


def test_of_several_transforms_the_largest_is_named() -> None:
    stages = [a_stage("transform Crop", cpu_s=0.003), a_stage("transform Flip", cpu_s=0.002)]
    (cause,) = find_causes(a_loader(*stages))
    assert cause.stage == "transform Crop"


@pytest.mark.parametrize(("wait_s", "is_found"), [(0.0021, True), (0.0019, False)])
def test_below_five_percent_of_the_step_nothing_is_reported(wait_s: float, is_found: bool) -> None:
    assert bool(find_causes(a_loader(step_s=0.04, loader_wait_s=wait_s))) == is_found
    assert causes.MIN_WAIT == 0.05


@pytest.mark.parametrize(("queued_s", "name"), [(0.0018, LoaderFinding.BUSY_CORES), (0.0016, LoaderFinding.DECODE)])
def test_cores_are_busy_if_three_tenths_of_the_time_is_queued(queued_s: float, name: LoaderFinding) -> None:
    assert first_cause(a_loader(a_stage("decode", cpu_s=0.004, queued_s=queued_s))) == name


@pytest.mark.parametrize(("num_workers", "ranks", "name"), [(4, 2, "busy-cores"), (5, 2, "worker-oversubscription")])
def test_more_workers_than_cores_are_too_many(num_workers: int, ranks: int, name: str) -> None:
    crowded = a_loader(a_stage("decode", cpu_s=0.004, queued_s=0.004), num_workers=num_workers, ranks_on_host=ranks)
    assert first_cause(crowded) == name


@pytest.mark.parametrize(
    ("busy", "spread", "name"),
    [
        (0.89, 0.51, LoaderFinding.UNEVEN_BATCHES),
        (0.91, 0.51, LoaderFinding.DECODE),
        (0.89, 0.49, LoaderFinding.DECODE),
    ],
)
def test_single_batches_are_the_cause_if_workers_have_time_to_spare(
    busy: float, spread: float, name: LoaderFinding
) -> None:
    assert first_cause(a_loader(num_workers=2, busy_share=busy, batch_spread=spread)) == name


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"num_workers": 1, "sending_s": 0.0041}, LoaderFinding.SENDING),
        ({"num_workers": 1, "sending_s": 0.0039}, LoaderFinding.DECODE),
        ({"num_workers": 1, "receiving_s": 0.0041}, LoaderFinding.SENDING),
        ({"num_workers": 1, "receiving_s": 0.0039}, LoaderFinding.DECODE),
        ({"num_workers": 1, "pinning_s": 0.0027}, LoaderFinding.PINNING),
        ({"num_workers": 1, "pinning_s": 0.0026}, LoaderFinding.DECODE),
    ],
)
def test_sending_and_pinning_are_causes_if_they_are_slowest(changed: dict[str, Any], name: LoaderFinding) -> None:
    assert first_cause(a_loader(**changed)) == name


@pytest.mark.parametrize(("cpu_s", "name"), [(0.0019, LoaderFinding.CODE_WAITS), (0.0021, LoaderFinding.CODE)])
def test_a_stage_waits_if_it_does_so_for_half_of_its_work(cpu_s: float, name: LoaderFinding) -> None:
    assert first_cause(a_loader(a_stage("code", cpu_s=cpu_s, waiting_s=0.002, queued_s=0.001))) == name


@pytest.mark.parametrize(
    ("stage", "cpu_s", "other_threads_s", "name"),
    [
        ("transform fetch", 0.0019, None, LoaderFinding.CODE_WAITS),
        ("transform fetch", 0.0021, None, LoaderFinding.TRANSFORM),
        ("transform fetch", 0.0019, 0.0011, LoaderFinding.CODE),
        ("code", 0.0019, 0.0009, LoaderFinding.CODE_WAITS),
        ("code", 0.0019, 0.0011, LoaderFinding.CODE),
        ("decode", 0.0019, 0.0009, LoaderFinding.STORAGE),
        ("decode", 0.0019, 0.0011, LoaderFinding.DECODE),
    ],
)
def test_a_stage_that_waits_for_threads_which_compute_for_half_of_that_time_computes(
    stage: str, cpu_s: float, other_threads_s: float | None, name: LoaderFinding
) -> None:
    waiting = a_stage(stage, cpu_s=cpu_s, waiting_s=0.002)
    assert first_cause(a_loader(waiting, num_workers=1, other_threads_s=other_threads_s)) == name


@pytest.mark.parametrize(("cpu_s", "name"), [(0.00101, LoaderFinding.COLLATE), (0.00099, LoaderFinding.UNKNOWN)])
def test_a_stage_is_the_cause_from_a_quarter_of_the_work_on(cpu_s: float, name: LoaderFinding) -> None:
    others = [a_stage(stage, cpu_s=(0.004 - cpu_s) / 4) for stage in ("open", "read", "decode", "code")]
    assert first_cause(a_loader(a_stage("collate", cpu_s=cpu_s), *others)) == name


def test_if_no_stage_stands_out_the_cause_is_unknown() -> None:
    stages = [a_stage(name, cpu_s=0.001) for name in ("open", "read", "decode", "code", "collate")]
    assert first_cause(a_loader(*stages)) == LoaderFinding.UNKNOWN


def test_workers_are_offered_where_the_model_predicts_a_gain() -> None:
    loading = a_loader()
    (cause,) = find_causes(msgspec.structs.replace(loading, speeds=loader_speeds(loading)))
    assert (cause.workers, cause.gain) == (4, pytest.approx(4.2))


def test_workers_are_not_offered_where_they_bring_nothing() -> None:
    loading = a_loader(cores_allowed=1, num_workers=1, training_cores=0.0, step_s=0.033, loader_wait_s=0.023)
    (cause,) = find_causes(msgspec.structs.replace(loading, speeds=loader_speeds(loading)))
    assert cause.workers is None and cause.gain is None
