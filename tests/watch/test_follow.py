"""What `flatout watch --follow` prints and records: each slowdown once when it begins and once when it ends."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from flatout.errors import InputError
from flatout.records.expectation import StepExpectation
from flatout.records.watch import LiveFinding, RankStatus, Recorded, WatchStatus
from flatout.report.terminal import TextStyle
from flatout.report.watch_text import finding_sentence, promised_sentence, recording_sentence, watch_lines
from flatout.watch.auto_record import LEAST_APART_S, MOST_RECORDINGS, AutoRecorder
from flatout.watch.diagnosis.news import UNNAMED_STEPS, News
from flatout.watch.jobs import RunningJob
from flatout.watch.view.follow import follow
from flatout.watch.view.price import usd_per_gpu_hour, with_money

SLOW = LiveFinding(
    cause="late_rank", ranks=(2,), first_step=500, last_step=None, before_s=0.3, after_s=0.36, cost_gpu_h=1.5
)
UNKNOWN = msgspec.structs.replace(SLOW, cause="unknown", ranks=())
ENDED = msgspec.structs.replace(SLOW, last_step=900)


def test_a_slowdown_is_reported_when_it_begins_and_when_it_ends_and_not_between() -> None:
    news = News()
    assert news.of([SLOW], 520) == [SLOW]
    more = msgspec.structs.replace(SLOW, cost_gpu_h=3.0)
    assert news.of([more], 800) == []
    assert news.of([ENDED], 900) == [ENDED]
    assert news.of([ENDED], 1000) == []


def test_an_unknown_cause_is_waited_for_and_then_reported_as_unknown() -> None:
    news = News()
    assert news.of([UNKNOWN], 500 + UNNAMED_STEPS - 1) == []
    assert news.of([SLOW], 500 + UNNAMED_STEPS - 1) == [SLOW]
    later = News()
    assert later.of([UNKNOWN], 500 + UNNAMED_STEPS) == [UNKNOWN]
    assert later.of([SLOW], 800) == [], "its end names the cause"
    assert later.of([ENDED], 900) == [ENDED]


def test_a_stopped_rank_during_a_slowdown_is_another_report() -> None:
    stopped = msgspec.structs.replace(SLOW, cause="stopped")
    assert News().of([SLOW, stopped], 500) == [SLOW, stopped]


def job_in(folder: Path) -> RunningJob:
    return RunningJob(program="flatout run", name="t.py", pid=7, folder=folder, pids=(7,))


def status(*findings: LiveFinding, state: Any = "running", **facts: Any) -> WatchStatus:
    rank = RankStatus(rank=0, host="n", pid=7, state=state, steps=950)
    values = {
        "name": "t.py", "program": "flatout run", "pid": 7, "attempt": 0, "world_size": 1, "ranks": (rank,),
        "missing_ranks": (), "step_s": 0.36, "goodput": None, "devices": None, "findings": findings,
    }  # fmt: skip
    return WatchStatus(**(values | facts))


def test_what_continues_when_the_job_ends_ends_with_it(tmp_path: Path) -> None:
    statuses = iter([status(), status(SLOW), status(SLOW), status(SLOW, state="ended")])
    source: Any = SimpleNamespace(read=lambda: next(statuses), job=job_in(tmp_path))
    reported = list(follow(source, 1.0, sleep=lambda _: None))
    assert [finding.last_step for finding in reported] == [None, 950]


def test_a_job_whose_folder_is_gone_has_ended(tmp_path: Path) -> None:
    source: Any = SimpleNamespace(read=lambda: status(ranks=()), job=job_in(tmp_path / "gone"))
    assert list(follow(source, 1.0, sleep=lambda _: None)) == []


def test_a_slowdown_is_traced_some_times_at_most_and_not_too_often(tmp_path: Path) -> None:
    asked: list[Path] = []

    def record(job: RunningJob, num_steps: int, folder: Path) -> Recorded:
        asked.append(folder)
        assert (job.name, num_steps) == ("t.py", 5)
        return Recorded(folder=folder, ranks=(0, 1), problems={1: "no trace"})

    recorder = AutoRecorder(job_in(tmp_path), 5, tmp_path / "traces", record=record)
    for cause in ("stopped", "memory"):
        assert recorder.on_news(msgspec.structs.replace(SLOW, cause=cause), 0.0) is None
    assert recorder.on_news(ENDED, 0.0) is None
    recorded = recorder.on_news(SLOW, 0.0)
    assert isinstance(recorded, Recorded) and asked == [tmp_path / "traces" / "step-500"]
    assert recording_sentence(recorded).startswith("traced 2 ranks, rank 1 incomplete or missing; next: flatout")
    assert recorder.on_news(SLOW, LEAST_APART_S - 1) is None
    for number in range(1, MOST_RECORDINGS + 2):
        recorder.on_news(SLOW, number * LEAST_APART_S)
    assert len(asked) == MOST_RECORDINGS


def test_a_recording_that_fails_is_a_line_and_no_end(tmp_path: Path) -> None:
    def record(job: RunningJob, num_steps: int, folder: Path) -> Recorded:
        raise InputError("no rank of the job on this host has made two steps yet")

    problem = AutoRecorder(job_in(tmp_path), 5, tmp_path, record=record).on_news(SLOW, 0.0)
    assert isinstance(problem, InputError) and recording_sentence(problem).startswith("nothing was traced: no rank")


@pytest.mark.parametrize(
    ("given", "gpu", "expected"), [(2.0, None, (3.0, 3.0)), (2.0, "NVIDIA H100", (3.0, 3.0)), (None, "no such", None)]
)
def test_the_cost_in_money_is_that_of_the_given_price(given: Any, gpu: Any, expected: Any) -> None:
    assert with_money(SLOW.cost_gpu_h, usd_per_gpu_hour(given, gpu)) == expected


def test_without_a_given_price_the_range_of_the_catalogue_is_used() -> None:
    low, high = usd_per_gpu_hour(None, "NVIDIA H100 80GB HBM3") or (0.0, 0.0)
    assert 0 < low < high
    sentence = finding_sentence(msgspec.structs.replace(SLOW, cost_usd=(1.5 * low, 1.5 * high)))
    assert f"1.5 GPU-hours ({1.5 * low:.2f} to {1.5 * high:.2f} USD) so far" in sentence


TUNED = StepExpectation(low_s=0.28, high_s=0.30, without_s=0.40, num_ranks=1)


@pytest.mark.parametrize(
    ("step_s", "words"),
    [
        (0.30, "as tuned"),
        (0.33, "slower than tuned by 10 %"),
        (0.40, "slower than tuned by 33 %"),
        (0.41, "slower than without its changes"),
        (None, "tuned.toml measured 280 ms to 300 ms per step"),
    ],
)
def test_what_the_tuning_promised_stands_beside_what_is_measured(step_s: float | None, words: str) -> None:
    shown = status(step_s=step_s, promised=TUNED)
    assert (promised_sentence(shown) or "").endswith(words)
    assert any(line.startswith("tuned.toml measured") for line in watch_lines(shown, TextStyle()))


def test_a_tuning_on_other_ranks_is_not_compared() -> None:
    assert (promised_sentence(status(promised=TUNED, world_size=8)) or "").endswith("on 1 ranks: not comparable")
    assert promised_sentence(status()) is None
