"""Measure what a share of a GPU delivers, and whether two commands gain from sharing one, for `flatout bench --share`.

Composes worker processes and the start of commands; nothing about the GPU's settings is changed. All that is compared
runs there and back (alone, together, together, alone), so that a slow drift counts equally for both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any, Literal

import msgspec

from flatout.errors import FlatoutError, InputError
from flatout.inside.protocol import Variable
from flatout.keep.heartbeats import HeartbeatReader, ranks_of
from flatout.launch import with_inside
from flatout.launch.detached import Detached, start_detached
from flatout.probe.gpu_slice import gpu_slice
from flatout.records.ceilings import Ceilings
from flatout.records.sharing import Beside, PairSharing, SharingResult, Work
from flatout.report.command import command_line

NUM_REPEATS = 2  # there and back
WARMUP_STEPS = 10
LEAST_STEPS = 20  # of each command while both run; with fewer, the time of the whole command counts
_WORKS: tuple[Work, ...] = ("matmul", "memory_copy")
_WORKER = (sys.executable, "-m", "flatout.probe.share_worker")
_LEAD_S = 0.1  # from the order to work until the work begins
_LOOK_S = 0.05
_WHOLE_SHAPE = (4096, 4096, 4096)  # of the workers' multiplication on a GPU
Progress = Callable[[int, int], object]


def measure_shares(
    num_processes: int,
    *,
    seconds: float = 2.0,
    environment: Mapping[str, str] = os.environ,
    whole: Ceilings | None = None,
    worker: Sequence[str] = _WORKER,
    progress: Progress = lambda done, total: None,
) -> SharingResult:
    """Measure matrix multiplication and copying alone, and with others, with this many processes at once."""
    workers = _Workers(num_processes, worker, environment)
    try:
        pairs = [(work, beside) for work in _WORKS for beside in _WORKS]
        runs = [*((work, None) for work in _WORKS), *pairs]
        order = [*runs, *reversed(runs)]
        alone: dict[Work, list[float]] = {work: [] for work in _WORKS}
        together: dict[tuple[Work, Work], list[float]] = {pair: [] for pair in pairs}
        for number, (work, beside) in enumerate(order):
            progress(number, len(order))
            if beside is None:
                alone[work].append(workers.rates([work], seconds)[0])
            else:
                rates = workers.rates([work, *[beside] * (num_processes - 1)], seconds)
                own = rates if work == beside else rates[:1]
                together[work, beside].append(fmean(own))
        device = workers.device
    finally:
        workers.end()
    rates_alone: dict[Work, float] = {work: fmean(values) for work, values in alone.items()}
    own_slice = gpu_slice(environment)
    return SharingResult(
        host=os.uname().nodename,
        device=device,
        gpu_slice=own_slice,
        order="alone, together, together, alone",
        num_repeats=NUM_REPEATS,
        alone=rates_alone,
        whole_share=_whole_share(rates_alone["matmul"], whole),
        delivered=tuple(
            _beside(work, beside, num_processes, [rate / rates_alone[work] for rate in rates])
            for (work, beside), rates in together.items()
        ),
    )


def _beside(work: Work, beside: Work, num_processes: int, shares: Sequence[float]) -> Beside:
    return Beside(
        work=work,
        beside=beside,
        num_processes=num_processes,
        asked_share=1 / num_processes,
        delivered_share=median(shares),
        low=min(shares),
        high=max(shares),
    )


def _whole_share(rate: float, whole: Ceilings | None) -> float | None:
    """Return the share of the whole GPU's rate at the same multiplication; None if it was not measured."""
    if whole is None:
        return None
    same = [each.value for each in whole.measurements if each.dtype == "bf16" and each.shape == _WHOLE_SHAPE]
    return rate / median(same) if same else None


