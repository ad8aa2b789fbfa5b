"""The model of a loader, against speeds worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from flatout.loading.speed import best_workers, loader_speeds, predicted_speed
from flatout.records.loading import LoaderSpeed, RankLoading, SampleStage


def a_stage(name: str, *, cpu_s: float = 0.0, waiting_s: float = 0.0, queued_s: float = 0.0) -> SampleStage:
    wall_s = cpu_s + waiting_s + queued_s
    return SampleStage(
        name=name, wall_s=wall_s, cpu_s=cpu_s, queued_s=queued_s, waiting_s=waiting_s, num_calls=1, share=1.0
    )


def a_loader(*stages: SampleStage, **changed: Any) -> RankLoading:
    """A rank that computes 10 ms a step, on 8 samples, and waits 32 ms for them; without workers, on 8 cores."""
    content: dict[str, Any] = {
        "rank": 0,
        "hostname": "node1",
        "dataset": "Images",
        "is_iterable": False,
        "num_workers": 0,
        "cores_allowed": 8,
        "ranks_on_host": 1,
        "batch_size": 8,
        "num_batches": 100,
        "num_timed": 100,
        "sample_s": 0.004,
        "batch_spread": 0.0,
        "busy_share": None,
        "stages": stages or (a_stage("decode", cpu_s=0.004),),
        "places": (),
        "read_bytes": None,
        "device_bytes": None,
        "sending_s": None,
        "receiving_s": None,
        "pinning_s": None,
        "training_cores": 0.0,
        "watch_share": 0.0,
        "step_s": 0.042,
        "loader_wait_s": 0.032,
        "samples_per_step": 8,
    }
    return RankLoading(**content | changed)


def speed(loading: RankLoading, num_workers: int) -> LoaderSpeed:
    predicted = predicted_speed(loading, num_workers)
    assert predicted is not None
    return predicted


def test_without_workers_times_add_up() -> None:
    none = speed(a_loader(), 0)
    assert none.samples_per_s == pytest.approx(250)
    assert none.training_samples_per_s == pytest.approx(8 / 0.042)


def test_a_slow_storage_holds_up_a_training_without_workers_too() -> None:
    slow = speed(a_loader(storage_samples_per_s=100.0), 0)
    assert slow.training_samples_per_s == pytest.approx(8 / (0.010 + 8 / 100)) and slow.limit == "storage"


@pytest.mark.parametrize(("num_workers", "step_s"), [(1, 0.032), (2, 0.016), (4, 0.010), (8, 0.010)])
def test_workers_make_samples_while_the_training_computes(num_workers: int, step_s: float) -> None:
    assert speed(a_loader(), num_workers).training_samples_per_s == pytest.approx(8 / step_s)


def test_workers_that_compute_need_cores() -> None:
    on_two = a_loader(cores_allowed=2)
    assert speed(on_two, 4).samples_per_s == pytest.approx(500)
    assert speed(on_two, 4).limit == "cores" and speed(on_two, 1).limit == "workers"


@pytest.mark.parametrize(
    ("others", "ranks", "samples_per_s"),
    [(None, 1, 500), (0.19, 1, 500), (0.2, 1, 500 / 1.1), (2.0, 1, 250), (None, 4, 125), (2.0, 2, 125)],
)
def test_a_rank_has_its_share_of_the_cores_that_others_leave(
    others: float | None, ranks: int, samples_per_s: float
) -> None:
    """Two cores, and samples of 4 ms; a tenth of the cores is the system's own noise."""
    shared = a_loader(cores_allowed=2, cores_busy_by_others=others, ranks_on_host=ranks)
    assert speed(shared, 8).samples_per_s == pytest.approx(samples_per_s)


def test_other_threads_of_a_worker_need_cores_too() -> None:
    waiting = a_loader(a_stage("code", waiting_s=0.004), other_threads_s=0.004, cores_allowed=2)
    assert speed(waiting, 4).samples_per_s == pytest.approx(500) and speed(waiting, 4).limit == "cores"


def test_workers_that_wait_need_none() -> None:
    waiting = a_loader(a_stage("read", waiting_s=0.004), cores_allowed=2)
    assert speed(waiting, 8).samples_per_s == pytest.approx(2000)


def test_ranks_of_a_host_share_its_cores() -> None:
    assert speed(a_loader(ranks_on_host=4), 8).samples_per_s == pytest.approx(500)


def test_time_in_the_queue_for_a_core_is_no_part_of_a_sample() -> None:
    crowded = a_loader(a_stage("decode", cpu_s=0.004, queued_s=0.1))
    assert speed(crowded, 1).samples_per_s == pytest.approx(250)


def test_the_training_process_receives_every_batch() -> None:
    received = a_loader(receiving_s=0.002)
    assert speed(received, 8).samples_per_s == pytest.approx(500)
    assert speed(received, 8).limit == "main process"
    assert speed(received, 8).training_samples_per_s == pytest.approx(8 / 0.026)


def test_the_training_needs_cores_too() -> None:
    busy = a_loader(cores_allowed=2, training_cores=1.0)
    # A step needs 42 ms of CPU time for the training and 32 ms for its samples, on two cores.
    assert speed(busy, 4).training_samples_per_s == pytest.approx(8 / 0.037)


def test_what_stands_beside_the_regular_steps_is_not_made_faster_by_workers() -> None:
    """Two workers make 8 samples in 16 ms, of which a step of 10 ms waits for 6; evaluations take 50 ms per step."""
    loading = a_loader(num_workers=2, step_s=0.076, loader_wait_s=0.036, aside_s=0.06, steady_wait_s=0.006)
    assert speed(loading, 2).training_samples_per_s == pytest.approx(8 / 0.076)
    assert speed(loading, 4).training_samples_per_s == pytest.approx(8 / 0.070)
    assert speed(loading, 1).training_samples_per_s == pytest.approx(8 / 0.092)
    assert speed(loading, 0).training_samples_per_s == pytest.approx(8 / 0.102)
    best = best_workers(loader_speeds(loading))
    assert best is not None and best.num_workers == 4


def test_the_fewest_workers_within_five_percent_are_best() -> None:
    best = best_workers(loader_speeds(a_loader()))
    assert best is not None and best.num_workers == 4  # 3.2 would do


def test_numbers_of_workers_end_where_more_bring_nothing() -> None:
    counts = [speed.num_workers for speed in loader_speeds(a_loader(num_workers=3, cores_allowed=2))]
    assert counts == [0, 1, 2, 3, 4]


def test_without_measured_steps_nothing_is_predicted() -> None:
    assert loader_speeds(a_loader(step_s=None)) == ()
    assert loader_speeds(a_loader(samples_per_step=None)) == ()
    assert best_workers(()) is None
