"""Measure starts: run the ranks of each in turn, several times over, and collect what a rank says.

In: starts and the work. Out: `Measurements`, the same in each process if a launcher has started one command per rank.
The starts take turns (A B A B), so that a drift of the machine does not favour one of them. A start whose ranks end
early, or do not end, is skipped with the reason; no process remains. The errors that the GPUs' driver logs meanwhile
count against the start in which they occur.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from flatout.errors import FlatoutError
from flatout.input_files import read_text
from flatout.nccl_tuner.plan import RankPlan, SimulatedFabric
from flatout.nccl_tuner.rank import RankMessage
from flatout.nccl_tuner.settings import log_variables, table_variables
from flatout.probe.ceilings.start import given_rank
from flatout.records.nccl_tuning import DEFAULT, CollectiveWork, Measurements, Repetition, Start, WrongAnswer

_WORKER = (sys.executable, "-m", "flatout.nccl_tuner.rank")
_START_LIMIT_S = 180.0  # until the ranks have met: imports
SILENCE_LIMIT_S = 90.0  # of a candidate that hangs: one sample, or the checks of one candidate, take less
_MAX_LOST = 8  # candidates of a start
_GRACE_S = 5.0

Say = Callable[[str], None]


class XidSource(Protocol):
    """Errors of the GPUs' driver since the last call; see `probe.xids`."""

    def read(self) -> list[dict[str, object]] | None: ...


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """How the ranks are started."""

    backend: str
    num_ranks: int
    plugin: Path | None = None
    fabric: SimulatedFabric | None = None


class _LostError(Exception):
    """The ranks of a start ended early or not at all, with the reason and the candidate that they used then."""

    def __init__(self, reason: str, candidate: int | None) -> None:
        super().__init__(reason)
        self.candidate = candidate


def measure(
    ranks: Ranks,
    starts: Sequence[Start],
    work: CollectiveWork,
    *,
    num_turns: int,
    num_rounds: int,
    time_s: float,
    environment: Mapping[str, str],
    say: Say,
    xids: XidSource | None = None,
    logs: Path | None = None,
) -> Measurements:
    """Measure all starts, each `num_turns` times with `num_rounds` rounds.

    A candidate with a wrong answer is measured no further. With `logs`, NCCL writes there what it chooses.
    """
    collected = _Collected(starts)
    share_s = time_s / max(1, num_turns * len(starts))
    for turn in range(num_turns):
        for start in starts if turn % 2 == 0 else tuple(reversed(starts)):
            remaining = collected.remaining(start)
            if remaining is None:
                continue
            say(f"measuring {start.name}, turn {turn + 1} of {num_turns}")
            with tempfile.TemporaryDirectory(prefix="flatout-nccl-") as folder:
                plan = RankPlan(
                    backend=ranks.backend,
                    start=remaining,
                    work=work,
                    first_round=turn * num_rounds,
                    num_rounds=num_rounds,
                    time_s=share_s,
                    folder=folder,
                    plugin=str(ranks.plugin) if ranks.plugin is not None else None,
                    fabric=ranks.fabric,
                )
                if xids is not None:
                    xids.read()
                _run_to_the_end(collected, start, plan, ranks.num_ranks, _start_environment(plan, environment, logs))
                collected.disturbed(start, xids.read() if xids is not None else None)
    return collected.measurements(ranks.backend)


def _run_to_the_end(
    collected: _Collected, start: Start, plan: RankPlan, num_ranks: int, environment: Mapping[str, str]
) -> None:
    """Run the ranks of a start; if a candidate hangs or ends them, run them again without it."""
    for attempt in range(_MAX_LOST + 1):
        folder = Path(plan.folder) / f"attempt-{attempt}"
        folder.mkdir()
        meeting = f"{plan.start.name} {plan.first_round} {attempt}"
        this_plan = msgspec.structs.replace(plan, folder=str(folder), meeting=meeting)
        try:
            messages = _run(this_plan, num_ranks, environment)
        except _LostError as lost:
            is_the_default = lost.candidate in (None, 0)
            if is_the_default or attempt == _MAX_LOST:
                collected.lost(start, str(lost))
                return
            collected.failed(start, plan.start.candidates[lost.candidate or 0].name, str(lost))
            remaining = collected.remaining(start)
            assert remaining is not None
            plan = msgspec.structs.replace(plan, start=remaining)
            continue
        collected.add(start, plan.start, messages)
        return


def _start_environment(plan: RankPlan, environment: Mapping[str, str], logs: Path | None) -> dict[str, str]:
    variables = {**environment, **plan.start.environment}
    if plan.plugin is not None and any(candidate.uses_table for candidate in plan.start.candidates):
        variables |= table_variables(Path(plan.folder) / "none", Path(plan.plugin))
    if logs is not None:
        variables |= log_variables(logs)
    return variables


