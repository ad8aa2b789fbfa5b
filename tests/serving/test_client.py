"""The open-loop client against queues whose behaviour is known exactly, in virtual time."""

from __future__ import annotations

import asyncio
from statistics import fmean

import pytest
from tests.serving.queues import (
    SingleServer,
    lindley_waits_s,
    pollaczek_khinchine_s,
    service_times,
    squared_variation,
)
from tests.serving.virtual_time import VirtualLoop, run_virtual

from flatout.records.serving import Answered, Request
from flatout.serving.client import Ending, OnPiece, TransportError, send_open_loop
from flatout.serving.load import Load, TracedLoad
from flatout.serving.requests import make_requests


def requests_at(rate: float, count: int, seed: int = 0) -> tuple[Request, ...]:
    load = Load(rates=(rate,), requests=count, seed=seed, prompt_tokens=1, output_tokens=1)
    return make_requests(TracedLoad(load=load, path="load.toml"), rate)


@pytest.mark.parametrize("law", ["fixed", "exponential", "two"])
def test_the_wait_of_each_request_is_that_of_lindleys_recursion(law: str) -> None:
    requests = requests_at(0.7, 1000)
    service_s = service_times(law, 1.0, len(requests), seed=1)
    answers = run_virtual(send_open_loop(requests, SingleServer(service_s), limit_s=1e9))
    waits = [(answer.first_s or 0) - answer.due_s - own for answer, own in zip(answers, service_s, strict=True)]
    assert waits == pytest.approx(lindley_waits_s([each.due_s for each in requests], service_s), abs=1e-6)


def test_the_mean_wait_is_that_of_pollaczek_and_khinchine() -> None:
    """At load 0.7; `benchmarks/serving_client.py` has 50,000 requests of three laws."""
    requests = requests_at(0.7, 5_000)
    service_s = service_times("fixed", 1.0, len(requests), seed=1)
    answers = run_virtual(send_open_loop(requests, SingleServer(service_s), limit_s=1e9))
    wait_s = fmean((answer.first_s or 0) - answer.due_s for answer in answers) - 1.0
    assert wait_s == pytest.approx(pollaczek_khinchine_s(0.7, 1.0, squared_variation("fixed")), rel=0.05)


class Blocking:
    """A transport that holds the client's own loop for `block_s` at the first request."""

    def __init__(self, block_s: float) -> None:
        self._block_s = block_s

    async def answer(self, request: Request, on_piece: OnPiece) -> Ending:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        if request.index == 0:
            loop.skip(self._block_s)
        await asyncio.sleep(0.1)
        on_piece("x")
        return Ending(num_tokens=1)


def plain(*due_s: float) -> list[Request]:
    return [Request(index=index, due_s=at, prompt="p", max_tokens=1) for index, at in enumerate(due_s)]


def answered(transport: object, *due_s: float, limit_s: float = 100.0) -> tuple[Answered, ...]:
    return run_virtual(send_open_loop(plain(*due_s), transport, limit_s=limit_s))  # type: ignore[arg-type]


def test_what_the_client_sends_late_counts_from_when_it_was_due() -> None:
    _, second, third = answered(Blocking(5.0), 0.0, 1.0, 7.0)
    assert second.sent_s == pytest.approx(5.0)
    assert (second.first_s or 0) - second.due_s == pytest.approx(4.1)
    assert third.sent_s == pytest.approx(7.0)


def test_requests_are_sent_though_earlier_ones_are_not_answered() -> None:
    answers = answered(SingleServer([10.0, 10.0]), 0.0, 1.0)
    assert [answer.sent_s for answer in answers] == pytest.approx([0.0, 1.0])
    assert [answer.end_s for answer in answers] == pytest.approx([10.0, 20.0])


class Failing:
    async def answer(self, request: Request, on_piece: OnPiece) -> Ending:
        on_piece("x")
        await asyncio.sleep(1.0)
        if request.index == 0:
            raise TransportError("refused")
        if request.index == 1:
            return Ending(is_whole=False)
        await asyncio.sleep(50.0)
        return Ending()


def test_failed_cut_and_late_answers_are_told_apart() -> None:
    answers = answered(Failing(), 0.0, 0.0, 0.0, limit_s=10.0)
    assert [answer.outcome for answer in answers] == ["failed", "cut", "timed_out"]
    assert answers[0].problem == "refused"
    assert answers[2].end_s == pytest.approx(10.0)
