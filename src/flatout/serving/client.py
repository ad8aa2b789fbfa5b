"""Send requests open loop: each when it is due, whether or not earlier ones have been answered.

In: requests with their due times, and a transport. Out: an `Answered` for each, in their order. All times are of the
event loop's clock, so that a loop with virtual time runs the same code. A request that is sent late, because this
process was busy, counts from when it was due: the delay is in its times, so a slow server cannot hide behind a client
that waits for it (coordinated omission). It judges nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from flatout.records.serving import Answered, Request, RequestOutcome

OnPiece = Callable[[str], None]


class TransportError(Exception):
    """A request failed: the server refused it, or the connection broke."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """What the server said at the end of an answer; None: it did not say."""

    num_tokens: int | None = None
    num_prompt_tokens: int | None = None
    is_whole: bool = True  # False: the answer ended without the server's mark of its end


class Transport(Protocol):
    """Sends one request, calls `on_piece` with each piece of the answer as it comes, and returns how it ended."""

    async def answer(self, request: Request, on_piece: OnPiece) -> Ending: ...


async def send_open_loop(requests: Sequence[Request], transport: Transport, *, limit_s: float) -> tuple[Answered, ...]:
    """Send each request when it is due; return when all are answered, have failed, or took `limit_s`."""
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    tasks = []
    for request in requests:
        wait_s = start_s + request.due_s - loop.time()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        tasks.append(asyncio.create_task(_send(request, transport, start_s, limit_s)))
    try:
        return tuple(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        raise


async def _send(request: Request, transport: Transport, start_s: float, limit_s: float) -> Answered:
    clock = asyncio.get_running_loop().time
    pieces: list[str] = []
    piece_s: list[float] = []

    def on_piece(text: str) -> None:
        pieces.append(text)
        piece_s.append(clock() - start_s)

    sent_s = clock() - start_s
    ending = Ending()
    problem = ""
    outcome: RequestOutcome = "completed"
    left_s = limit_s - (sent_s - request.due_s)
    try:
        async with asyncio.timeout(max(left_s, 0.0)):
            ending = await transport.answer(request, on_piece)
    except TimeoutError:
        outcome, problem = "timed_out", f"no complete answer in {limit_s:g} s"
    except TransportError as error:
        outcome, problem = "failed", str(error)
    if outcome == "completed" and not ending.is_whole:
        outcome, problem = "cut", "the answer was truncated"
    return Answered(
        index=request.index,
        due_s=request.due_s,
        sent_s=sent_s,
        end_s=clock() - start_s,
        outcome=outcome,
        first_s=piece_s[0] if piece_s else None,
        piece_s=tuple(piece_s),
        pieces=tuple(pieces),
        num_tokens=ending.num_tokens,
        num_prompt_tokens=ending.num_prompt_tokens,
        problem=problem,
    )