class _Collected:
    """The samples of all starts so far, and what must not be measured any more."""

    def __init__(self, starts: Sequence[Start]) -> None:
        self._samples: list[Repetition] = []
        self._wrong: dict[tuple[str, str], WrongAnswer] = {}
        self._not_measured: dict[str, str] = {}
        self._lost: dict[str, str] = {}
        self._software = ""
        self._num_nodes: tuple[int, ...] = ()

    def remaining(self, start: Start) -> Start | None:
        """Return the start without candidates that were wrong or failed; None if nothing is left."""
        if start.name in self._lost:
            return None
        kept = tuple(
            candidate
            for candidate in start.candidates
            if (start.name, candidate.name) not in self._wrong
            and _name(start.name, candidate.name) not in self._not_measured
        )
        return msgspec.structs.replace(start, candidates=kept) if kept else None

    def add(self, start: Start, measured: Start, messages: Sequence[RankMessage]) -> None:
        names = [candidate.name for candidate in measured.candidates]
        for message in messages:
            self._software = message.software or self._software
            self._num_nodes = message.num_nodes or self._num_nodes
            for candidate, case, problem in message.wrong:
                key = (start.name, names[candidate])
                self._wrong[key] = WrongAnswer(start=key[0], candidate=key[1], case=case, problem=problem)
            for candidate, reason in message.failed:
                self._not_measured[_name(start.name, names[candidate])] = reason
            self._samples += [
                Repetition(start=start.name, candidate=names[candidate], case=case, round=number, seconds=seconds)
                for candidate, case, number, seconds in message.samples
            ]

    def failed(self, start: Start, candidate: str, reason: str) -> None:
        self._not_measured[_name(start.name, candidate)] = reason

    def lost(self, start: Start, reason: str) -> None:
        self._lost[start.name] = self._not_measured[start.name] = reason

    def disturbed(self, start: Start, xids: list[dict[str, object]] | None) -> None:
        """Note the errors that a driver logged during a start: none of its candidates counts."""
        for xid in xids or ():
            problem = f"the GPU driver logged Xid {xid.get('number')} while it was measured"
            for candidate in start.candidates:
                key = (start.name, candidate.name)
                self._wrong.setdefault(
                    key, WrongAnswer(start=start.name, candidate=candidate.name, case=None, problem=problem)
                )

    def measurements(self, backend: str) -> Measurements:
        usable = [sample for sample in self._samples if (sample.start, sample.candidate) not in self._wrong]
        return Measurements(
            samples=tuple(usable),
            wrong=tuple(self._wrong.values()),
            not_measured=self._not_measured,
            backend=backend,
            software=self._software,
            num_nodes=self._num_nodes,
        )


def _name(start: str, candidate: str) -> str:
    return start if candidate == DEFAULT else f"{start}, {candidate}"


def _run(plan: RankPlan, num_ranks: int, environment: Mapping[str, str]) -> list[RankMessage]:
    """Run the ranks of one start on this host, or this rank if a launcher has started one command per rank."""
    given = given_rank(environment)
    if given is not None:
        places = [given]
    else:
        plan = msgspec.structs.replace(plan, meeting_file=str(Path(plan.folder) / "meeting"))
        places = [
            {"RANK": str(n), "WORLD_SIZE": str(num_ranks), "LOCAL_RANK": str(n), "LOCAL_WORLD_SIZE": str(num_ranks)}
            for n in range(num_ranks)
        ]
    errors = [Path(plan.folder) / f"errors-{place['RANK']}" for place in places]
    workers: list[subprocess.Popen[bytes]] = []
    try:
        for place, file in zip(places, errors, strict=True):
            # All ranks say the same, so only the first one here is heard.
            is_heard = not workers
            workers.append(_start_rank(plan, {**environment, **place}, file, is_heard=is_heard))
        return _followed(workers, errors)
    finally:
        _end(workers)


def _start_rank(
    plan: RankPlan, environment: Mapping[str, str], errors: Path, *, is_heard: bool
) -> subprocess.Popen[bytes]:
    """Start a rank. It leads a session, so that Ctrl-C reaches only Flatout."""
    with errors.open("wb") as file:
        process = subprocess.Popen(
            _WORKER,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if is_heard else subprocess.DEVNULL,
            stderr=file,
            start_new_session=True,
        )
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write(msgspec.json.encode(plan))
        process.stdin.close()
    return process


def _followed(workers: Sequence[subprocess.Popen[bytes]], errors: Sequence[Path]) -> list[RankMessage]:
    """Return what the first rank that was started here said.

    Raises _LostError if a rank fails, or if nothing is heard for too long.
    """
    messages: list[RankMessage] = []
    reader = threading.Thread(target=_read, args=(workers[0], messages), daemon=True)
    reader.start()
    num_heard, heard_at = 0, time.monotonic()
    while any(process.poll() is None for process in workers):
        _raise_if_failed(workers, errors, messages)
        if len(messages) > num_heard:
            num_heard, heard_at = len(messages), time.monotonic()
        limit_s = SILENCE_LIMIT_S if messages else _START_LIMIT_S
        if time.monotonic() - heard_at > limit_s:
            raise _LostError(f"its ranks were silent for {limit_s:.0f} s: they wait for each other", _current(messages))
        time.sleep(0.02)
    reader.join(_GRACE_S)
    _raise_if_failed(workers, errors, messages)
    if not any(message.is_done for message in messages):
        raise _LostError("its ranks ended without a result", _current(messages))
    return messages


def _current(messages: Sequence[RankMessage]) -> int | None:
    return next((message.current for message in reversed(messages) if message.current is not None), None)


def _raise_if_failed(
    workers: Sequence[subprocess.Popen[bytes]], errors: Sequence[Path], messages: Sequence[RankMessage]
) -> None:
    for place, process in enumerate(workers):
        code = process.poll()
        if code:
            lines = read_text(errors[place], errors="replace").strip().splitlines()
            last_line = lines[-1].strip()[:300] if lines else "it printed nothing"
            raise _LostError(f"rank {place} ended with code {code}: {last_line}", _current(messages))


def _read(process: subprocess.Popen[bytes], messages: list[RankMessage]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        with suppress(msgspec.DecodeError):
            messages.append(msgspec.json.decode(line, type=RankMessage))


def _end(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in workers:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
        for process in workers:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
    for process in workers:
        if process.stdout is not None and process.poll() is not None:
            process.stdout.close()


def require_some(measurements: Measurements) -> None:
    """Raise FlatoutError if nothing at all was measured."""
    if not measurements.samples:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in list(measurements.not_measured.items())[:2])
        raise FlatoutError(f"nothing could be measured: {reasons or 'no candidate gave a right answer'}")
