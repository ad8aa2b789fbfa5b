"""Which jobs' GPUs were idle, from each of the sources; what was not seen is never idle."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.schedule.live.made import NOW, running

from flatout.errors import InputError
from flatout.schedule.live.usage import idle_jobs, read_samples
from flatout.schedule.live.view import JobView, UtilizationSample

JOB = running("1", {"a": 2}, gpu_indices={"a": (2, 3)})
AGES_S = (100.0, 75.0, 50.0, 25.0, 0.0)


def samples(busy: float = 0.0, ages_s: tuple[float, ...] = AGES_S, **what: Any) -> list[UtilizationSample]:
    return [UtilizationSample(unix_s=NOW - age_s, busy_share=busy, **what) for age_s in ages_s]


def judged(*given: list[UtilizationSample], job: JobView = JOB) -> tuple[dict[str, float], tuple[str, ...]]:
    flat = [sample for each in given for sample in each]
    return idle_jobs([job], flat, now_unix_s=NOW, grace_s=100.0, threshold=0.02)


def test_a_job_is_idle_when_all_of_its_gpus_are() -> None:
    second = samples(node="a", gpu=2)
    assert judged(second, samples(node="a", gpu=3)) == ({"1": 100.0}, ())
    assert judged(second, samples(0.5, node="a", gpu=3)) == ({}, ())
    assert judged(second, samples(0.5, (50.0,), node="a", gpu=3)) == ({}, ())  # once is enough
    assert judged(second, samples(node="a", gpu=3), samples(0.9, node="a", gpu=4)) == ({"1": 100.0}, ())  # another's


def test_what_was_not_seen_is_unknown() -> None:
    assert judged() == ({}, ("1",))
    assert judged(samples(node="a", gpu=2)) == ({}, ("1",))
    late, early = (25.0, 20.0, 0.0), (100.0, 90.0, 80.0)
    for ages_s in (late, early, (100.0, 0.0)):
        assert judged(samples(0.0, ages_s, job="1")) == ({}, ("1",))
    assert judged(samples(node="a"), job=running("1", {"a": 2})) == ({"1": 100.0}, ())
    assert judged(samples(node="a", gpu=0), job=running("1", {"a": 2})) == ({}, ("1",))


def test_a_job_that_has_not_run_that_long_is_not_judged() -> None:
    assert judged(samples(job="1"), job=running("1", {"a": 2}, ran_s=90)) == ({}, ())
    assert judged(samples(job="1"), job=running("1", {"a": 2}, state="suspended")) == ({}, ())


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    lines: list[dict[str, Any]] = [
        {"unix_s": NOW - 900, "busy": 1, "job": 7},
        {"unix_s": NOW - 5, "busy": 0.25, "job": 7},
        {"unix_s": NOW - 4, "busy": 0, "node": "a", "gpu": 3},
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    assert read_samples(str(path), now_unix_s=NOW, window_s=100) == [
        UtilizationSample(unix_s=NOW - 5, busy_share=0.25, job="7"),
        UtilizationSample(unix_s=NOW - 4, busy_share=0.0, node="a", gpu=3),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "x",
        "[]",
        '{"unix_s": 1}',
        '{"unix_s": 1, "busy": 0, "node": "a", "gpu": [0]}',
        '{"unix_s": 1, "busy": 0, "job": {}}',
        '{"unix_s": 1, "busy": -0.1, "job": 1}',
        '{"unix_s": 1, "busy": 1.1, "job": 1}',
        '{"unix_s": 1, "busy": 2, "job": 1}',
        '{"unix_s": 1, "busy": 0}',
        '{"busy": NaN}',
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "usage.jsonl"
    path.write_text(f'{{"unix_s": 1, "busy": 0, "job": 1}}\n{line}\n')
    with pytest.raises(InputError, match=r"usage.jsonl:2: a line must be"):
        read_samples(str(path), now_unix_s=NOW, window_s=100)
    with pytest.raises(InputError, match="does not exist"):
        read_samples(str(tmp_path / "none"), now_unix_s=NOW, window_s=100)


@pytest.mark.parametrize("header", [{"gpus": None}, {"gpus": 3}, {"gpus": [None]}, {"hostname": None}, {"gpus": [{}]}])
@pytest.mark.parametrize("sample", [{"gpus": None}, {"gpus": [3]}, {"unix_s": "x"}, {"gpus": [{"busy_percent": "a"}]}])
def test_lines_of_a_recording_of_other_types_are_skipped(
    tmp_path: Path, header: dict[str, object], sample: dict[str, object]
) -> None:
    good = {"hostname": "a", "gpus": [{"index": 2}]}, {"unix_s": NOW, "gpus": [{"busy_percent": 50}]}
    lines = (good[0] | header, good[0], good[1] | sample, good[1])
    (tmp_path / "host-a.samples.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert read_samples(str(tmp_path), now_unix_s=NOW, window_s=100) == [
        UtilizationSample(unix_s=NOW, busy_share=0.5, node="a", gpu=2)
    ]


def test_a_recording_that_is_being_written(tmp_path: Path) -> None:
    folder = tmp_path / "recording"
    folder.mkdir()
    lines = [
        {"schema": "flatout/samples", "hostname": "a.cluster.org", "gpus": [{"index": 2}, {"index": 3}]},
        {"unix_s": NOW - 1, "gpus": [{"busy_percent": 50}, {}]},
        {"unix_s": NOW, "gpus": [{"busy_percent": 0}, {"busy_percent": 100}]},
    ]
    text = "\n".join(map(json.dumps, lines)) + '\n{"unix_s": 1000'
    (folder / "host-a.samples.jsonl").write_text(text)
    assert read_samples(str(tmp_path), now_unix_s=NOW, window_s=100) == [
        UtilizationSample(unix_s=NOW - 1, busy_share=0.5, node="a", gpu=2),
        UtilizationSample(unix_s=NOW, busy_share=0.0, node="a", gpu=2),
        UtilizationSample(unix_s=NOW, busy_share=1.0, node="a", gpu=3),
    ]


class _Prometheus(BaseHTTPRequestHandler):
    """Answers instant queries of a range as Prometheus's API documents it; has one metric."""

    has = "DCGM_FI_DEV_GPU_UTIL"
    answer: bytes | None = None

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)["query"][0]
        metric = {"__name__": self.has, "Hostname": "a", "gpu": "2", "instance": "a:9400"}
        series = [{"metric": metric, "values": [[NOW - 30, "0"], [NOW - 15, "50"]]}] if self.has in query else []
        body = {"status": "success", "data": {"resultType": "matrix", "result": series}}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode() if self.answer is None else self.answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def prometheus(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Prometheus)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_an_answer_of_prometheus(prometheus: str) -> None:
    assert read_samples(prometheus, now_unix_s=NOW, window_s=100) == [
        UtilizationSample(unix_s=NOW - 30, busy_share=0.0, node="a", gpu=2),
        UtilizationSample(unix_s=NOW - 15, busy_share=0.5, node="a", gpu=2),
    ]


