"""One trial: start the server, warm it up, ask the held prompts, send the load at each rate, stop it.

In: a backend that starts servers, an arm, and a plan. Out: a `ServerTrial`; whatever happens, the server is stopped.
A server that does not start, or dies, is an outcome and no error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from statistics import median
from typing import Protocol

import msgspec

from flatout.records.serving import (
    Answered,
    LatencyLimit,
    LoadPoint,
    ServerChange,
    ServerOutcome,
    ServerTrial,
    ServingWindow,
)
from flatout.records.trial import Covariates
from flatout.secrets import masked_text
from flatout.serving.client import Transport, send_open_loop
from flatout.serving.engine import Engine
from flatout.serving.exposition import Readings
from flatout.serving.load import TracedLoad
from flatout.serving.measure import load_point
from flatout.serving.requests import held_requests, make_requests, shared_prompt_share, warm_up_requests
from flatout.serving.window import ServerUse, window

SAMPLE_S = 0.25
WARM_UP_ROUNDS = 8
WARM_UP_REQUESTS = 4  # at once
SETTLED = 1.2  # ratio of the medians of two rounds


class ServerError(Exception):
    """The server did not start, or ended."""

    def __init__(self, outcome: ServerOutcome, problem: str) -> None:
        super().__init__(problem)
        self.outcome = outcome
        self.problem = problem


class Running(Protocol):
    """A server that runs."""

    @property
    def transport(self) -> Transport: ...

    @property
    def start_s(self) -> float:
        """Return the seconds until it was healthy."""

    async def metrics(self) -> Readings | None: ...

    def begin_host_use(self) -> None: ...

    def look(self) -> None:
        """Sample the host."""

    def host_use(self) -> ServerUse: ...

    def covariates(self) -> Covariates: ...

    def check(self) -> None:
        """Raise ServerError if the server has ended."""

    async def stop(self) -> None: ...


class ServerBackend(Protocol):
    """Starts servers with changes; raises ServerError if one does not start."""

    async def start(self, arm: str, changes: Sequence[ServerChange], index: int) -> Running: ...


class ServerTrialSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What all trials of a tuning have in common."""

    engine: Engine
    traced: TracedLoad
    limits: tuple[LatencyLimit, ...]
    rates_per_s: tuple[float, ...]
    words_per_token: float = 1.0


async def run_trial(
    backend: ServerBackend, plan: ServerTrialSetup, arm: str, changes: Sequence[ServerChange], index: int
) -> ServerTrial:
    """Run one trial of an arm."""
    clock = asyncio.get_running_loop().time
    began_s = clock()
    try:
        running = await backend.start(arm, changes, index)
    except ServerError as error:
        return ServerTrial(index=index, arm=arm, outcome=error.outcome, problem=error.problem, took_s=clock() - began_s)
    try:
        trial = await measure_server(running, plan, arm, index)
        running.check()
    except ServerError as error:
        trial = ServerTrial(index=index, arm=arm, outcome=error.outcome, problem=error.problem)
    finally:
        await running.stop()
    return msgspec.structs.replace(trial, problem=masked_text(trial.problem), took_s=clock() - began_s)


async def measure_server(running: Running, plan: ServerTrialSetup, arm: str, index: int) -> ServerTrial:
    """Measure a server that runs. Raise ServerError if it answers nothing, or ends."""
    clock = asyncio.get_running_loop().time
    began_s = clock()
    is_settled = await warm_up(running, plan)
    warm_up_s = clock() - began_s
    held = await ask_held(running, plan)
    unloaded_ttft_s = _unloaded_ttft_s(held)
    points: list[LoadPoint] = []
    windows: list[ServingWindow] = []
    for rate in plan.rates_per_s:
        point, inside = await measure_point(running, plan, rate, unloaded_ttft_s)
        running.check()
        points.append(point)
        windows.append(inside)
    return ServerTrial(
        index=index,
        arm=arm,
        outcome="completed",
        points=tuple(points),
        windows=tuple(windows),
        answers=tuple(answer.pieces for answer in held),
        answer_tokens=tuple(answer.tokens for answer in held),
        start_s=running.start_s,
        warm_up_s=warm_up_s,
        is_settled=is_settled,
        covariates=running.covariates(),
    )


