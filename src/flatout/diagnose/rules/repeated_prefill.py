"""Prompts that begin alike are computed from their first token each time.

What it means
    The model processes a prompt whose first half or more is that of the prompt before: a system prompt, a document that
    is asked about several times, a conversation that grows.

Why it costs
    The keys and values of equal first tokens are equal. Computing them again takes the time of these tokens in each
    prompt, before its first new token.

Evidence
    Prompts that begin as the one before, the tokens that they share, and the time of these calls beyond that of a call
    with one token. The cost is the shared part of it.

Change to try
    Compute the common part once and pass its `past_key_values` (a copy) to `generate` for each prompt; serve the model
    with an engine that caches prefixes; group prompts with a common part.

When this is wrong
    Only the first sequence of a batch is compared, and only with the prompt before, so prompts that alternate are not
    seen. Tokens on a GPU are not read. A benchmark repeats one prompt on purpose.
"""

from __future__ import annotations

import numpy as np

from flatout.diagnose.calls import Column, RankCalls, is_pooled, rank_calls
from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.finding import MIN_SHARE_OF_STEP
from flatout.records.diagnosis import Finding
from flatout.units import percent, seconds

CODE = "F26"
NAME = "repeated-prefill"
MIN_TOKENS = 32  # that a prompt shares with the one before: shorter ones are cheap, and often alike by chance
MIN_SHARE_OF_PROMPT = 0.5
MIN_PROMPTS = 3


def find(context: DiagnosisContext) -> list[Finding]:
    log = context.log
    ranks = [] if is_pooled(context) else rank_calls(context)
    repeating = [calls for calls in ranks if int(_is_repeated(calls).sum()) >= MIN_PROMPTS]
    if log is None or not repeating:
        return []
    cost = min(sum(_cost_s(calls) for calls in repeating) / len(ranks), log.without_stalls_s)
    share = cost / log.step_s
    if share < MIN_SHARE_OF_STEP:
        return []
    num_prompts = sum(int(_is_repeated(calls).sum()) for calls in repeating)
    known = np.concatenate([calls.num_known_tokens[_is_repeated(calls)] for calls in repeating])
    lengths = np.concatenate([calls.length[_is_repeated(calls)] for calls in repeating])
    return [
        Finding(
            code=CODE,
            name=NAME,
            title=(
                f"{num_prompts:,} prompts begin as the one before, with {np.median(known):,.0f} of"
                f" {np.median(lengths):,.0f} tokens: computing these once would save about {seconds(cost)} per step,"
                f" {percent(share)} of the step"
            ),
            ranks=tuple(calls.rank for calls in repeating),
            cost_s_per_step=cost,
            share_of_step=share,
            evidence={
                "num_prompts": num_prompts,
                "num_shared_tokens": float(np.median(known)),
                "num_prompt_tokens": float(np.median(lengths)),
            },
            changes=(
                "compute the common part once, and pass a copy of its past_key_values for each prompt",
                "an engine that caches prefixes (rounding)",
            ),
            safety="rounding",
            confidence="medium",
        )
    ]


def _is_repeated(calls: RankCalls) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which measured calls are prompts that begin as the one before, and not the next token of a generation."""
    known, length = calls.num_known_tokens, calls.length
    before = np.concatenate(([np.nan], length[:-1]))
    is_next_token = (length == before + 1) & (known >= before)
    shares = (known >= MIN_TOKENS) & (known >= MIN_SHARE_OF_PROMPT * length)
    return np.asarray(calls.is_measured & shares & ~is_next_token)


def _cost_s(calls: RankCalls) -> float:
    """Return the time of the shared tokens per measured call."""
    rows = _is_repeated(calls)
    single: Column = calls.model_s[calls.is_measured & np.isnan(calls.num_tokens)]
    fixed_s = float(np.median(single)) if len(single) else 0.0
    for_tokens = np.maximum(calls.model_s[rows] - fixed_s, 0.0)
    shared = calls.num_known_tokens[rows] / calls.length[rows]
    return float((for_tokens * shared).sum()) / max(int(calls.is_measured.sum()), 1)
