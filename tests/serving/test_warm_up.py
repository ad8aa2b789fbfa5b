"""When a warm-up ends: as soon as the medians of two rounds are alike, or after the last round."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from tests.serving.simulated import table
from tests.serving.virtual_time import run_virtual

from flatout.records.serving import Request
from flatout.serving.client import Ending, OnPiece, TransportError
from flatout.serving.load import Load, TracedLoad
from flatout.serving.slo import parse_slo
from flatout.serving.trial import WARM_UP_REQUESTS, WARM_UP_ROUNDS, ServerError, ServerTrialSetup, warm_up


class Server:
    """Answers each round of requests in the given time; the last time holds for all later rounds."""

    def __init__(self, round_s: Sequence[float]) -> None:
        self.transport = self
        self.num_requests = 0
        self._round_s = round_s

    async def answer(self, request: Request, on_piece: OnPiece) -> Ending:
        number = min(self.num_requests // WARM_UP_REQUESTS, len(self._round_s) - 1)
        self.num_requests += 1
        if self._round_s[number] < 0:
            raise TransportError("not yet")
        await asyncio.sleep(self._round_s[number])
        on_piece("x")
        return Ending()

    def check(self) -> None:
        pass


def rounds(*round_s: float) -> tuple[bool, int]:
    load = Load(rates=(1.0,), prompt_tokens=1, output_tokens=1)
    plan = ServerTrialSetup(
        engine=table(), traced=TracedLoad(load=load, path=""), limits=parse_slo("p99 ttft<1s"), rates_per_s=(1.0,)
    )
    server = Server(round_s)
    is_settled = run_virtual(warm_up(server, plan))  # type: ignore[arg-type]
    return is_settled, server.num_requests // WARM_UP_REQUESTS


def test_a_warm_up_ends_when_two_rounds_differ_by_less_than_a_fifth() -> None:
    assert rounds(5.0, 2.0, 1.0, 1.0) == (True, 4)
    assert rounds(5.0, 1.2, 1.01) == (True, 3)
    assert rounds(5.0, 1.2, 0.99, 0.5, 0.5) == (True, 5)


def test_a_server_that_does_not_settle_is_measured_after_the_last_round() -> None:
    assert rounds(*(2.0**-number for number in range(20))) == (False, WARM_UP_ROUNDS)


def test_a_server_that_answers_nothing_is_not_measured() -> None:
    with pytest.raises(ServerError, match="no request of the warm-up: not yet"):
        rounds(-1.0)