async def warm_up(running: Running, plan: ServerTrialSetup) -> bool:
    """Send rounds of requests until the medians of two rounds are alike; return whether they were.

    Raises ServerError if no request of the first round is answered.
    """
    requests = warm_up_requests(plan.traced, count=WARM_UP_REQUESTS, words_per_token=plan.words_per_token)
    limit_s = plan.traced.load.timeout_s
    before_s: float | None = None
    for _ in range(WARM_UP_ROUNDS):
        answers = await send_open_loop(requests, running.transport, limit_s=limit_s)
        running.check()
        took = [answer.end_s - answer.due_s for answer in answers if answer.outcome == "completed"]
        if not took:
            problem = next((answer.problem for answer in answers if answer.problem), "no answer came")
            raise ServerError("no_answer", f"the server answered no request of the warm-up: {problem}")
        now_s = median(took)
        if before_s is not None and max(now_s, before_s) <= SETTLED * min(now_s, before_s):
            return True
        before_s = now_s
    return False


async def ask_held(running: Running, plan: ServerTrialSetup) -> tuple[Answered, ...]:
    """Ask the held prompts one after the other, so that no other request changes the batch that they are in."""
    answers: list[Answered] = []
    for request in held_requests(plan.traced.load, words_per_token=plan.words_per_token):
        answers += await send_open_loop([request], running.transport, limit_s=plan.traced.load.timeout_s)
    return tuple(answers)


def _unloaded_ttft_s(held: Sequence[Answered]) -> float | None:
    times = [answer.first_s - answer.due_s for answer in held if answer.first_s is not None]
    return median(times) if times else None


async def measure_point(
    running: Running, plan: ServerTrialSetup, rate_per_s: float, unloaded_ttft_s: float | None
) -> tuple[LoadPoint, ServingWindow]:
    """Send the load at one rate; return what the answers, and what metrics and host show."""
    clock = asyncio.get_running_loop().time
    requests = make_requests(plan.traced, rate_per_s, words_per_token=plan.words_per_token)
    first = await running.metrics()
    running.begin_host_use()
    readings: list[Readings] = [] if first is None else [first]
    sampler = asyncio.create_task(_sample(running, readings))
    began_s = clock()
    try:
        answers = await send_open_loop(requests, running.transport, limit_s=plan.traced.load.timeout_s)
    finally:
        sampler.cancel()
        with suppress(asyncio.CancelledError):
            await sampler
    took_s = clock() - began_s
    host = running.host_use()
    last = await running.metrics()
    if last is not None:
        readings.append(last)
    point = load_point(answers, rate_per_s=rate_per_s, limits=plan.limits, energy_j=host.energy_j)
    inside = window(
        plan.engine.metrics,
        readings,
        host,
        answers,
        took_s=took_s,
        unloaded_ttft_s=unloaded_ttft_s,
        shared_prompt_share=shared_prompt_share(plan.traced),
    )
    return point, inside


async def _sample(running: Running, readings: list[Readings]) -> None:
    while True:
        await asyncio.sleep(SAMPLE_S)
        running.look()
        reading = await running.metrics()
        if reading is not None:
            readings.append(reading)


def told(trial: ServerTrial) -> str:
    """Return a line about the trial, for the progress of a tuning."""
    if not trial.is_complete:
        return f"trial {trial.index}, {trial.arm}: {trial.problem}"
    best = max(trial.points, key=lambda point: point.goodput_per_s)
    return (
        f"trial {trial.index}, {trial.arm}: {best.goodput_per_s:.3g} good requests/s, "
        f"{max(point.tokens_per_s for point in trial.points):,.0f} tokens/s, in {trial.took_s:.0f} s"
    )
