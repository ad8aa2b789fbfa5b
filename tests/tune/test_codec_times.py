"""What compressing costs on this machine is measured once, and only where a tuning may compress gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.change.jobs import diagnosis, facts

from flatout.records.change import JobFacts, Safety
from flatout.tune.codec_times import FILE, codec_times, with_codec_times

WORKER = ("sh", "-c", """echo '{"int8": 2.5}'; echo "$@" >> calls""", "worker")
ON_CPU = {"device": "cpu", "backend": "gloo", "num_ranks": 16, "ranks_per_host": 1, "threads_per_rank": 3}
EXPOSED = {"exposed-communication": 0.1}


def measured(
    folder: Path, known: JobFacts, costs: dict[str, float], allowed: Safety = "rounding", left_s: float = 60
) -> Any:
    return with_codec_times(known, diagnosis(costs), folder, allowed, left_s=left_s, say=print, worker=WORKER).codec_ns


def test_it_is_measured_once_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert measured(tmp_path, facts(**ON_CPU), EXPOSED) == {"int8": 2.5}
    assert (tmp_path / "calls").read_text() == "cpu 8 3\n", "of at most eight ranks"
    assert capsys.readouterr().out == "measuring what compressing gradients costs on this machine\n"
    (tmp_path / FILE).write_text("{")
    assert measured(tmp_path, facts(**ON_CPU), EXPOSED, left_s=59) is None, "too little of the budget is left"
    assert measured(tmp_path, facts(**ON_CPU), EXPOSED) == {"int8": 2.5}
    assert len((tmp_path / "calls").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("changed", "costs", "allowed"),
    [
        ({}, EXPOSED, "exact"),
        ({}, {"exposed-communication": 0.012}, "rounding"),
        ({}, {"host-bound": 0.1}, "rounding"),
        ({"wrapper": "fsdp2"}, EXPOSED, "rounding"),
        ({"num_ranks": 1}, EXPOSED, "rounding"),
        ({"launcher": "srun"}, EXPOSED, "rounding"),
    ],
)
def test_it_is_not_measured_where_nothing_is_to_be_compressed(
    changed: dict[str, object], costs: dict[str, float], allowed: Safety, tmp_path: Path
) -> None:
    assert measured(tmp_path, facts(**ON_CPU | changed), costs, allowed) is None
    assert not (tmp_path / FILE).exists()


def test_ranks_of_this_host_measure_at_once_and_the_slowest_counts(tmp_path: Path) -> None:
    """None ends before all three have begun; each says its process number."""
    script = f"""cd {tmp_path}; echo >> begun; until [ $(wc -l < begun) -ge 3 ]; do sleep 0.01; done
    echo '{{"int8": '$$', "bf16": 1.0}}'; echo $$ >> pids"""
    times = codec_times("cpu", num_ranks=3, ranks_per_host=3, worker=("sh", "-c", script))
    assert times == {"int8": max(map(int, (tmp_path / "pids").read_text().split())), "bf16": 1.0}
    alone = codec_times("cuda", num_ranks=3, ranks_per_host=3, worker=("sh", "-c", """echo '{"int8": 2.0}'"""))
    assert alone == {"int8": 2.0}


@pytest.mark.parametrize("worker", [("false",), ("echo", "no JSON"), ("/does/not/exist",)])
def test_a_measurement_that_fails_leaves_the_facts_alone(worker: tuple[str, ...], tmp_path: Path) -> None:
    known = facts(**ON_CPU)
    left = with_codec_times(known, diagnosis(EXPOSED), tmp_path, "rounding", left_s=99, say=print, worker=worker)
    assert left == known
    assert not (tmp_path / FILE).exists()
