"""The first start of the untouched server: how many words make a token, which rates to send, and its first trial.

In: a backend, and a plan without rates. Out: the plan of all trials, and trial 0.
"""

from __future__ import annotations

import asyncio

import msgspec

from flatout.errors import InputError
from flatout.records.serving import Request, ServerTrial
from flatout.records.trial import BASELINE
from flatout.secrets import masked_text
from flatout.serving.client import send_open_loop
from flatout.serving.loop import Say
from flatout.serving.rates import search_rates
from flatout.serving.requests import probe_prompt
from flatout.serving.trial import Running, ServerBackend, ServerError, ServerTrialSetup, measure_server, warm_up

USUAL_WORDS_PER_TOKEN = 0.75  # of English and common tokenizers: assumed where the server counts no tokens
_SHORT, _LONG = 8, 40  # words of the prompts whose tokens the server counts


async def first_start(
    backend: ServerBackend, plan: ServerTrialSetup, say: Say
) -> tuple[ServerTrialSetup, ServerTrial, tuple[str, ...]]:
    """Return the plan with its rates, the first trial, and notes. Raise InputError if the server does not run."""
    clock = asyncio.get_running_loop().time
    began_s = clock()
    notes: list[str] = []
    try:
        running = await backend.start(BASELINE, (), 0)
    except ServerError as error:
        raise _not_running(error) from None
    try:
        per_token = await words_per_token(running, plan)
        if per_token is None:
            notes.append(
                f"the server does not count prompt tokens: {USUAL_WORDS_PER_TOKEN:g} words are assumed to make one"
            )
        plan = msgspec.structs.replace(plan, words_per_token=per_token or USUAL_WORDS_PER_TOKEN)
        if not plan.rates_per_s:
            await warm_up(running, plan)
            begin = plan.traced.load.rate or plan.traced.natural_rate_per_s or 1.0
            say(f"looking for the rates that the server can serve, from {begin:.3g} requests/s")
            plan = msgspec.structs.replace(plan, rates_per_s=await search_rates(running, plan, begin))
        trial = await measure_server(running, plan, BASELINE, 0)
        running.check()
    except ServerError as error:
        raise _not_running(error) from None
    finally:
        await running.stop()
    return plan, msgspec.structs.replace(trial, took_s=clock() - began_s), tuple(notes)


def _not_running(error: ServerError) -> InputError:
    return InputError(
        f"the untouched server cannot be measured: {masked_text(error.problem)}",
        hint="start the command by hand and send it one request; its output is in the logs folder of --out",
    )


async def words_per_token(running: Running, plan: ServerTrialSetup) -> float | None:
    """Return how many words make a token, from the server's count of two prompts; None if it does not count."""
    counts = []
    for num_words in (_SHORT, _LONG):
        request = Request(index=0, due_s=0.0, prompt=probe_prompt(plan.traced.load, num_words), max_tokens=1)
        (answer,) = await send_open_loop([request], running.transport, limit_s=plan.traced.load.timeout_s)
        if answer.outcome != "completed":
            raise ServerError("no_answer", f"the server does not answer a short prompt: {answer.problem}")
        counts.append(answer.num_prompt_tokens)
    short, long = counts
    if short is None or long is None or long <= short:
        return None
    return (_LONG - _SHORT) / (long - short)
