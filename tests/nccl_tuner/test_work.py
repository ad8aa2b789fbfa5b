"""Which collectives are measured: those in a job's traces, by group and size, or standard ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flatout.diagnosis_pipeline import diagnose_paths
from flatout.errors import InputError
from flatout.nccl_tuner.work import MAX_SIZES, STANDARD_COLLECTIVES, STANDARD_SIZES, standard_work, work_of
from flatout.records.nccl_tuning import CollectiveWork
from flatout.testing import TraceBuilder

STEPS = 3


def traced(tmp_path: Path, calls: list[dict[str, object]], world_size: int = 4) -> CollectiveWork:
    """The work of a job whose ranks make these calls in each of three steps."""
    for rank in range(world_size):
        trace = TraceBuilder(rank=rank, world_size=world_size)
        for step in range(STEPS):
            start = 10_000 * step
            trace.step(step + 1, start, 9_000)
            trace.launch("gemm", start + 110, 10, start + 130, 300)
            at = start + 500
            for number, call in enumerate(calls):
                options = dict(call)
                groups = options.pop("groups", None)
                if isinstance(groups, tuple):
                    mine = next((ranks for ranks in groups if rank in ranks), None)
                    if mine is None:
                        continue
                    options |= {"group_ranks": mine, "group": str(mine)}
                operation = str(options.pop("operation"))
                trace.collective(operation, at, at + 50, 100, sequence=step * 100 + number, **options)  # type: ignore[arg-type]
                at += 200
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(trace.to_json()))
    return work_of(diagnose_paths([tmp_path]).job, world_size, "the recording")


def test_sizes_groups_and_calls_per_step_are_those_of_the_job(tmp_path: Path) -> None:
    pairs = ((0, 1), (2, 3))
    work = traced(
        tmp_path,
        [
            {"operation": "allreduce", "num_elements": 1 << 20},
            {"operation": "allreduce", "num_elements": 1 << 20},
            {"operation": "allreduce", "num_elements": 256},
            {"operation": "allreduce", "num_elements": 300_000, "groups": pairs},
        ],
    )
    assert not work.is_standard
    assert [shape.groups for shape in work.shapes] == [((0, 1, 2, 3),), pairs]
    cases = [(case.collective, case.shape, case.num_bytes, case.calls_per_step) for case in work.cases]
    assert cases == [
        ("all_reduce", 0, 1024, 1.0),
        ("all_reduce", 0, 4 << 20, 2.0),
        ("all_reduce", 1, 1_200_000, 1.0),
    ]


def test_sizes_within_a_factor_of_two_are_measured_once_with_the_calls_of_all(tmp_path: Path) -> None:
    calls = [{"operation": "allreduce", "num_elements": count} for count in (5000, 5001, 6000, 6000, 9000)]
    work = traced(tmp_path, calls, world_size=2)
    assert [(case.num_bytes, case.calls_per_step) for case in work.cases] == [(24_000, 4.0), (36_000, 1.0)]


def test_at_most_twelve_sizes_are_measured_those_that_move_most(tmp_path: Path) -> None:
    calls = [{"operation": "allreduce", "num_elements": 1 << shift} for shift in range(4, 4 + MAX_SIZES + 1)]
    work = traced(tmp_path, calls, world_size=2)
    assert [case.num_bytes for case in work.cases] == [4 << shift for shift in range(5, 5 + MAX_SIZES)]
    assert MAX_SIZES == 12


def test_what_nccl_asks_no_tuner_about_is_named(tmp_path: Path) -> None:
    work = traced(
        tmp_path,
        [{"operation": "all_to_all", "num_elements": 4096}, {"operation": "allreduce", "num_elements": 4096}],
        world_size=2,
    )
    assert [case.collective for case in work.cases] == ["all_reduce"]
    assert any("all_to_all" in note for note in work.notes)


def test_without_such_a_collective_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no collective that NCCL asks a tuner about"):
        traced(tmp_path, [{"operation": "all_to_all", "num_elements": 4096}], world_size=2)


def test_standard_work_says_that_it_is_standard() -> None:
    work = standard_work(8)
    assert work.is_standard
    assert "no recording" in work.source
    assert work.shapes[0].groups == (tuple(range(8)),)
    assert len(work.cases) == len(STANDARD_COLLECTIVES) * len(STANDARD_SIZES)
    assert (STANDARD_SIZES[0], STANDARD_SIZES[-1]) == (4 << 10, 256 << 20)
    assert max(case.num_bytes for case in standard_work(2, largest_bytes=1 << 20).cases) == 1 << 20
