"""Measured shares of a GPU in a replay: durations worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flatout import api
from flatout.errors import InputError
from flatout.records.sharing import Beside, GpuSlice, SharingResult
from flatout.report.json import enveloped_json
from flatout.schedule.jobs import ClusterJob, JobHistory
from flatout.schedule.sharing import delivered_of_asked, read_sharing, with_sharing


def sharing(asked: float, *delivered: float) -> SharingResult:
    rows = tuple(
        Beside(
            work="matmul",
            beside="matmul",
            num_processes=round(1 / asked),
            asked_share=asked,
            delivered_share=share,
            low=share,
            high=share,
        )
        for share in delivered
    )
    whole = GpuSlice(kind="whole", asked_share=None, source="")
    return SharingResult(host="h", device="d", gpu_slice=whole, order="", num_repeats=2, delivered=rows)


def job(share: float, duration_s: float = 60.0, phases: tuple[float, ...] = ()) -> ClusterJob:
    return ClusterJob(submit_s=0, num_gpus=1, duration_s=duration_s, gpu_share=share, phases=phases)


def test_a_share_that_delivers_less_makes_its_jobs_longer_and_no_other() -> None:
    measured = [sharing(0.5, 0.4, 0.3), sharing(0.25, 0.3)]  # 0.7 and 1.2 of what was asked for
    assert delivered_of_asked(measured) == (pytest.approx((0.25, 1.2)), pytest.approx((0.5, 0.7)))
    jobs = (job(1.0), job(0.5), job(0.25, phases=(40, 20)), job(0.375), job(0.1), job(0.9))
    found = with_sharing(JobHistory(jobs=jobs, source="x"), measured)
    assert [each.duration_s for each in found.jobs] == pytest.approx(
        [60, 60 / 0.7, 60 / 1.2, 60 / 0.95, 60 / 1.2, 60 / 0.7]
    )
    assert sum(found.jobs[2].phases) == pytest.approx(50)
    assert found.notes == (
        "5 jobs with a share of a GPU get, as measured, 1.20 of what was asked for with 0.25 of a GPU,"
        " 0.70 of what was asked for with 0.50 of a GPU",
    )


def test_a_replay_takes_the_measurement(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.csv"
    jobs.write_text("submit_s,num_gpus,duration_s,gpu_share\n0,1,1000,0.5\n0,1,1000,0.5\n")
    path = tmp_path / "share.json"
    path.write_bytes(as_bytes(enveloped_json("flatout/sharing", 1, ("flatout",), sharing(0.5, 0.4))))
    plain = api.replay(jobs, nodes=1, gpus_per_node=1)
    shared = api.replay(jobs, nodes=1, gpus_per_node=1, sharing=[path])
    completion = [report.policies[0].jct_mean_s for report in (plain, shared)]
    assert completion == pytest.approx([1000, 1250])
    assert any("get, as measured, 0.80" in text for text in shared.assumptions)


def as_bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"schema": "flatout/ceilings"}, "must have the schema `flatout/sharing` 1"),
        ({"delivered": []}, "must have measured shares, but compares two commands"),
        ({"delivered": 3}, "holds no measured shares"),
    ],
)
def test_what_is_no_measurement_is_refused(change: dict[str, object], problem: str, tmp_path: Path) -> None:
    written = json.loads(enveloped_json("flatout/sharing", 1, ("flatout",), sharing(0.5, 0.4)))
    (tmp_path / "a.json").write_text(json.dumps(written | change))
    with pytest.raises(InputError, match=problem):
        read_sharing(tmp_path / "a.json")
    with pytest.raises(InputError, match="cannot be read"):
        read_sharing(tmp_path / "none.json")