class _Workers:
    """Processes that wait for orders."""

    def __init__(self, number: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._processes = [
            subprocess.Popen(
                command, env={**environment, **one_thread}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for _ in range(number)
        ]
        devices = [self._answer(process)["device"] for process in self._processes]
        self.device = str(devices[0])

    def rates(self, works: Sequence[Work], seconds: float) -> list[float]:
        """Have the first processes work at the same time, and return the rate of each."""
        start_unix_s = time.time() + _LEAD_S
        working = self._processes[: len(works)]
        for process, work in zip(working, works, strict=True):
            assert process.stdin is not None
            asked = {"work": work, "start_unix_s": start_unix_s, "seconds": seconds}
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps(asked) + "\n")
                process.stdin.flush()
        return [float(self._answer(process)["rate"]) for process in working]

    def _answer(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            self.end()
            raise FlatoutError(
                f"a process of the measurement ended with code {process.wait()}",
                hint="its own error is above; a share may have too little memory for it",
            )
        return dict(json.loads(line))

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()  # closes the pipes


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """One command that has ended, with the steps that it had made at some times."""

    took_s: float
    steps: tuple[tuple[float, int], ...]  # time since both were started, and steps


def measure_pair(
    first: Sequence[str],
    second: Sequence[str],
    environment: Mapping[str, str] = os.environ,
    *,
    progress: Progress = lambda done, total: None,
) -> SharingResult:
    """Run two commands alone and together. Raises InputError if one fails."""
    alone: list[list[Ran]] = [[], []]
    together: list[list[Ran]] = []
    order = [(0,), (1,), (0, 1), (0, 1), (1,), (0,)]
    for number, places in enumerate(order):
        progress(number, len(order))
        ran = run_commands([(first, second)[place] for place in places], environment)
        if len(places) == 1:
            alone[places[0]].append(ran[0])
        else:
            together.append(ran)
    return SharingResult(
        host=os.uname().nodename,
        device="",
        gpu_slice=gpu_slice(environment),
        order="A, B, both, both, B, A",
        num_repeats=NUM_REPEATS,
        pair=pair_sharing((command_line(first), command_line(second)), alone, together),
    )


def run_commands(commands: Sequence[Sequence[str]], environment: Mapping[str, str]) -> list[Ran]:
    """Start the commands at the same time, and follow their steps until all have ended."""
    with TemporaryDirectory(prefix="flatout-") as folder:
        running = [
            _Running(command, Path(folder) / str(number), environment) for number, command in enumerate(commands)
        ]
        began_s = time.monotonic()
        try:
            while True:
                have_ended = [each.look(time.monotonic() - began_s) for each in running]
                if all(have_ended):
                    break
                time.sleep(_LOOK_S)
        finally:
            for each in running:
                each.process.end()
        return [each.ran() for each in running]


class _Running:
    """A command that runs, with its output in a file."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        beats = folder / "beats"
        beats.mkdir(parents=True)
        self._command = command
        self._reader = HeartbeatReader(beats)
        self._steps: list[tuple[float, int]] = []
        self._took_s: float | None = None
        self.process: Detached = start_detached(
            command, {**with_inside(environment), Variable.HEARTBEAT: str(beats)}, output=folder / "output"
        )

    def look(self, since_s: float) -> bool:
        """Note the steps; return whether the command has ended. Raises InputError if it failed."""
        if self._took_s is not None:
            return True
        code = self.process.code()
        ranks = ranks_of(self._reader.read())
        num_steps = min((rank.num_steps for rank in ranks), default=0)
        if num_steps and (not self._steps or num_steps > self._steps[-1][1]):
            self._steps.append((since_s, num_steps))
        if code is None:
            return False
        if code:
            raise InputError(
                f"`{command_line(self._command)}` must end with code 0, but ended with {code}",
                hint=" ".join(self.process.last_lines(1)) or "it printed nothing",
            )
        self._took_s = since_s
        return True

    def ran(self) -> Ran:
        return Ran(took_s=self._took_s or 0.0, steps=tuple(self._steps))


def pair_sharing(
    names: tuple[str, str], alone: Sequence[Sequence[Ran]], together: Sequence[Sequence[Ran]]
) -> PairSharing:
    """Return what each command keeps of its speed together with the other."""
    counted = _by_steps(alone, together)
    means, shares = counted if counted is not None else _by_commands(alone, together)
    sums = tuple(sum(pair) for pair in shares)
    return PairSharing(
        commands=names,
        unit="command" if counted is None else "step",
        alone_s=means,
        shares=(fmean(pair[0] for pair in shares), fmean(pair[1] for pair in shares)),
        sums=sums,
        verdict=_verdict(sums),
    )


_Pair = tuple[float, float]  # of the two commands


def _by_steps(alone: Sequence[Sequence[Ran]], together: Sequence[Sequence[Ran]]) -> tuple[_Pair, list[_Pair]] | None:
    """Return the mean steps alone, and the share of their speed that is kept in each run; None without known steps."""
    step_s = [[_step_s(ran, 0.0, ran.took_s) for ran in of_command] for of_command in alone]
    known_s = [[time_s for time_s in times if time_s is not None] for times in step_s]
    both_s = [_steps_together(ran) for ran in together]
    known_both_s = [times for times in both_s if times is not None]
    if known_s != step_s or known_both_s != both_s:
        return None
    means = fmean(known_s[0]), fmean(known_s[1])
    return means, [(means[0] / times[0], means[1] / times[1]) for times in known_both_s]


def _by_commands(alone: Sequence[Sequence[Ran]], together: Sequence[Sequence[Ran]]) -> tuple[_Pair, list[_Pair]]:
    """Return the same by the times of the whole commands."""
    means = fmean(ran.took_s for ran in alone[0]), fmean(ran.took_s for ran in alone[1])
    return means, [_shares_of_whole(means, (ran[0].took_s, ran[1].took_s)) for ran in together]


def _verdict(sums: Sequence[float]) -> Literal["gains", "loses", "undecided"]:
    """Return the verdict on which all runs together agree."""
    if min(sums) > 1:
        return "gains"
    return "loses" if max(sums) < 1 else "undecided"


def _steps_together(ran: Sequence[Ran]) -> tuple[float, float] | None:
    """Return the step time of both while both were past their warm-up; None if they made too few steps then."""
    warm_s = [next((at_s for at_s, steps in each.steps if steps >= WARMUP_STEPS), None) for each in ran]
    if None in warm_s:
        return None
    begin_s = max(at_s for at_s in warm_s if at_s is not None)
    end_s = min(each.took_s for each in ran)
    times = [_step_s(each, begin_s, end_s) for each in ran]
    return None if times[0] is None or times[1] is None else (times[0], times[1])


def _step_s(ran: Ran, begin_s: float, end_s: float) -> float | None:
    inside = [(at_s, steps) for at_s, steps in ran.steps if begin_s <= at_s <= end_s and steps >= WARMUP_STEPS]
    if len(inside) < 2 or inside[-1][1] - inside[0][1] < LEAST_STEPS:
        return None
    return (inside[-1][0] - inside[0][0]) / (inside[-1][1] - inside[0][1])


def _shares_of_whole(alone_s: tuple[float, float], together_s: tuple[float, float]) -> tuple[float, float]:
    """Return the speed of both while both ran, if each had one speed then and its own one after the other ended."""
    overlap_s = min(together_s)
    left_s = [took_s - overlap_s for took_s in together_s]
    done = [max(1 - left / alone, 0.0) for left, alone in zip(left_s, alone_s, strict=True)]
    return alone_s[0] * done[0] / overlap_s, alone_s[1] * done[1] / overlap_s
