"""Make the requests of a load at a rate: the same for each trial, by the seed.

In: a load, a rate, the number of words that make a token. Out: requests with their due times. Prompts are plain words,
because no tokenizer is known here: the number of words for a number of tokens comes from the server's own count of a
first prompt (`words_per_token`). Held prompts, whose answers are compared, do not belong to the load.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np

from flatout.records.serving import Request
from flatout.serving.load import Load, TracedLoad
from flatout.serving.traces import BLOCK_TOKENS, TraceRow

_BURST = 4.0  # squared coefficient of variation of the gaps between bursty requests; 1 is poisson
_TEXT = """
    time year people way day man thing woman life child world school state family student group country problem hand
    part place case week company system program question work government number night point home water room
    mother area money story fact month lot right study book eye job word business issue side kind head house
    service friend father power hour game line end member law car city community name president team minute idea
    kid body information back parent face others level office door health person art war history party result
    change morning reason research girl guy moment air teacher force education foot boy age policy music market
    sense nation plan college interest death experience effect use class control field development role rate
    heart drug show leader light voice wife police mind price report decision son view relationship town road
    arm difference value building action season society tax director position player record paper space ground
    form event official matter centre couple site project activity star table need court oil situation cost
    industry figure street image phone data picture practice piece land product doctor wall patient worker news
    test movie north love support technology step baby computer type attention film tree source organisation
    hair window culture chance brother energy period course summer plant opportunity term letter condition
    choice rule south floor campaign material population call economy hospital church risk fire future bank west
    sport subject officer peace trade bed order author blood
"""
_WORDS = tuple(_TEXT.split())


def make_requests(traced: TracedLoad, rate_per_s: float, *, words_per_token: float = 1.0) -> tuple[Request, ...]:
    """Return the requests at this rate.

    Those of two rates have the same lengths but other words: a server that keeps prompts in a cache would else find
    those of the second rate there.
    """
    load = traced.load
    rows = _rows(traced)
    due_s = _due_s(traced, rows, rate_per_s)
    seed = f"{load.seed} {rate_per_s:g}"
    prefix = _words(random.Random(f"{seed} prefix"), round(load.shared_prefix_tokens * words_per_token))
    return tuple(
        Request(
            index=index,
            due_s=at_s,
            prompt=_prompt(f"{seed} {index}", row, _prefix(seed, row, prefix, words_per_token), words_per_token),
            max_tokens=max(row.output_tokens, 1),
        )
        for index, (row, at_s) in enumerate(zip(rows, due_s, strict=True))
    )


def held_requests(load: Load, *, words_per_token: float = 1.0) -> tuple[Request, ...]:
    """Return the held prompts, to be sent one after the other."""
    num_words = max(round(48 * words_per_token), 4)
    return tuple(
        Request(
            index=index,
            due_s=0.0,
            prompt=" ".join(_words(random.Random(f"{load.seed} held {index}"), num_words)),
            max_tokens=load.held_tokens,
        )
        for index in range(load.held_prompts)
    )


def warm_up_requests(traced: TracedLoad, *, count: int, words_per_token: float = 1.0) -> tuple[Request, ...]:
    """Return requests of the load's lengths, with other words and all due at once."""
    load = traced.load
    rows = _rows(traced)
    return tuple(
        Request(
            index=index,
            due_s=0.0,
            prompt=" ".join(
                _words(
                    random.Random(f"{load.seed} warm-up {index}"),
                    max(round(rows[index % len(rows)].prompt_tokens * words_per_token), 1),
                )
            ),
            max_tokens=max(rows[index % len(rows)].output_tokens, 1),
        )
        for index in range(count)
    )


def probe_prompt(load: Load, num_words: int) -> str:
    """Return a prompt of `num_words` words; a longer one begins as a shorter one does."""
    return " ".join(_words(random.Random(f"{load.seed} probe"), num_words))


def shared_prompt_share(traced: TracedLoad) -> float:
    """Return the share of the prompt tokens that an earlier prompt of the load begins with too."""
    rows = _rows(traced)
    total = sum(row.prompt_tokens for row in rows)
    if not total:
        return 0.0
    if not any(row.blocks for row in rows):
        shared = sum(min(traced.load.shared_prefix_tokens, row.prompt_tokens) for row in rows[1:])
        return shared / total
    seen: set[tuple[int, ...]] = set()
    shared = 0
    for row in rows:
        prefixes = [row.blocks[:length] for length in range(1, len(row.blocks) + 1)]
        num_known = sum(prefix in seen for prefix in prefixes)
        shared += min(num_known * BLOCK_TOKENS, row.prompt_tokens)
        seen.update(prefixes)
    return shared / total


def _rows(traced: TracedLoad) -> tuple[TraceRow, ...]:
    """Return the lengths of the requests: those of the trace, or drawn by the seed."""
    load = traced.load
    if traced.rows:
        return traced.rows[: load.requests]
    draw = random.Random(f"{load.seed} lengths")
    return tuple(
        TraceRow(
            at_s=0.0, prompt_tokens=_drawn(draw, load.prompt_tokens), output_tokens=_drawn(draw, load.output_tokens)
        )
        for _ in range(load.requests)
    )


def _drawn(draw: random.Random, tokens: int | tuple[int, ...]) -> int:
    return draw.randint(tokens[0], tokens[-1]) if isinstance(tokens, tuple) else tokens


def _due_s(traced: TracedLoad, rows: tuple[TraceRow, ...], rate_per_s: float) -> list[float]:
    """Return the due times, from 0: those of the trace, stretched to the rate, or drawn by the seed."""
    span_s = rows[-1].at_s - rows[0].at_s
    if traced.rows and span_s > 0:
        stretch = (len(rows) - 1) / rate_per_s / span_s
        return [(row.at_s - rows[0].at_s) * stretch for row in rows]
    gaps = _gaps(traced.load, len(rows)) / rate_per_s
    return [0.0, *np.cumsum(gaps[:-1]).tolist()]


def _gaps(load: Load, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return the gaps between requests, whose mean is 1 in the long run."""
    draw = np.random.default_rng(load.seed)
    if load.arrivals == "uniform":
        return np.ones(count)
    if load.arrivals == "bursty":
        return draw.gamma(1 / _BURST, _BURST, count)
    return draw.exponential(1.0, count)


def _prefix(seed: str, row: TraceRow, shared: list[str], words_per_token: float) -> list[str]:
    """Return the words that other prompts may begin with too: those of the trace's blocks, or of the load's prefix."""
    if not row.blocks:
        return shared
    num_words = round(BLOCK_TOKENS * words_per_token)
    return [word for block in row.blocks for word in _words(random.Random(f"{seed} block {block}"), num_words)]


def _prompt(seed: str, row: TraceRow, prefix: list[str], words_per_token: float) -> str:
    num_words = max(round(row.prompt_tokens * words_per_token), 1)
    begun = prefix[:num_words]
    return " ".join([*begun, *_words(random.Random(f"{seed} prompt"), num_words - len(begun))])


def _words(draw: random.Random, count: int) -> list[str]:
    return list(_each(draw, count))


def _each(draw: random.Random, count: int) -> Iterator[str]:
    for _ in range(count):
        yield draw.choice(_WORDS)
