"""An engine in the long run: the rate, the times and the number of requests that it holds, under a constant load.

A step of a continuously batching engine makes one token for each request and, in the mean, `requests / output tokens`
prompts. So `requests = rate * output tokens * step`, and prompts take the share `rate * prompt` of the time. A prompt
waits for those before it as in a queue with one server and a constant service time (Pollaczek and Khinchine).
"""

from __future__ import annotations

from dataclasses import dataclass

from flatout.plan.serving.constants import StepConstants
from flatout.plan.serving.step import Served, prompt_s, step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyState:
    """One copy of a model under a constant load."""

    concurrent: float
    rate_per_s: float  # requests that it answers
    ttft_s: float  # in the mean
    itl_s: float  # in the mean, prompts of others included
    prompt_share: float  # of the time, for prompts


def at_concurrency(
    served: Served, constants: StepConstants, concurrent: float, input_tokens: int, output_tokens: int
) -> SteadyState:
    """Return the state in which the engine always holds `concurrent` requests."""
    one_prompt_s = prompt_s(served, constants, input_tokens)
    own_s = step_s(served, constants, concurrent, input_tokens + output_tokens / 2)
    cycle_s = own_s + concurrent / output_tokens * one_prompt_s
    rate_per_s = concurrent / (output_tokens * cycle_s)
    prompt_share = min(rate_per_s * one_prompt_s, 1 - 1e-9)
    waits = prompt_share / (2 * (1 - prompt_share))
    # A closed loop of few requests cannot queue more prompts than there are other requests.
    waits = min(waits, max(concurrent - 1, 0))
    alone_s = step_s(served, constants, 1.0, input_tokens)
    return SteadyState(
        concurrent=concurrent,
        rate_per_s=rate_per_s,
        ttft_s=one_prompt_s * (1 + waits) + (cycle_s / 2 if concurrent > 1 else 0.0) + alone_s,
        itl_s=cycle_s,
        prompt_share=prompt_share,
    )


def at_rate(
    served: Served, constants: StepConstants, rate_per_s: float, input_tokens: int, output_tokens: int, most: int
) -> SteadyState | None:
    """Return the state in which requests come at this rate; None if more than `most` would be held at a time."""
    most_state = at_concurrency(served, constants, float(most), input_tokens, output_tokens)
    if most_state.rate_per_s < rate_per_s:
        return None
    fewest, enough = 1e-6, float(most)
    for _ in range(60):
        middle = (fewest * enough) ** 0.5
        if at_concurrency(served, constants, middle, input_tokens, output_tokens).rate_per_s < rate_per_s:
            fewest = middle
        else:
            enough = middle
    return at_concurrency(served, constants, enough, input_tokens, output_tokens)
