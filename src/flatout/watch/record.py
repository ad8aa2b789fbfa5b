"""Take a trace of some steps from all ranks of a running job, without a restart.

In: a job of `flatout run`, the number of steps, a new folder. Out: one trace per rank in the folder, as `flatout
diagnose` reads them. The ranks agree by the number of the first step, which is far enough ahead that each has seen
the request. Only ranks of this host are asked.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from flatout.errors import InputError, OutputError
from flatout.input_files import read_text
from flatout.inside.protocol import File
from flatout.keep.heartbeats import HeartbeatSample
from flatout.records.watch import Recorded, RecordingProgress
from flatout.secrets import write_private
from flatout.watch.exporter.collector import LatestHeartbeats
from flatout.watch.jobs import RunningJob

_NOTICED_S = 2.5  # the ranks look for a request once per second
_MOST_NOTICED_STEPS = 100_000
_PATIENCE_S = 60.0  # to prepare and write the traces, besides the steps themselves
_DILATION = 5.0  # traced steps take longer
_POLL_S = 0.2


def record_steps(
    job: RunningJob,
    num_steps: int,
    folder: Path,
    *,
    show: Callable[[RecordingProgress], object] = lambda progress: None,
    sleep: Callable[[float], object] = time.sleep,
) -> Recorded:
    """Ask the ranks, and wait for their traces. Raise InputError if the job cannot be asked.

    `show` is called while it waits.
    """
    if job.program != "flatout run":
        raise InputError("a job of `flatout profile` records its own steps", hint=f"flatout diagnose {job.folder}")
    heartbeats = LatestHeartbeats(job.folder)
    attempt, ranks = heartbeats.latest_attempt(), _able(heartbeats.read())
    if attempt is None or not ranks:
        raise InputError("no rank of the job on this host has made two steps yet", hint="try again once it trains")
    step_s = max(sample.block_median_s or 0.0 for sample in ranks)
    first_step = first_traced_step(max(sample.num_steps for sample in ranks), step_s)
    _make(folder)
    _ask(attempt, folder, first_step, num_steps)
    steps_ahead = first_step - min(sample.num_steps for sample in ranks)
    wait_s = (steps_ahead + num_steps * _DILATION) * step_s + _PATIENCE_S
    asked = RecordingProgress(step=0, first_step=first_step, num_steps=num_steps, num_traced=0, num_ranks=len(ranks))

    def wait(step: int, num_traced: int) -> None:
        show(msgspec.structs.replace(asked, step=step, num_traced=num_traced))
        sleep(_POLL_S)

    return _awaited(folder, heartbeats, [sample.rank or 0 for sample in ranks], wait_s, wait)


def first_traced_step(num_steps: int, step_s: float) -> int:
    """Return a step that begins when all ranks have seen the request."""
    ahead = math.ceil(_NOTICED_S / max(step_s, _NOTICED_S / _MOST_NOTICED_STEPS))
    return num_steps + ahead + 3


def _able(samples: list[HeartbeatSample]) -> list[HeartbeatSample]:
    return [
        sample
        for sample in samples
        if sample.is_local and sample.is_alive and not sample.has_ended and sample.block_median_s is not None
    ]


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise OutputError(f"{folder} already exists", hint="pass another folder with --out") from None
    except OSError as error:
        problem = (error.strerror or str(error)).lower()
        raise OutputError(f"{folder} cannot be created: {problem}", hint="pass another folder with --out") from error


def _ask(attempt: Path, folder: Path, first_step: int, num_steps: int) -> None:
    request = {"first_step": first_step, "num_steps": num_steps, "folder": str(folder.absolute())}
    partial = attempt / f".{File.TRACE_REQUEST}"
    write_private(partial, json.dumps(request))
    partial.replace(attempt / File.TRACE_REQUEST)


def _awaited(
    folder: Path, heartbeats: LatestHeartbeats, ranks: list[int], wait_s: float, wait: Callable[[int, int], object]
) -> Recorded:
    deadline = time.monotonic() + wait_s
    while True:
        samples = _able(heartbeats.read())
        running = {sample.rank or 0 for sample in samples}
        traced = tuple(rank for rank in ranks if (folder / File.TRACE.of(rank)).exists())
        problems = {rank: problem for rank in ranks if (problem := _problem(folder, rank)) is not None}
        ended = [rank for rank in ranks if rank not in running and rank not in traced]
        problems = dict.fromkeys(ended, "it ended before the traced steps did") | problems
        missing = [rank for rank in ranks if rank not in traced and rank not in problems]
        if not missing:
            return Recorded(folder=folder, ranks=traced, problems=problems)
        if time.monotonic() >= deadline:
            problems |= dict.fromkeys(missing, f"no trace within {wait_s:.0f} s")
            return Recorded(folder=folder, ranks=traced, problems=problems)
        wait(min((sample.num_steps for sample in samples), default=0), len(traced))


def _problem(folder: Path, rank: int) -> str | None:
    try:
        return read_text(folder / File.TRACE_FAILED.of(rank), errors="replace")
    except OSError:
        return None
