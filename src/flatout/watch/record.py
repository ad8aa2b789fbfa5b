"""Take a trace of some steps from all ranks of a running job, without a restart.

In: a job of `flatout run`, the number of steps, a new folder. Out: one trace per rank in the folder, as `flatout
diagnose` reads them. The ranks agree by the number of the first step, which is far enough ahead that each has seen
the request. Ranks of other nodes are asked through the folder of the ledgers (`record_nodes`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec

from flatout.errors import InputError, OutputError
from flatout.input_files import read_text
from flatout.inside.protocol import File
from flatout.keep.heartbeats import HeartbeatSample
from flatout.keep.trace_requests import ask_ranks
from flatout.records.watch import Recorded, RecordingProgress
from flatout.watch.exporter.collector import LatestHeartbeats
from flatout.watch.jobs import RunningJob
from flatout.watch.record_nodes import ENDED, OtherNodes

_NOTICED_S = 2.5  # the ranks look for a request once per second
# on other nodes: `flatout run` looks once per second as well, and NFS may show a new file 3 s later
_NOTICED_ELSEWHERE_S = 6.5
_MOST_NOTICED_STEPS = 100_000
_PATIENCE_S = 60.0  # to prepare and write the traces, besides the steps themselves
_PATIENCE_ELSEWHERE_S = 90.0  # NFS may show a new file in a folder 30 s later
_DILATION = 5.0  # traced steps take longer
_POLL_S = 0.2
_NOT_ABLE = "it had ended, or not made two steps yet, when the others were asked"
_UNKNOWN = "it was not asked: no report of it here (several nodes share one with `flatout run --ledger FOLDER` on each)"


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
    attempt, samples = heartbeats.latest_attempt(), heartbeats.read()
    ranks = _able(samples)
    if attempt is None or not ranks:
        raise InputError("no rank of the job on this host has made two steps yet", hint="try again once it trains")
    nodes = OtherNodes(job, {sample.rank or 0 for sample in ranks}, ranks[0].world_size)
    plan = _plan(ranks, nodes, num_steps)
    not_asked = _not_asked(samples, plan)
    _make(folder)
    asked = RecordingProgress(
        step=0, first_step=plan.first_step, num_steps=num_steps, num_traced=0, num_ranks=len(plan.ranks)
    )

    def wait(step: int, num_traced: int) -> None:
        show(msgspec.structs.replace(asked, step=step, num_traced=num_traced))
        sleep(_POLL_S)

    try:
        nodes.ask(folder, plan.first_step, num_steps)
        ask_ranks(attempt, str(folder.absolute()), plan.first_step, num_steps)
        recorded = _awaited(folder, heartbeats, nodes, plan, wait)
    finally:
        nodes.ends()
    return msgspec.structs.replace(recorded, problems=recorded.problems | not_asked)


class _Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Which ranks trace which steps, and how long they are waited for."""

    ranks: tuple[int, ...]
    own: frozenset[int]  # those of this host
    first_step: int
    wait_s: float


def _plan(samples: list[HeartbeatSample], nodes: OtherNodes, num_steps: int) -> _Plan:
    own = frozenset(sample.rank or 0 for sample in samples)
    running = nodes.running
    noticed_s, patience_s = _NOTICED_S, _PATIENCE_S
    if running:
        noticed_s, patience_s = _NOTICED_ELSEWHERE_S, _PATIENCE_ELSEWHERE_S
    step_times = [sample.block_median_s for sample in samples] + [rank.step_s for rank in running]
    step_s = max((time_s for time_s in step_times if time_s is not None), default=0.0)
    steps = [sample.num_steps for sample in samples] + [rank.steps for rank in running]
    first_step = first_traced_step(max(steps), step_s, noticed_s)
    known = own | nodes.ranks
    return _Plan(
        ranks=tuple(sorted(known)),
        own=own,
        first_step=first_step,
        wait_s=(first_step - min(steps) + num_steps * _DILATION) * step_s + patience_s,
    )


def _not_asked(samples: list[HeartbeatSample], plan: _Plan) -> dict[int, str]:
    """Return by rank why it is not waited for."""
    reported = {sample.rank or 0 for sample in samples}
    world_size = max(sample.world_size for sample in samples)
    others = dict.fromkeys(sorted(set(range(world_size)) - reported), _UNKNOWN)
    here = {sample.rank or 0: _NOT_ABLE for sample in samples if sample.is_local}
    return {rank: why for rank, why in sorted((others | here).items()) if rank not in plan.ranks}


def first_traced_step(num_steps: int, step_s: float, noticed_s: float = _NOTICED_S) -> int:
    """Return a step that begins when all ranks have seen the request, which takes `noticed_s`."""
    ahead = math.ceil(noticed_s / max(step_s, noticed_s / _MOST_NOTICED_STEPS))
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


def _awaited(
    folder: Path, heartbeats: LatestHeartbeats, nodes: OtherNodes, plan: _Plan, wait: Callable[[int, int], object]
) -> Recorded:
    deadline = time.monotonic() + plan.wait_s
    while True:
        samples = _able(heartbeats.read())
        running = {sample.rank or 0 for sample in samples}
        traced = tuple(rank for rank in plan.ranks if (folder / File.TRACE.of(rank)).exists())
        lost = nodes.problems() | dict.fromkeys(plan.own - running, ENDED)
        problems = _problems(folder, plan.ranks, traced, lost)
        missing = [rank for rank in plan.ranks if rank not in traced and rank not in problems]
        is_late = time.monotonic() >= deadline
        if is_late:
            silent = nodes.unanswered()
            problems |= {rank: silent.get(rank, f"no trace within {plan.wait_s:.0f} s") for rank in missing}
        if is_late or not missing:
            return Recorded(folder=folder, ranks=traced, problems=problems)
        wait(min((sample.num_steps for sample in samples), default=0), len(traced))


def _problems(folder: Path, ranks: Collection[int], traced: Collection[int], lost: Mapping[int, str]) -> dict[int, str]:
    """Return by rank why it has no trace, or only a part of one: what it said itself comes before that it was lost."""
    problems = {rank: lost[rank] for rank in sorted(lost) if rank not in traced}
    for rank in ranks:
        said = _problem(folder, rank)
        if said is not None:
            problems[rank] = said
    return problems


def _problem(folder: Path, rank: int) -> str | None:
    try:
        return read_text(folder / File.TRACE_FAILED.of(rank), errors="replace")
    except OSError:
        return None
