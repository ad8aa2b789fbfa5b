"""A model that generates text computes the whole sequence again for each new token.

What it means
    Each call of the model gets the tokens of the call before and one more. With a cache of keys and values (a KV
    cache), a call gets the new token alone.

Why it costs
    The work of a call grows with the sequence: generating n tokens computes about n times as many tokens as needed.

Evidence
    The share of calls whose sequences are one token longer than those of the call before and, where tokens are on the
    CPU, begin with the same tokens. The cost is what the measured time grows by for each token, times the tokens that
    a cache would hold; a call that takes the same time for any length costs nothing.

Change to try
    `model.generate(..., use_cache=True)`; in your own loop, pass `past_key_values` of the last call on and only
    the new token.

When this is wrong
    A model without causal attention (an encoder, a diffusion model of text) cannot keep a cache. A script that feeds
    longer and longer inputs on purpose looks the same where its tokens are on a GPU, which the recorder does not read.
"""

from __future__ import annotations

import numpy as np

from flatout.diagnose.calls import Column, RankCalls, is_pooled, rank_calls
from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.finding import MIN_SHARE_OF_STEP
from flatout.inside.protocol import MOST_KNOWN_TOKENS
from flatout.records.diagnosis import Finding
from flatout.units import percent, seconds

CODE = "F25"
NAME = "no-kv-cache"
MIN_SHARE_OF_CALLS = 0.5
MIN_LENGTHS = 8  # different ones: fewer do not show how the time grows


def find(context: DiagnosisContext) -> list[Finding]:
    log = context.log
    ranks = [] if is_pooled(context) else rank_calls(context)
    growing = [calls for calls in ranks if _share_growing(calls) >= MIN_SHARE_OF_CALLS]
    if log is None or not growing:
        return []
    per_token_s = [_per_token_s(calls) for calls in growing]
    costs_s = [_cost_s(calls, slope_s) for calls, slope_s in zip(growing, per_token_s, strict=True)]
    cost = min(sum(costs_s) / len(ranks), log.without_stalls_s)
    if cost / log.step_s < MIN_SHARE_OF_STEP:
        return []
    cost = context.claim_change(cost)
    lengths = np.concatenate([calls.length[_is_growing(calls)] for calls in growing])
    share = float(np.mean([_share_growing(calls) for calls in growing]))
    return [
        Finding(
            code=CODE,
            name=NAME,
            title=(
                f"{percent(share)} of the calls compute the sequence of the call before again for one more token:"
                f" a cache of keys and values would save about {seconds(cost)} per step,"
                f" {percent(cost / log.step_s)} of the step"
            ),
            ranks=tuple(calls.rank for calls in growing),
            cost_s_per_step=cost,
            share_of_step=cost / log.step_s,
            evidence={
                "growing_calls_share": share,
                "shortest_tokens": float(lengths.min()),
                "longest_tokens": float(lengths.max()),
                "each_token_s": float(np.mean(per_token_s)),
            },
            changes=(
                "model.generate(..., use_cache=True), or pass past_key_values on and only the new token",
                "a cache of fixed size (cache_implementation='static'), which can be compiled (rounding)",
            ),
            safety="rounding",
            confidence="high",
        )
    ]


def _is_growing(calls: RankCalls) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which calls have the sequences of the call before and one token more."""
    length, before = calls.length, _shifted(calls.length)
    grows = (length == before + 1) & (calls.num_samples == _shifted(calls.num_samples))
    known = calls.num_known_tokens
    is_same = np.isnan(known) | (known >= np.minimum(before, MOST_KNOWN_TOKENS))
    return np.asarray(grows & is_same)


def _shifted(column: Column) -> Column:
    return np.concatenate(([np.nan], column[:-1]))


def _share_growing(calls: RankCalls) -> float:
    rows = calls.is_measured
    return float(_is_growing(calls)[rows].mean()) if rows.any() else 0.0


def _per_token_s(calls: RankCalls) -> float:
    """Return by how much a call takes longer with each token: the median slope between medians (Theil and Sen)."""
    rows = _is_growing(calls) & calls.is_measured
    lengths = np.unique(calls.length[rows])
    if len(lengths) < MIN_LENGTHS:
        return 0.0
    medians = np.array([np.median(calls.model_s[rows & (calls.length == length)]) for length in lengths])
    first, second = np.triu_indices(len(lengths), k=len(lengths) // 2)
    slopes = (medians[second] - medians[first]) / (lengths[second] - lengths[first])
    return max(float(np.median(slopes)), 0.0)


def _cost_s(calls: RankCalls, per_token_s: float) -> float:
    """Return what the tokens that a cache would hold cost per measured call."""
    rows = _is_growing(calls) & calls.is_measured
    cached = calls.length[rows] - 1
    return per_token_s * float(cached.sum()) / max(int(calls.is_measured.sum()), 1)
