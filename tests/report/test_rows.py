from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.report import builder

from flatout.records.diagnosis import Blame
from flatout.report.blame import charges, matrix
from flatout.report.rows import mean_parts, rank_rows


def test_few_ranks_have_a_row_each() -> None:
    rows = rank_rows(builder.straggler(), most_ranks=16, most_rows=12)
    assert [row.ranks for row in rows.rows] == [(0,), (1,), (2,), (3,)]
    assert rows.tolerance is None


def test_three_outliers_of_a_thousand_are_found() -> None:
    rows = rank_rows(builder.many_ranks(), most_ranks=64, most_rows=40)
    assert [row.ranks for row in rows.rows[1:]] == [(137,), (412,), (801,)]
    assert len(rows.rows[0].ranks) == 997
    assert rows.tolerance == 0.02


def test_an_outlier_is_found_without_a_finding_that_names_it() -> None:
    diagnosis = builder.many_ranks()
    unnamed = builder.diagnosis_of(diagnosis.ranks)
    rows = rank_rows(unnamed, most_ranks=64, most_rows=40)
    assert [row.ranks for row in rows.rows[1:]] == [(137,), (412,), (801,)]


def test_a_rank_that_a_finding_names_has_its_own_row() -> None:
    ranks = [builder.rank_of(rank, [{"compute": 0.1}]) for rank in range(100)]
    diagnosis = builder.diagnosis_of(ranks, findings=[builder.finding("straggler", 0.01, 0.1, ranks=(7, 8))])
    rows = rank_rows(diagnosis, most_ranks=64, most_rows=40)
    assert [len(row.ranks) for row in rows.rows] == [98, 1, 1]
    assert [row.ranks for row in rows.rows[1:]] == [(7,), (8,)]


def test_pipeline_stages_make_a_group_each() -> None:
    ranks = [
        builder.rank_of(rank, [{"compute": 0.1 + 0.02 * (rank % 4), "bubble": 0.08 - 0.02 * (rank % 4)}])
        for rank in range(128)
    ]
    rows = rank_rows(builder.diagnosis_of(ranks), most_ranks=64, most_rows=40)
    assert sorted(row.ranks for row in rows.rows) == [tuple(range(stage, 128, 4)) for stage in range(4)]


@settings(max_examples=30, deadline=None)
@given(st.integers(17, 120), st.integers(0, 10_000), st.sampled_from([0.001, 0.05, 0.5]))
def test_rows_hold_every_rank_once_and_are_few(num_ranks: int, seed: int, spread: float) -> None:
    noise = random.Random(seed)
    ranks = [
        builder.rank_of(
            rank, [{"compute": noise.uniform(0.1, 0.1 + spread), "wait": noise.uniform(0, spread)} for _ in range(2)]
        )
        for rank in range(num_ranks)
    ]
    rows = rank_rows(builder.diagnosis_of(ranks), most_ranks=16, most_rows=12)
    assert sorted(rank for row in rows.rows for rank in row.ranks) == list(range(num_ranks))
    assert len(rows.rows) <= 12
    scale_s = float(np.median([sum(mean_parts(rank)) for rank in ranks]))
    for row in rows.rows:
        values = np.array([mean_parts(ranks[rank]) for rank in row.ranks])
        assert row.parts_s == pytest.approx(values.mean(axis=0))
        assert rows.tolerance is not None
        assert np.ptp(values, axis=0).max() <= 2 * rows.tolerance * scale_s * (1 + 1e-9)


def test_blame_of_a_matrix_is_all_of_the_blame() -> None:
    for make in builder.ALL.values():
        diagnosis = make()
        rows = rank_rows(diagnosis, most_ranks=64, most_rows=40)
        table = matrix(diagnosis, rows, most_columns=4)
        steps = {rank.rank: max(1, rank.num_steps) for rank in diagnosis.ranks}
        total_s = sum(blame.wait_s / steps[blame.waiting_rank] for blame in diagnosis.blame)
        in_cells_s = sum(
            cell.wait_s * len(row.ranks)
            for row, cells in zip(rows.rows, table.cells, strict=True)
            for cell in cells
            if cell
        )
        assert in_cells_s == pytest.approx(total_s)
        assert sum(charge.mean_wait_s for charge in charges(diagnosis)) * len(diagnosis.ranks) == pytest.approx(total_s)


def test_blame_is_per_step_of_the_waiting_rank() -> None:
    ranks = [builder.rank_of(rank, [{"compute": 0.1}] * 4) for rank in (0, 1)]
    blame = [Blame(waiting_rank=0, blamed_rank=1, part="compute", wait_s=0.2)]
    diagnosis = builder.diagnosis_of(ranks, blame=blame)
    table = matrix(diagnosis, rank_rows(diagnosis, most_ranks=64, most_rows=40), most_columns=16)
    assert table.columns == (1,)
    assert table.cells[1] == (None,)
    assert table.cells[0][0] is not None
    assert table.cells[0][0].wait_s == pytest.approx(0.05)


def test_ranks_that_wait_next_to_nothing_are_not_named() -> None:
    ranks = [builder.rank_of(rank, [{"compute": 0.1}]) for rank in range(3)]
    blame = [
        Blame(waiting_rank=rank, blamed_rank=0, part="checkpoint", wait_s=wait_s)
        for rank, wait_s in ((0, 0.001), (1, 0.05), (2, 0.03))
    ]
    charge = charges(builder.diagnosis_of(ranks, blame=blame))[0]
    assert charge.waiting_ranks == (1, 2)
    assert charge.wait_s == pytest.approx(0.04)
    assert charge.mean_wait_s == pytest.approx(0.027)
