"""Whose trace a file is: what the user says, what the file says, its name, and only then a guess."""

from __future__ import annotations

import pytest

from flatout.errors import InputError
from flatout.read import assign_ranks
from flatout.read.ranks import rank_in_name
from flatout.records.events import TraceMeta


def metas(*files: tuple[str, int | None], world_size: int | None = None) -> list[TraceMeta]:
    return [
        TraceMeta(path=path, rank=rank, world_size=world_size, fingerprint=f"{number}")
        for number, (path, rank) in enumerate(files)
    ]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank-3.json", 3),
        ("rank3_trace.json.gz", 3),
        ("rank_3.json", 3),
        ("Rank 3.json", 3),
        ("rank12.pt.trace.json", 12),
        ("worker3_step_12.1694128201557.pt.trace.json", 3),
        ("runs/rank-7/trace.json", 7),
        ("rank-7/runs/trace.json", None),
        ("rank-7/rank_2.json", 2),
        ("cpu_only.rank-34.json.gz", 34),
        ("job.tar.gz/job/rank5.json", 5),
        ("num_workers_4.pt.trace.json", None),
        ("crank3.json", None),
        ("trace_3.json", None),
        ("node1_12345.1694128201545.pt.trace.json", None),
        ("rank99999999999.json", None),
    ],
)
def test_rank_in_name(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


def test_the_file_is_believed_before_its_name() -> None:
    assignment = assign_ranks(metas(("rank1.json", 0), ("rank0.json", 1)))
    assert assignment.ranks == (0, 1) and not assignment.quality


def test_the_user_is_believed_before_the_file() -> None:
    files = metas(("a/x.json", 0), ("a/y.json", 1))
    assert assign_ranks(files, given={"x.json": 1, "a/y.json": 0}).ranks == (1, 0)
    with pytest.raises(InputError, match="there is no trace named z"):
        assign_ranks(files, given={"z.json": 1})


def test_names_where_the_files_say_nothing() -> None:
    assert assign_ranks(metas(("rank1.json", None), ("rank0.json", None))).ranks == (1, 0)


def test_a_single_file_is_rank_0_without_complaint() -> None:
    assignment = assign_ranks(metas(("num_workers_4.pt.trace.json", None)))
    assert assignment.ranks == (0,) and not assignment.quality
    assignment = assign_ranks(metas(("trace.json", None), world_size=8))
    assert assignment.ranks == (0,) and "does not say which rank wrote it" in assignment.quality[0].problem


def test_numbers_at_the_end_of_names_are_a_flagged_guess() -> None:
    assignment = assign_ranks(metas(("t_10.json", None), ("t_2.json.gz", None), ("t_3.pt.trace.json", None)))
    assert assignment.ranks == (10, 2, 3)
    assert "3 traces do not say" in assignment.quality[0].problem and "file name" in assignment.quality[0].effect


def test_order_is_a_flagged_guess() -> None:
    assignment = assign_ranks(metas(("a.json", None), ("b.json", 0), ("c.json", None)))
    assert assignment.ranks == (1, 0, 2)
    assert "2 traces do not say" in assignment.quality[0].problem and "order" in assignment.quality[0].effect
    timestamps = assign_ranks(metas(("t_1694128201545.json", None), ("t_1694128201546.json", None)))
    assert timestamps.ranks == (0, 1)


def test_a_copy_is_left_out() -> None:
    files = [
        TraceMeta(path="rank0.json", rank=0, fingerprint="same"),
        TraceMeta(path="rank0.json.gz", rank=0, fingerprint="same"),
        TraceMeta(path="rank1.json", rank=1, fingerprint="other"),
    ]
    assignment = assign_ranks(files)
    assert assignment.ranks == (0, None, 1)
    assert assignment.quality[0].problem == "rank0.json.gz has the same events as rank0.json"


def test_names_settle_files_that_all_say_rank_0() -> None:
    assignment = assign_ranks(metas(("rank0.json", 0), ("rank1.json", 0), ("rank2.json", 0)))
    assert assignment.ranks == (0, 1, 2) and "same rank inside" in assignment.quality[0].problem


def test_two_files_of_one_rank_are_an_error_that_names_both() -> None:
    with pytest.raises(InputError, match=r"a\.json and b\.json both say rank 0") as error:
        assign_ranks(metas(("a.json", 0), ("b.json", 0)))
    assert "--rank FILE=N" in error.value.hint


def test_no_file() -> None:
    assert assign_ranks([]).ranks == ()