def test_a_value_that_is_not_a_number_is_unknown_and_not_idle(prometheus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [[NOW - age_s, "NaN"] for age_s in AGES_S]
    series = [{"metric": {"Hostname": "a", "gpu": str(gpu)}, "values": values} for gpu in (2, 3)]
    body = {"status": "success", "data": {"resultType": "matrix", "result": series}}
    monkeypatch.setattr(_Prometheus, "answer", json.dumps(body).encode())
    assert judged(list(read_samples(prometheus, now_unix_s=NOW, window_s=100))) == ({}, ("1",))


@pytest.mark.parametrize(
    "answer", [b"", b"<html>", b"[]", b'{"status": "error", "error": "x"}', b'{"status": "success"}']
)
def test_what_is_no_answer_of_prometheus(prometheus: str, answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Prometheus, "answer", answer)
    with pytest.raises(InputError, match="does not respond like Prometheus"):
        read_samples(prometheus, now_unix_s=NOW, window_s=100)


def test_a_prometheus_without_gpus_and_none_at_all(prometheus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Prometheus, "has", "something_else")
    with pytest.raises(InputError, match="has none of DCGM_FI_PROF_SM_ACTIVE"):
        read_samples(prometheus, now_unix_s=NOW, window_s=100)
    with pytest.raises(InputError, match=r"does not respond like Prometheus: .*refused"):
        read_samples("http://127.0.0.1:9", now_unix_s=NOW, window_s=100)
