"""Compute how long each job's GPUs were idle, from utilization samples of a file, Prometheus or a recording.

A file has one JSON object per line: `unix_s`, `busy` (from 0 to 1) and either `job`, or `node` and, unless it applies
to all GPUs of the node, `gpu`. A folder is a recording of `flatout profile`, or contains some. An address is the URL of
a Prometheus server that scrapes dcgm-exporter. A GPU without samples is unknown, never idle.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from flatout.errors import InputError
from flatout.input_files import decode_json, open_file
from flatout.inside.protocol import File
from flatout.schedule.live.view import JobView, UtilizationSample
from flatout.service_answers import read_answer

# dcgm-exporter's metric names, the better metric first, with the value for fully busy. SM activity is off by default.
METRICS: Mapping[str, float] = {
    "DCGM_FI_PROF_SM_ACTIVE": 1.0,
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 1.0,
    "DCGM_FI_DEV_GPU_UTIL": 100.0,
}
_TIMEOUT_S = 10.0
_MAX_ANSWER_BYTES = 256 << 20
_MIN_SAMPLES = 3


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    unix_s: float
    busy: Annotated[float, msgspec.Meta(ge=0, le=1)]
    job: str | int | None = None
    node: str | int | None = None
    gpu: int | None = None


class _FactsOfGpu(msgspec.Struct, frozen=True):
    index: int


class _Host(msgspec.Struct, frozen=True):
    """The first line of the samples of a host."""

    hostname: str
    gpus: list[_FactsOfGpu]


class _GpuNow(msgspec.Struct, frozen=True):
    busy_percent: Annotated[float, msgspec.Meta(ge=0)] | None = None


class _Now(msgspec.Struct, frozen=True):
    """A line of the samples of a host."""

    unix_s: float
    gpus: list[_GpuNow] = []


T = TypeVar("T")


def read_samples(source: str, *, now_unix_s: float, window_s: float) -> list[UtilizationSample]:
    """Return the samples of the last `window_s` seconds. Raises InputError if the source cannot be read."""
    if source.startswith(("http://", "https://")):
        return _from_prometheus(source, now_unix_s, window_s)
    path = Path(source)
    if not path.exists():
        hint = "pass a file, a recording, or http://HOST:9090 with --usage"
        raise InputError(f"{source} does not exist", hint=hint)
    found = _from_recordings(path) if path.is_dir() else _from_file(path)
    return [sample for sample in found if now_unix_s - window_s <= sample.unix_s <= now_unix_s]


def idle_jobs(
    jobs: Iterable[JobView],
    samples: Iterable[UtilizationSample],
    *,
    now_unix_s: float,
    grace_s: float,
    threshold: float,
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return the jobs whose GPUs were all idle for the last `grace_s`, with their idle time, and jobs without samples.

    A job that has not run that long is in neither result. Samples must span from the first quarter of that time to the
    last.
    """
    by_job: dict[str, list[UtilizationSample]] = {}
    by_gpu: dict[tuple[str, int | None], list[UtilizationSample]] = {}
    since = now_unix_s - grace_s
    for sample in samples:
        if sample.unix_s >= since and sample.job is not None:
            by_job.setdefault(sample.job, []).append(sample)
        elif sample.unix_s >= since and sample.node is not None:
            by_gpu.setdefault((sample.node, sample.gpu), []).append(sample)
    idle: dict[str, float] = {}
    unseen: list[str] = []
    for job in jobs:
        if job.state != "running" or not job.held_gpus or job.ran_s(now_unix_s) < grace_s:
            continue
        of_each = [by_job[job.id]] if job.id in by_job else list(_of_gpus(job, by_gpu))
        if any(each.busy_share > threshold for each in chain(*of_each)):
            continue
        if all(_covers(each, since, grace_s) for each in of_each):
            idle[job.id] = grace_s
        else:
            unseen.append(job.id)
    return idle, tuple(unseen)


def _of_gpus(
    job: JobView, by_gpu: Mapping[tuple[str, int | None], Sequence[UtilizationSample]]
) -> Iterator[Sequence[UtilizationSample]]:
    for node in job.gpus_by_node:
        # If the job's GPUs on a node are unknown, only samples that cover all GPUs of the node can be used.
        for index in job.gpu_indices.get(node, (None,)):
            yield by_gpu.get((node, index)) or by_gpu.get((node, None)) or ()


