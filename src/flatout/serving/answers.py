"""Hold a changed server's answers against the untouched server's: agreement, errors, cut answers, fewer tokens.

In: the trials of the untouched server and one of a changed one. Out: an `AnswerGate`. The agreement of two
untouched starts is the noise: a change that is `exact` must agree as much, within a tolerance, and one that
is `rounding` at least half as much. A gate that cannot judge is `unknown`, and no win is claimed then.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from statistics import fmean

from flatout.records.change import Safety
from flatout.records.serving import AnswerGate, LoadPoint, ServerTrial
from flatout.units import percent

MIN_REFERENCES = 2  # untouched starts
MIN_NOISE_AGREEMENT = 0.5  # of two untouched starts: answers that agree less cannot judge any other
EXACT_TOLERANCE = 0.02  # of the agreement
ROUNDING_SHARE = 0.5  # of the agreement of untouched starts
FEWER_TOKENS = 0.02  # share of the tokens that a change may lose beyond what untouched starts differ by


def gate(trial: ServerTrial, untouched: Sequence[ServerTrial], safety: Safety) -> AnswerGate:
    """Judge one trial of a changed server."""
    references = [each for each in untouched if each.is_complete and each.answers]
    if len(references) < MIN_REFERENCES:
        return AnswerGate(outcome="unknown", reason="fewer than two starts of the untouched server answered")
    noise = noise_agreement(references)
    if noise < MIN_NOISE_AGREEMENT:
        words = f"two starts of the untouched server agree in {percent(noise)} of the tokens, which is too little"
        return AnswerGate(outcome="unknown", reason=words, noise_agreement=noise)
    agreement = max(_agreement(trial, reference) for reference in references) if trial.answers else 0.0
    reason = _failures(trial, references) or _tokens(trial, references) or _differs(agreement, noise, safety)
    if reason is not None:
        return AnswerGate(outcome="failed", reason=reason, agreement=agreement, noise_agreement=noise)
    return AnswerGate(
        outcome="passed",
        reason=f"its answers agree in {percent(agreement)} of the tokens, and untouched starts in {percent(noise)}",
        agreement=agreement,
        noise_agreement=noise,
    )


def noise_agreement(untouched: Sequence[ServerTrial]) -> float:
    """Return the lowest agreement of two untouched starts."""
    return min((_agreement(one, other) for one, other in combinations(untouched, 2)), default=1.0)


def _agreement(one: ServerTrial, other: ServerTrial) -> float:
    """Return the mean over the held prompts; an answer that is missing agrees in nothing."""
    if len(one.answers) != len(other.answers) or not one.answers:
        return 0.0
    pairs = zip(one.answers, other.answers, one.answer_tokens, other.answer_tokens, strict=True)
    return fmean(agreement(a, b, (num_a, num_b)) for a, b, num_a, num_b in pairs)


def agreement(one: Sequence[str], other: Sequence[str], tokens: tuple[int, int] | None = None) -> float:
    """Return the share of the longer answer before the first difference, in tokens.

    A piece of a stream is a token where both answers have as many pieces as tokens; else characters are compared.
    """
    are_tokens = tokens is None or (len(one), len(other)) == tokens
    first: Sequence[str] = one if are_tokens else "".join(one)
    second: Sequence[str] = other if are_tokens else "".join(other)
    longest = max(len(first), len(second))
    if not longest:
        return 1.0
    same = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        same += 1
    return same / longest


def _failures(trial: ServerTrial, references: Sequence[ServerTrial]) -> str | None:
    """Say that requests failed or were cut more often than in any untouched start at that rate."""
    for place, point in enumerate(trial.points):
        others = [each.points[place] for each in references if place < len(each.points)]
        for count, words in ((_failed, "failed"), (_cut, "were cut")):
            most = max((count(other) for other in others), default=0)
            if count(point) > most:
                return (
                    f"at {point.rate_per_s:.3g} requests/s, {count(point)} of {point.num_requests} requests {words}, "
                    f"and at most {most} with the untouched server"
                )
    return None


def _failed(point: LoadPoint) -> int:
    return point.num_failed


def _cut(point: LoadPoint) -> int:
    return point.num_cut


def _tokens(trial: ServerTrial, references: Sequence[ServerTrial]) -> str | None:
    """Say that the same requests got fewer tokens than the untouched server gives in the start that gives fewest."""
    ratios = [_token_ratio(trial, reference) for reference in references]
    of_noise = [_token_ratio(one, other) for one, other in combinations(references, 2)]
    spread = max((abs(1 - ratio) for ratio in of_noise if ratio is not None), default=0.0)
    known = [ratio for ratio in ratios if ratio is not None]
    if not known or max(known) >= 1 - FEWER_TOKENS - spread:
        return None
    return f"its answers have {percent(max(known))} of the tokens that the untouched server gives"


def _token_ratio(one: ServerTrial, other: ServerTrial) -> float | None:
    """Return the ratio of the tokens of the requests that both completed; None without any."""
    pairs = [
        (a, b)
        for mine, theirs in zip(one.points, other.points, strict=False)
        for a, b in zip(mine.tokens_of_request, theirs.tokens_of_request, strict=False)
        if a >= 0 and b >= 0
    ]
    total = sum(b for _, b in pairs)
    return sum(a for a, _ in pairs) / total if total else None


def _differs(agreement: float, noise: float, safety: Safety) -> str | None:
    least = noise - EXACT_TOLERANCE if safety == "exact" else noise * ROUNDING_SHARE
    if agreement >= least:
        return None
    return (
        f"its answers agree with the untouched server's in {percent(agreement)} of the tokens, which must be at least "
        f"{percent(least)}: untouched starts agree in {percent(noise)}"
    )
