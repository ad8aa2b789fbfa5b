"""A server with one place and a known service time: what queueing theory says about it is exact."""

from __future__ import annotations

import asyncio
import random

from flatout.records.serving import Request
from flatout.serving.client import Ending, OnPiece


class SingleServer:
    """Serves one request at a time, in the order in which they come; `service_s` is the time of each."""

    def __init__(self, service_s: list[float]) -> None:
        self._service_s = service_s
        self._place = asyncio.Lock()

    async def answer(self, request: Request, on_piece: OnPiece) -> Ending:
        async with self._place:
            await asyncio.sleep(self._service_s[request.index])
        on_piece("x")
        return Ending(num_tokens=1)


def service_times(law: str, mean_s: float, count: int, seed: int) -> list[float]:
    """Return service times: `fixed`, `exponential`, or `two` values (a tenth take nine times as long)."""
    draw = random.Random(seed)
    if law == "fixed":
        return [mean_s] * count
    if law == "exponential":
        return [draw.expovariate(1 / mean_s) for _ in range(count)]
    return [mean_s / 1.8 * (9 if draw.random() < 0.1 else 1) for _ in range(count)]


def squared_variation(law: str) -> float:
    """Return the squared coefficient of variation of a law's service times."""
    if law == "two":
        mean, square = 1.8, 0.9 + 0.1 * 81
        return square / mean**2 - 1
    return {"fixed": 0.0, "exponential": 1.0}[law]


def pollaczek_khinchine_s(load: float, mean_s: float, squared: float) -> float:
    """Return the mean wait of M/G/1 (Pollaczek 1930, Khinchine 1932)."""
    return load * mean_s * (1 + squared) / (2 * (1 - load))


def lindley_waits_s(due_s: list[float], service_s: list[float]) -> list[float]:
    """Return the wait of each request by Lindley's recursion (1952)."""
    waits = [0.0]
    for index in range(1, len(due_s)):
        left = waits[-1] + service_s[index - 1] - (due_s[index] - due_s[index - 1])
        waits.append(max(left, 0.0))
    return waits
