"""Traces that are partial, impossible or of several devices: synthetic, rebuilt after public reports, truth known."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from tests.diagnose.jobs import found, names

from flatout.diagnosis_pipeline import Diagnosed, diagnose_paths
from flatout.records.diagnosis import Diagnosis
from flatout.report.text import diagnosis_text

CASES = Path(__file__).parents[1] / "data" / "cases"


@cache
def case(name: str) -> Diagnosed:
    return diagnose_paths([CASES / f"{name}.tar.xz"])


def shares(diagnosis: Diagnosis, rank: int = 0) -> dict[str, float]:
    found_rank = next(each for each in diagnosis.ranks if each.rank == rank)
    return {name: seconds / found_rank.window_s for name, seconds in found_rank.parts_s.items()}


def problems(diagnosis: Diagnosis) -> str:
    return "; ".join(note.problem for note in diagnosis.data_quality)


def test_impossibly_long_work_is_cut_and_reported() -> None:
    """After Hyperloom#1116 and TraceLens#669: a copy of 9.7 MB "lasts" 3.15 s over hundreds of later kernels."""
    diagnosis = case("s2bad").diagnosis
    for rank in (0, 1):
        assert shares(diagnosis, rank)["compute"] == pytest.approx(0.572, abs=0.002)
        assert shares(diagnosis, rank)["memory_copy"] < 0.002
    assert "memory-copy" not in names(diagnosis)
    assert "5 pieces of GPU work outlast later work on their stream, which is impossible" in problems(diagnosis)
    assert "high" not in {finding.confidence for finding in diagnosis.findings if 0 in finding.ranks}


def test_lost_kernels_are_no_host_bound_job() -> None:
    """After pytorch#192021: half of the launches have no kernel; the GPU was about 93 % busy."""
    diagnosis = case("pt192021").diagnosis
    assert "host-bound" not in names(diagnosis)
    assert "182 of 364 launches (50 %) have no kernel in the trace: the profiler lost them" in problems(diagnosis)
    assert {finding.confidence for finding in diagnosis.findings} <= {"inconclusive"}
    assert shares(diagnosis)["unattributed"] == pytest.approx(0.5, abs=0.02)


def test_nccl_without_gpu_events_is_an_unknown_device() -> None:
    """After HTA#247."""
    diagnosis = case("hta247b").diagnosis
    assert diagnosis.job.ranks_of_unknown_device == (0, 1)
    assert not diagnosis.findings
    text = diagnosis_text(diagnosis)
    assert "device unknown" in text and "CPU" not in text
    assert shares(diagnosis)["compute"] == 0


def test_a_model_split_over_four_gpus_is_not_one_busy_gpu() -> None:
    """After trl#2256: one process uses four GPUs in turn."""
    diagnosis = case("devmap").diagnosis
    (rank,) = diagnosis.ranks
    assert [device.device for device in rank.devices] == [0, 1, 2, 3]
    for device in rank.devices:
        assert device.parts_s["compute"] == pytest.approx(0.24 * 0.4, rel=0.01)
    assert shares(diagnosis)["compute"] == pytest.approx(0.24, abs=0.003)
    finding = found(diagnosis, "idle-devices")
    assert finding.share_of_step == pytest.approx(0.72, abs=0.01)
    assert "GPUs 0-3" in finding.title


def test_data_parallel_names_the_gpus_that_idle() -> None:
    """After pytorch#18522: three of four GPUs idle half of the step, and nothing takes 209 % of a step."""
    diagnosis = case("dp").diagnosis
    finding = found(diagnosis, "idle-devices")
    assert "GPUs 1-3 idle for 53 % of the step" in finding.title
    text = diagnosis_text(diagnosis)
    assert max(float(share) for share in re.findall(r"([\d.]+) %", text)) <= 100
    assert diagnosis.job.world_size == 1
    assert "no trace says how many ranks" not in problems(diagnosis)
