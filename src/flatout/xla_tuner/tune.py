"""The loop of `flatout tune jax`: the unchanged job, then pairs of trials of each change, then the fastest one.

In: `XlaRequest`. Out: an `XlaTuning`. Pairs alternate which of the two runs first, so that drift cancels. Raises
InputError if the unchanged job marks no steps.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from flatout.errors import InputError
from flatout.launch import StandardInput
from flatout.records.xla_tuning import XlaChange, XlaTrial, XlaTried, XlaTuning
from flatout.xla_tuner.changes import environment_of, offered
from flatout.xla_tuner.judge import MIN_PAIRS, MOST_PAIRS, judged
from flatout.xla_tuner.trial import run_trial

_FIRST_LIMIT_S = 600.0
_SLACK = 3.0  # a trial may take this many times as long as the first one


class XlaRequest(msgspec.Struct, frozen=True, kw_only=True):
    command: tuple[str, ...]
    folder: Path
    budget_s: float
    num_steps: int
    warmup: int
    allows_rounding: bool
    only: tuple[str, ...] = ()  # names of changes; empty: all


class _Loop:
    def __init__(self, request: XlaRequest, say: Callable[[str], object]) -> None:
        self.request = request
        self.say = say
        self.standard_input = StandardInput()
        if self.standard_input.missing is not None:
            say(f"trials have no standard input: {self.standard_input.missing}")
        self.begun_s = time.monotonic()
        self.trials: list[XlaTrial] = []
        self.durations_s: list[float] = []  # of the trials
        self.limit_s = min(_FIRST_LIMIT_S, request.budget_s)
        self.cache = str(request.folder / "compilation-cache")

    def left_s(self) -> float:
        return self.request.budget_s - (time.monotonic() - self.begun_s)

    def usual_trial_s(self) -> float:
        """Return the median time of a trial: the first one often waits for files that later ones find in memory."""
        return float(np.median(self.durations_s))

    def run(self, change: XlaChange | None) -> tuple[XlaTrial, dict[str, Any]]:
        name = change.name if change is not None else ""
        request = self.request
        begun_s = time.monotonic()
        trial, processes = run_trial(
            request.command,
            environment_of(change, dict(os.environ), self.cache),
            request.folder / "trials" / f"{len(self.trials):03d}-{name or 'unchanged'}",
            change=name,
            num_steps=request.num_steps,
            warmup=request.warmup,
            limit_s=self.limit_s,
            standard_input=self.standard_input,
        )
        self.trials.append(trial)
        self.durations_s.append(time.monotonic() - begun_s)
        return trial, dict(processes.facts) if processes is not None else {}

    def pair(self, change: XlaChange, number: int) -> tuple[XlaTrial, XlaTrial]:
        """Return an unchanged trial and a changed one; the second pair runs the changed one first, and so on.

        What a change of the start keeps from one start to the next is written by a trial before the first pair.
        """
        if change.is_of_start and not number:
            self.run(change)
        if number % 2:
            after, _ = self.run(change)
            before, _ = self.run(None)
        else:
            before, _ = self.run(None)
            after, _ = self.run(change)
        return before, after


def tune_xla(request: XlaRequest, say: Callable[[str], object]) -> XlaTuning:
    """Tune the job. Each trial starts the command once, and ends it after `num_steps` steps."""
    loop = _Loop(request, say)
    first, facts = loop.run(None)
    if first.step_s is None or first.start_s is None:
        raise InputError(
            f"the unchanged job cannot be compared: {first.problem}",
            hint="mark each step: with jax.profiler.StepTraceAnnotation('train', step_num=step)",
        )
    trial_s = loop.usual_trial_s()
    loop.limit_s = min(loop.limit_s, _SLACK * trial_s + 10.0)
    flags = str(facts.get("xla_flags", ""))
    platform, num_devices = str(facts.get("platform", "cpu")), int(facts.get("devices", 1))
    changes, not_offered = offered(
        platform,
        num_devices,
        flags,
        allows_rounding=request.allows_rounding,
        only=request.only,
        jax=str(facts.get("jax", "")),
    )
    say(f"the unchanged job: {first.step_s * 1e3:.1f} ms per step on {platform}; a trial takes {trial_s:.0f} s")
    tried, ended_by = _try_all(loop, changes)
    best = max((one for one in tried if one.verdict == "better" and one.measure == "step"), key=_gain, default=None)
    accepted = [one for one in tried if one is best or (one.verdict == "better" and one.measure == "start")]
    return XlaTuning(
        command=request.command,
        platform=platform,
        num_processes=int(facts.get("processes", 1)),
        num_devices=num_devices,
        jax=str(facts.get("jax", "")),
        xla_flags=flags,
        step_s=first.step_s,
        start_s=first.start_s,
        has_losses=bool(first.losses),
        tried=tuple(tried),
        not_offered=tuple(not_offered),
        trials=tuple(loop.trials),
        environment=_accepted_environment([one.change for one in accepted], flags, loop.cache),
        took_s=time.monotonic() - loop.begun_s,
        ended_by=ended_by,
    )


def _gain(tried: XlaTried) -> float:
    return tried.speedup or 0.0


def _try_all(loop: _Loop, changes: list[XlaChange]) -> tuple[list[XlaTried], Literal["done", "budget"]]:
    """Give each change its first pair, then each that may still be better a further one, until the budget ends."""
    pairs: dict[str, list[tuple[XlaTrial, XlaTrial]]] = {change.name: [] for change in changes}
    results: dict[str, XlaTried] = {}
    ended_by: Literal["done", "budget"] = "done"
    for number in range(MOST_PAIRS):
        for change in changes:
            if number and not _needs_more(results[change.name]):
                continue
            if loop.left_s() < 2 * loop.usual_trial_s():
                ended_by = "budget"
                break
            pairs[change.name].append(loop.pair(change, number))
            results[change.name] = _judged(loop, change, pairs, len(changes))
            _say_result(loop, results[change.name])
        if ended_by == "budget":
            break
    return [_judged(loop, change, pairs, len(changes)) for change in changes], ended_by


def _judged(
    loop: _Loop, change: XlaChange, pairs: dict[str, list[tuple[XlaTrial, XlaTrial]]], num_changes: int
) -> XlaTried:
    baselines = [trial for trial in loop.trials if not trial.change and trial.problem is None]
    return judged(change, pairs[change.name], baselines, num_changes)


def _needs_more(tried: XlaTried) -> bool:
    """Whether another pair can change the verdict: the first pairs only select."""
    if tried.verdict in ("failed", "unsafe", "better", "worse", "equivalent"):
        return False
    is_hopeless = tried.num_pairs >= MIN_PAIRS - 1 and tried.interval is not None and tried.interval[1] < 1
    return not is_hopeless


def _say_result(loop: _Loop, tried: XlaTried) -> None:
    speed = f"{tried.speedup:.2f} times as fast in pair {tried.num_pairs}" if tried.speedup is not None else "no time"
    loop.say(f"{tried.change.name}: {tried.verdict}, {speed}")


def _accepted_environment(changes: list[XlaChange], flags: str, cache: str) -> dict[str, str]:
    """Return the variables to set, with the job's own flags before those of the changes."""
    environment: dict[str, str] = {}
    for change in changes:
        base = {"XLA_FLAGS": environment.get("XLA_FLAGS", flags)} if change.flags else {}
        changed = environment_of(change, base, cache)
        environment |= changed
    return environment
