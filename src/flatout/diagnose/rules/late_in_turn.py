"""Ranks are late in turn: each waits for the others at times, and no single one of them is the slow one.

What it means
    In some steps or collectives one rank arrives last, and in others another one. What they wait for each other is of
    the same size: either no rank is slower than the others, and the time that their work takes varies, or several ranks
    compute longer, and each makes others wait.

Why it costs
    All ranks of a group wait for the last one each time, whichever it is.

Evidence
    How long each rank lets the others wait, and the number of steps in which it was the latest. `slower_ranks` compute
    at least 1.2 times as long as the faster ranks (their lower quartile); `slower_compute_ratio` is how much longer.

Change to try
    If some ranks compute longer, find out whether they have more work or slower devices, and divide the work evenly.
    Find what varies: samples of different lengths, garbage collection that runs at different steps on each rank, other
    processes on the hosts, waits for storage. Then do it on all ranks at the same step, or give each rank equal work.

When this is wrong
    A few traced steps show which ranks were late in them only: with more steps, one rank may turn out to be late more
    often than the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np

from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.finding import cost_words, finding, rank_words
from flatout.diagnose.host_evidence import foreign_load
from flatout.diagnose.lateness import groups_late_in_turn, late_steps
from flatout.records.diagnosis import Finding, Part

CODE = "F15"
NAME = "late-in-turn"
HOST_EVIDENCE = (foreign_load,)
MIN_RATIO = 1.2  # of the time that a rank computes to that of the faster ranks, for a slower rank
_FASTER = 0.25  # quantile of the ranks' times that stands for the faster ranks
_MOST_LISTED = 16  # ranks whose values are listed; of more, only the largest value is given


def find(context: DiagnosisContext) -> list[Finding]:
    findings = []
    for ranks in groups_late_in_turn(context):
        lateness = {rank: context.lateness(rank) for rank in ranks}
        cost = sum(context.claim_lateness(rank, seconds) for rank, seconds in lateness.items())
        steps_of = late_steps(context)
        num_steps_late = {rank: len(steps_of.get(rank, ())) for rank in ranks}
        ratios = _slower_ranks(context, ranks)
        findings += finding(
            context,
            code=CODE,
            name=NAME,
            title=(
                f"{rank_words(ranks, len(context.ranks))} are late in turn, {_comparison(ranks, ratios)}:"
                f" {cost_words(context, cost)}"
            ),
            ranks=ranks,
            cost_s=cost,
            evidence={
                "others_wait_s": _listed(lateness),
                "num_steps_late": _listed(num_steps_late),
                "num_steps": context.num_steps,
                "slower_ranks": list(ratios),
                "slower_compute_ratio": median(ratios.values()) if ratios else None,
            },
            changes=(
                *_changes_for(ratios),
                "give each rank equal work in each step: batches of the same size and length",
                "do what happens now and then (garbage collection, logging) on all ranks at the same step",
                "keep other processes off the job's cores",
            ),
            safety="exact",
            confidence="medium" if context.num_steps > 1 else "inconclusive",
        )
    return findings


def _slower_ranks(context: DiagnosisContext, ranks: Sequence[int]) -> dict[int, float]:
    """Return the ranks that compute longer than the faster ranks of the group, and how many times as long."""
    compute_s = {rank: float(context.own[context.row[rank], Part.COMPUTE]) for rank in ranks}
    faster_s = float(np.quantile(list(compute_s.values()), _FASTER, method="lower"))
    if faster_s <= 0:
        return {}
    ratios = {rank: seconds / faster_s for rank, seconds in compute_s.items()}
    return {rank: ratio for rank, ratio in ratios.items() if ratio >= MIN_RATIO}


def _comparison(ranks: Sequence[int], ratios: Mapping[int, float]) -> str:
    """Say whether some of the ranks are slower than the others."""
    if ratios:
        compute = "computes" if len(ratios) == 1 else "compute"
        times = f"{median(ratios.values()):.1f} times as long as the faster ones"
        return f"and {rank_words(tuple(ratios), len(ranks))} {compute} {times}"
    return "and neither is slower" if len(ranks) == 2 else "and none of them is slower than the others"


def _changes_for(ratios: Mapping[int, float]) -> tuple[str, ...]:
    if not ratios:
        return ()
    return ("find out whether the ranks that compute longer have more work or slower devices",)


def _listed(values: Mapping[int, float]) -> dict[str, float] | float:
    """Return the values by rank, or the largest of them if there are many ranks."""
    if len(values) > _MOST_LISTED:
        return max(values.values())
    return {str(rank): value for rank, value in values.items()}
