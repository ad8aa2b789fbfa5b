"""Scaling from one size to another: the efficiency and the parts that consume the rest, worked out by hand."""

from __future__ import annotations

import pytest
from tests.report import builder

from flatout.records.diagnosis import Blame, Diagnosis
from flatout.report.diff import diff
from flatout.report.diff_text import diff_text
from flatout.report.scaling import parts_by_cause, scaling_of
from flatout.report.terminal import TextStyle


def job(
    num_ranks: int,
    parts: dict[str, float],
    samples_per_s: float | None = None,
    blame: tuple[Blame, ...] = (),
    **fields: object,
) -> Diagnosis:
    ranks = [builder.rank_of(rank, [parts, parts]) for rank in range(num_ranks)]
    recorded = {"mean_step_s": sum(parts.values()), "num_recorded_steps": 100, "samples_per_s": samples_per_s}
    return builder.diagnosis_of(ranks, **(recorded | fields))


def test_weak_scaling() -> None:
    """Each of 2 and of 8 ranks has 32 samples a step; steps of 100 and 125 ms: 80 %, and transfer takes the 25 ms."""
    small = job(2, {"compute": 0.09, "transfer": 0.01}, 2 * 32 / 0.1)
    large = job(8, {"compute": 0.09, "transfer": 0.035}, 8 * 32 / 0.125)
    scaling = scaling_of(small, large)
    assert scaling is not None
    assert (scaling.kind, scaling.smaller, scaling.num_ranks) == ("weak", "A", (2, 8))
    assert scaling.efficiency == pytest.approx(0.8)
    assert scaling.per_rank_rates == pytest.approx((320, 256))
    assert (scaling.lost_parts[0].part, scaling.lost_parts[0].share) == ("transfer", pytest.approx(0.2))
    text = " ".join(diff_text(diff(small, large), small, large).split())
    assert "B has 8 ranks and A has 2, and each rank does the same work in both: weak scaling." in text
    assert "Scaling efficiency 80 %, one run each: 320 samples/s per rank in A and 256 in B." in text
    assert "Most of the rest is transfer: 25.0 ms of each traced step, 20 %, beyond the ideal." in text
    assert "times as fast" not in text


def test_strong_scaling() -> None:
    """64 samples a step on 2 and on 4 ranks: the ideal step is half of 100 ms, and 80 ms are an efficiency of 62.5 %.

    Loading should fall from 40 to 20 ms and stays; computing falls from 60 to 30 ms; 10 ms of transfer are new.
    """
    small = job(2, {"compute": 0.06, "data_loading": 0.04}, 640.0)
    large = job(4, {"compute": 0.03, "data_loading": 0.04, "transfer": 0.01}, 800.0)
    scaling = scaling_of(small, large)
    assert scaling is not None and scaling.kind == "strong"
    assert scaling.efficiency == pytest.approx(0.625)
    lost = {part.part: part.lost_s for part in scaling.lost_parts}
    assert lost == pytest.approx({"data_loading": 0.02, "transfer": 0.01, "compute": 0.0})
    # The losses are what separates the step from the ideal one.
    assert sum(lost.values()) == pytest.approx(0.08 - 0.05)
    assert 1 - sum(lost.values()) / 0.08 == pytest.approx(scaling.efficiency)


def test_the_larger_job_may_come_first() -> None:
    small, large = job(2, {"compute": 0.1}, 640.0), job(4, {"compute": 0.2}, 640.0)
    forth, back = scaling_of(small, large), scaling_of(large, small)
    assert forth is not None and back is not None
    assert (back.smaller, back.efficiency, back.lost_parts) == ("B", forth.efficiency, forth.lost_parts)
    assert "A has 4 ranks and B has 2" in " ".join(diff_text(diff(large, small), large, small).split())


@pytest.mark.parametrize(
    ("samples", "kind"), [(64 * 1.04, "strong"), (64 * 1.06, "mixed"), (128 / 1.04, "weak"), (128 / 1.06, "mixed")]
)
def test_the_kind_follows_from_the_samples_per_step(samples: float, kind: str) -> None:
    scaling = scaling_of(job(2, {"compute": 0.1}, 640.0), job(4, {"compute": 0.1}, samples / 0.1))
    assert scaling is not None and scaling.kind == kind


def test_tokens_serve_if_samples_are_unknown() -> None:
    scaling = scaling_of(job(2, {"compute": 0.1}, tokens_per_s=100.0), job(4, {"compute": 0.1}, tokens_per_s=150.0))
    assert scaling is not None
    assert (scaling.efficiency, scaling.rate_unit) == (pytest.approx(0.75), "tokens/s")


def test_without_samples_both_kinds_are_possible() -> None:
    small, large = job(2, {"compute": 0.1}), job(4, {"compute": 0.08})
    scaling = scaling_of(small, large)
    assert scaling is not None and scaling.efficiency is None and scaling.kind is None
    assert (scaling.if_weak, scaling.if_strong) == pytest.approx((1.25, 0.625))
    text = " ".join(diff_text(diff(small, large), small, large).split())
    assert "The samples per step are unknown, so the scaling efficiency is too" in text


def test_jobs_of_one_size_do_not_scale() -> None:
    assert scaling_of(job(2, {"compute": 0.1}, 640.0), job(2, {"compute": 0.2}, 320.0)) is None
    assert diff(job(2, {"compute": 0.1}), job(2, {"compute": 0.2})).scaling is None


def test_ranks_without_traces_count() -> None:
    """Two of eight ranks were traced: the world has eight."""
    scaling = scaling_of(job(2, {"compute": 0.1}, 640.0), job(2, {"compute": 0.1}, 2560.0, world_size=8))
    assert scaling is not None and scaling.num_ranks == (2, 8)


def test_a_wait_counts_as_what_made_the_other_rank_late() -> None:
    """Rank 0 waits 30 ms of two steps for the loading of rank 1: a mean of 7.5 ms a step and rank."""
    ranks = [
        builder.rank_of(0, [{"compute": 0.05, "wait": 0.015}] * 2),
        builder.rank_of(1, [{"compute": 0.05, "data_loading": 0.015}] * 2),
    ]
    blame = [Blame(waiting_rank=0, blamed_rank=1, part="data_loading", wait_s=0.03)]
    parts = parts_by_cause(builder.diagnosis_of(ranks, blame=blame))
    assert parts is not None
    assert {name: value for name, value in parts.items() if value} == pytest.approx(
        {"compute": 0.05, "data_loading": 0.015}
    )
    assert parts_by_cause(builder.no_steps()) is None


def test_the_text_fits_80_columns() -> None:
    small, large = job(2, {"compute": 0.1}, 640.0), job(1024, {"compute": 0.1, "launch_latency": 0.2}, 640.0)
    for style in (TextStyle(), TextStyle(has_unicode=False)):
        assert max(map(len, diff_text(diff(small, large), small, large, style=style).splitlines())) <= 80