def _covers(samples: Sequence[UtilizationSample], since: float, grace_s: float) -> bool:
    times = [sample.unix_s for sample in samples]
    return len(times) >= _MIN_SAMPLES and min(times) <= since + grace_s / 4 and max(times) >= since + grace_s * 3 / 4


def _from_file(path: Path) -> Iterator[UtilizationSample]:
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            sample = decode_json(line, _Line, strict=False)
            if (sample.job is None) == (sample.node is None):
                raise ValueError("it must be of a job or of a node")
        except (msgspec.DecodeError, ValueError):
            raise InputError(
                f"{path}:{number}: a line must be an object with unix_s, busy from 0 to 1, and job or node,"
                f" but is {line[:60]!r}"
            ) from None
        yield UtilizationSample(
            unix_s=sample.unix_s,
            busy_share=sample.busy,
            job=None if sample.job is None else str(sample.job),
            node=None if sample.node is None else str(sample.node),
            gpu=sample.gpu,
        )


def _from_recordings(folder: Path) -> Iterator[UtilizationSample]:
    """Yield the samples of recordings; truncated lines, such as the last line of a running recording, are skipped."""
    for path in sorted(folder.rglob(File.SAMPLES.glob)):
        header: _Host | None = None
        for line in _lines(path):
            if header is None:
                header = _decoded(line, _Host)
                continue
            now = _decoded(line, _Now)
            for facts, gpu in zip(header.gpus, () if now is None else now.gpus, strict=False):
                if now is not None and gpu.busy_percent is not None:
                    node = header.hostname.split(".")[0]
                    yield UtilizationSample(
                        unix_s=now.unix_s, busy_share=gpu.busy_percent / 100, node=node, gpu=facts.index
                    )


def _decoded(line: bytes, kind: type[T]) -> T | None:
    """Return a line as a record; None if it is another one, or truncated."""
    try:
        return decode_json(line, kind)
    except msgspec.DecodeError:
        return None


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with open_file(path) as file:
            yield from file
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None


class _Series(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    values: list[tuple[float, str]]  # times, and the value as text


class _Data(msgspec.Struct, frozen=True):
    resultType: str  # noqa: N815 - Prometheus' name
    result: msgspec.Raw


class _Answer(msgspec.Struct, frozen=True):
    status: str
    error: str = ""
    data: _Data | None = None


def _from_prometheus(address: str, now_unix_s: float, window_s: float) -> list[UtilizationSample]:
    for name, whole in METRICS.items():
        try:
            series = _query(address, f"{name}[{max(int(window_s), 1)}s]", now_unix_s)
            samples = list(_of_series(series, whole))
        except (OSError, msgspec.DecodeError, LookupError, ValueError) as error:
            raise InputError(f"{address} does not respond like Prometheus: {error}") from None
        if series:
            return samples
    raise InputError(
        f"{address} has none of {', '.join(METRICS)} in the last {window_s:.0f} s",
        hint="Prometheus must scrape dcgm-exporter at least once per quarter of the grace time",
    )


def _query(address: str, expression: str, now_unix_s: float) -> list[_Series]:
    asked = urllib.parse.urlencode({"query": expression, "time": f"{now_unix_s:.3f}"})
    url = f"{address.rstrip('/')}/api/v1/query?{asked}"
    answer = decode_json(read_answer(url, max_bytes=_MAX_ANSWER_BYTES, timeout_s=_TIMEOUT_S), _Answer)
    if answer.status != "success" or answer.data is None or answer.data.resultType != "matrix":
        raise ValueError(answer.error or "the result is not a matrix")
    return decode_json(bytes(answer.data.result), list[_Series])


def _of_series(series: Sequence[_Series], whole: float) -> Iterator[UtilizationSample]:
    for each in series:
        labels = each.metric
        node = (labels.get("Hostname") or labels.get("instance", "").split(":")[0]).split(".")[0]
        for unix_s, value in each.values:
            busy = float(value) / whole
            if busy >= 0:  # Prometheus returns `NaN` if nothing was measured, which is unknown, not idle
                yield UtilizationSample(unix_s=unix_s, busy_share=busy, node=node, gpu=int(labels["gpu"]))
