"""The rule `idle-devices`."""

from __future__ import annotations

import msgspec
import pytest
from tests.diagnose.jobs import GEMM, STEP, costs_us, found, free_of_recorder_cost, names, times

from flatout.attribute.job import attribute_job
from flatout.attribute.rank import attribute_rank
from flatout.diagnose.find import diagnose
from flatout.records.diagnosis import Finding
from flatout.report.rows import rank_rows
from flatout.report.text import diagnosis_text
from flatout.testing import TraceBuilder


def driving(*busy_us: tuple[float, float], num_steps: int = 3) -> TraceBuilder:
    """One process whose GPU k works from and until these times in each step."""
    trace = TraceBuilder(0, 1)
    for number, at in times(num_steps):
        trace.step(number, at, STEP)
        for device, (begin, end) in enumerate(busy_us):
            trace.on_device(device).launch(GEMM, at, 1, at + begin, end - begin)
    return trace


def finding_of(*busy_us: tuple[float, float]) -> Finding:
    return found(free_of_recorder_cost(driving(*busy_us)), "idle-devices")


def test_a_model_split_over_gpus_uses_one_at_a_time() -> None:
    """Four GPUs in turn, a quarter of the step each: each waits for the others in three quarters."""
    finding = finding_of((1, 2500), (2500, 5000), (5000, 7500), (7500, STEP))
    assert finding.cost_s_per_step == pytest.approx(0.75 * STEP * 1e-6, rel=0.001)
    assert finding.evidence["devices_work_in_turn"] is True
    assert finding.evidence["busy_share"]["GPU 2"] == pytest.approx(0.25)
    assert "drives 4 GPUs that work in turn, 25 % of the time" in finding.title
    assert "GPUs 0-3 idle for 75 % of the step" in finding.title


def test_the_gpus_that_wait_for_the_first_one_are_named() -> None:
    """DataParallel: all compute for 4 ms, then the first one alone for 6 ms."""
    finding = finding_of((1, STEP), (1, 4000), (1, 4000))
    assert finding.cost_s_per_step == pytest.approx(2 / 3 * 6000e-6, rel=0.001)
    assert finding.evidence["devices_work_in_turn"] is False
    assert "work unevenly" in finding.title and "GPUs 1, 2 idle for 60 % of the step" in finding.title


@pytest.mark.parametrize(("end", "named"), [(6600, "GPU 2 idles"), (6400, "GPUs 1, 2 idle")])
def test_gpus_are_named_that_idle_half_as_long_as_the_idlest(end: float, named: str) -> None:
    """GPU 2 idles for 7 ms, and GPU 1 for 3.4 or 3.6."""
    assert named in finding_of((1, STEP), (1, end), (1, 3000)).title


def test_one_idle_gpu_is_named_in_the_singular() -> None:
    assert "GPU 1 idles for 60 % of the step" in finding_of((1, STEP), (1, 4000)).title


@pytest.mark.parametrize(
    ("num_visible", "words"),
    [(2, ""), (3, "; 1 more that it sees is not used"), (8, "; 6 more that it sees are not used")],
)
def test_gpus_that_the_process_sees_and_does_not_use_are_counted(num_visible: int, words: str) -> None:
    table = driving((1, STEP), (1, 4000)).to_table()
    table = msgspec.structs.replace(table, meta=msgspec.structs.replace(table.meta, num_devices=num_visible))
    finding = found(diagnose(attribute_job([attribute_rank(table)])), "idle-devices")
    assert finding.title.endswith(f"while another one works{words}")


def test_only_the_time_in_which_another_gpu_works_counts() -> None:
    """Both work for 4 ms, and nothing for 6: that is the host's."""
    diagnosis = free_of_recorder_cost(driving((1, 4000), (1, 4000)))
    assert "idle-devices" not in names(diagnosis)
    assert "host-bound" in names(diagnosis)


@pytest.mark.parametrize(("end", "is_told"), [(9601, False), (9599, True)])
def test_two_percent_of_the_step_is_the_least(end: float, is_told: bool) -> None:
    """The second GPU idles for 4 %, 2 % as the mean of both."""
    assert ("idle-devices" in names(free_of_recorder_cost(driving((1, STEP), (1, end))))) == is_told


@pytest.mark.parametrize(("begin", "in_turn"), [(4100, True), (3900, False)])
def test_gpus_work_in_turn_if_a_tenth_of_their_work_overlaps(begin: float, in_turn: bool) -> None:
    """GPU 0 from 0 to 5 ms and GPU 1 until 10 ms: an overlap of 1 ms in 10."""
    assert finding_of((1, 5000), (begin, STEP)).evidence["devices_work_in_turn"] is in_turn


def test_no_share_is_above_the_step_and_no_cost_is_counted_twice() -> None:
    diagnosis = free_of_recorder_cost(driving((1, STEP), (1, 4000), (1, 4000)))
    assert sum(costs_us(diagnosis).values()) <= STEP
    (rank,) = diagnosis.ranks
    assert sum(rank.parts_s.values()) == pytest.approx(rank.window_s, abs=1e-9)
    assert [device.device for device in rank.devices] == [0, 1, 2]
    for device in rank.devices:
        assert sum(device.parts_s.values()) == pytest.approx(STEP * 1e-6, rel=0.001)


def test_each_gpu_has_a_row() -> None:
    diagnosis = free_of_recorder_cost(driving((1, STEP), (1, 4000)))
    rows = rank_rows(diagnosis, most_ranks=16, most_rows=12)
    assert [row.label for row in rows.by_device()] == ["rank 0, GPU 0", "rank 0, GPU 1"]
    text = diagnosis_text(diagnosis)
    assert "0, GPU 1" in text and "mean" in text


def test_a_job_with_one_gpu_a_rank_has_no_such_finding() -> None:
    traces = [TraceBuilder(rank).step(1, 0, STEP).launch(GEMM, 0, 1, 1, 4000 + 5000 * rank) for rank in (0, 1)]
    assert "idle-devices" not in names(free_of_recorder_cost(*traces))
