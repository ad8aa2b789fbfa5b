"""The stages of a rank's samples, from reports worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.trial.recordings import rank

from flatout.loading.read_reports import BatchesOfSource, Copies, LoaderReport, StageSeconds, read_reports
from flatout.loading.stages import rank_loading
from flatout.records.loading import RankLoading, SampleStage
from flatout.records.recording import RankRecording

NOTHING = StageSeconds()


def report(**changed: Any) -> LoaderReport:
    """One of two workers: 10 batches of 4 samples in 4 s of 5, of which 5 batches were timed, in 2 s."""
    content: dict[str, Any] = {
        "rank": 0,
        "worker": 0,
        "num_workers": 2,
        "pid": 100,
        "parent_pid": 99,
        "cores_allowed": 4,
        "dataset": "Images",
        "num_batches": 10,
        "num_samples": 40,
        "wall_s": 4.0,
        "elapsed_s": 5.0,
        "num_timed": 5,
        "timed_s": 2.0,
        "queued_s": 0.4,
        "read_bytes": 2000,
        "device_bytes": 500,
        "num_reads": 20,
        "watch_s": 0.01,
        "stages": {
            "decode": StageSeconds(num_calls=20, wall_s=1.2, cpu_s=0.9),
            "read": StageSeconds(num_calls=40, wall_s=0.6, cpu_s=0.1),
            "code": StageSeconds(num_calls=5, wall_s=0.2, cpu_s=0.0),
        },
        "sent": StageSeconds(num_calls=10, wall_s=0.2, cpu_s=0.1),
        "received": NOTHING,
        "pinned": NOTHING,
    }
    return LoaderReport(**content | changed)


def loading(*reports: LoaderReport) -> RankLoading:
    of_rank = rank_loading(0, "node1", reports, None, ranks_on_host=1)
    assert of_rank is not None
    return of_rank


def stage(of: RankLoading, name: str) -> SampleStage:
    return next(stage for stage in of.stages if stage.name == name)


def test_times_are_per_sample_of_the_timed_batches() -> None:
    both = loading(report(), report(worker=1, pid=101))
    assert stage(both, "decode").wall_s == pytest.approx(1.2 / 20)
    assert stage(both, "decode").num_calls == 1 and stage(both, "read").num_calls == 2
    assert [stage.name for stage in both.stages] == ["decode", "read", "code"]
    assert sum(stage.share for stage in both.stages) == pytest.approx(1)
    assert both.sample_s == pytest.approx(0.1)
    assert both.busy_share == pytest.approx(0.8)
    assert both.batch_size == 4 and both.num_batches == 20 and both.num_timed == 10
    assert (both.read_bytes, both.device_bytes) == (100, 25)
    assert both.sending_s == pytest.approx(0.005)


def test_each_stage_is_computing_waiting_or_queued() -> None:
    one = loading(report())
    for each in one.stages:
        assert each.cpu_s + each.waiting_s + each.queued_s == pytest.approx(each.wall_s)
    # 0.4 s in the queue: nine tenths belong to `decode` by its CPU time, but it has only 0.3 s that are not computing.
    assert stage(one, "decode").queued_s == pytest.approx(0.3 / 20)
    assert stage(one, "read").queued_s == pytest.approx(0.1 / 20)
    assert stage(one, "read").waiting_s == pytest.approx(0.4 / 20)
    assert stage(one, "code").waiting_s == pytest.approx(0.2 / 20)


def test_more_time_in_the_queue_than_was_idle_is_cut() -> None:
    crowded = loading(report(queued_s=100.0))
    assert sum(stage.queued_s for stage in crowded.stages) == pytest.approx((0.3 + 0.5) / 20)
    assert all(stage.waiting_s >= 0 for stage in crowded.stages)


def test_the_loader_that_made_most_samples_counts() -> None:
    evaluation = report(dataset="Validation", num_workers=1, num_batches=2, num_samples=8, num_timed=2)
    assert loading(evaluation, report()).dataset == "Images"


def test_the_training_process_receives_and_pins() -> None:
    main = report(
        worker=None,
        num_workers=0,
        dataset=None,
        num_batches=0,
        num_samples=0,
        num_timed=0,
        wall_s=0.0,
        elapsed_s=0.0,
        stages={},
        received=StageSeconds(num_calls=10, wall_s=3.0, cpu_s=0.4),  # most of it waits for a worker to answer
        pinned=StageSeconds(num_calls=10, wall_s=0.8, cpu_s=0.8),
        copied=Copies(num_copies=20, num_bytes=4000, num_timed=5, timed_s=0.1),
        process_elapsed_s=10.0,
        process_cpu_s=5.0,
    )
    one = loading(main, report())
    assert (one.receiving_s, one.pinning_s) == (pytest.approx(0.01), pytest.approx(0.02))
    assert (one.copying_s, one.copied_bytes) == (pytest.approx(0.01), pytest.approx(100))
    assert one.training_cores == pytest.approx(0.5)
    assert one.num_workers == 2


@pytest.mark.parametrize(("num_batches", "sample_s"), [(2, 0.05), (1, None)])
def test_a_source_is_timed_from_four_batches_on(num_batches: int, sample_s: float | None) -> None:
    read = BatchesOfSource(num_batches=num_batches, num_samples=8, wall_s=0.4)
    both = loading(report(from_storage=read), report(worker=1, pid=101, from_storage=read))
    assert both.from_storage_s == (None if sample_s is None else pytest.approx(sample_s))
    assert both.from_memory_s is None


@pytest.mark.parametrize(("process_cpu_s", "other_s"), [(2.37, 0.48 / 36), (2.35, None)])
def test_other_threads_of_a_worker_count_from_a_fifth_of_its_cpu_time_on(
    process_cpu_s: float, other_s: float | None
) -> None:
    """Making and sending 36 samples, those before its last batch began, takes 1.89 s of CPU time."""
    one = loading(report(process_cpu_s=process_cpu_s))
    assert one.other_threads_s == (None if other_s is None else pytest.approx(other_s))


@pytest.mark.parametrize(("num_batches", "is_known"), [(8, True), (7, False)])
def test_other_threads_are_known_from_eight_batches_on(num_batches: int, is_known: bool) -> None:
    one = loading(report(process_cpu_s=50.0, num_batches=num_batches))
    assert (one.other_threads_s is not None) is is_known


def test_without_workers_the_making_is_no_part_of_the_training() -> None:
    alone = loading(report(worker=None, num_workers=0, sent=NOTHING, process_elapsed_s=10.0, process_cpu_s=5.0))
    assert alone.busy_share is None and alone.receiving_s is None and alone.sending_s is None
    # 1 s of CPU time in the timed half of the batches, so 2 s in all of them.
    assert alone.training_cores == pytest.approx(0.3)


def test_nothing_timed_is_no_loader() -> None:
    assert rank_loading(0, "node1", [report(num_batches=0, num_timed=0, num_samples=0)], None, ranks_on_host=1) is None
    assert rank_loading(0, "node1", [], None, ranks_on_host=1) is None


@pytest.mark.parametrize(("num_batches", "is_known"), [(8, False), (9, True)])
def test_the_spread_of_batches_leaves_out_each_first_one(num_batches: int, is_known: bool) -> None:
    batch_s = (100.0, *[0.1, 0.3] * 10)[:num_batches]
    spread = loading(report(batch_s=batch_s)).batch_spread
    assert (spread is not None) == is_known
    if spread is not None:
        assert spread == pytest.approx(0.5)


def recorded_steps(**parts: list[float]) -> RankRecording:
    """Twelve steps of 100 ms after the warm-up, 40 ms of which wait for a batch."""
    made = rank(0, [0.1] * 12, settled=0)
    changed = {name: np.array(values) for name, values in parts.items()}
    steps = msgspec.structs.replace(made.steps, loader_s=np.full(12, 0.04), num_samples=np.full(12, 4.0))
    return msgspec.structs.replace(made, steps=msgspec.structs.replace(steps, **changed))


def test_evaluations_and_starts_of_loaders_are_parted_from_the_regular_steps() -> None:
    times = [0.1] * 11 + [5.1]
    recorded = recorded_steps(
        duration_s=times,
        loader_s=[0.04] * 11 + [2.04],  # the first batch of an epoch is waited for within the loader's start
        loader_start_s=[0.0] * 11 + [2.0],
        evaluation_s=[0.0] * 11 + [3.0],
    )
    of_rank = rank_loading(0, "node1", [report()], recorded, ranks_on_host=1)
    assert of_rank is not None
    assert of_rank.step_s == pytest.approx(sum(times) / 12)
    assert of_rank.aside_s == pytest.approx(5 / 12)
    assert of_rank.steady_wait_s == pytest.approx(0.04)
    assert of_rank.loader_wait_s == pytest.approx((0.04 * 12 + 2) / 12)


def test_an_older_recording_has_nothing_beside_its_steps() -> None:
    of_rank = rank_loading(0, "node1", [report()], recorded_steps(), ranks_on_host=1)
    assert of_rank is not None
    assert of_rank.aside_s == 0 and of_rank.steady_wait_s == pytest.approx(0.04)


def test_a_spawned_worker_has_the_rank_of_the_process_that_started_it(tmp_path: Path) -> None:
    """Ranks started by the script itself leave no variable by which their spawned workers could know the rank."""
    trainers = [report(rank=rank, worker=None, pid=70 + rank, parent_pid=None) for rank in range(2)]
    workers = [report(rank=0, pid=80 + rank, parent_pid=70 + rank) for rank in range(2)]
    orphan = report(rank=1, pid=90, parent_pid=1)
    for written in (*trainers, *workers, orphan):
        (tmp_path / f"stages-node1-{written.pid}.json").write_bytes(msgspec.json.encode(written))
    reports, problems = read_reports(tmp_path)
    assert problems == []
    ranks = {found.pid: found.rank for _, found in reports}
    assert ranks == {70: 0, 71: 1, 80: 0, 81: 1, 90: 1}
