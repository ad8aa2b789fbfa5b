"""Ranks are late in turn: each waits for the others at times, and none of them is the slow one.

What it means
    In some steps or collectives one rank arrives last, and in others another one. What they wait for each other is of
    the same size, so no rank is slower than the others: the time that their work takes varies.

Why it costs
    All ranks of a group wait for the last one each time, whichever it is.

Evidence
    How long each rank lets the others wait, and the number of steps in which it was the latest.

Change to try
    Find what varies: samples of different lengths, garbage collection that runs at different steps on each rank, other
    processes on the hosts, waits for storage. Then do it on all ranks at the same step, or give each rank equal work.

When this is wrong
    A few traced steps show which ranks were late in them only: with more steps, one rank may turn out to be late more
    often than the others.
"""

from __future__ import annotations

from collections import Counter

from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.finding import cost_words, finding, rank_words
from flatout.diagnose.host_evidence import foreign_load
from flatout.diagnose.lateness import groups_late_in_turn, late_steps
from flatout.records.diagnosis import Finding

CODE = "F15"
NAME = "late-in-turn"
HOST_EVIDENCE = (foreign_load,)


def find(context: DiagnosisContext) -> list[Finding]:
    findings = []
    for ranks in groups_late_in_turn(context):
        lateness = {rank: context.lateness(rank) for rank in ranks}
        cost = sum(context.claim_lateness(rank, seconds) for rank, seconds in lateness.items())
        steps_of = late_steps(context)
        num_steps_late = Counter({rank: len(steps_of.get(rank, ())) for rank in ranks})
        none_is_slower = "neither is slower" if len(ranks) == 2 else "none of them is slower than the others"
        findings += finding(
            context,
            code=CODE,
            name=NAME,
            title=(
                f"{rank_words(ranks, len(context.ranks))} are late in turn, and {none_is_slower}:"
                f" {cost_words(context, cost)}"
            ),
            ranks=ranks,
            cost_s=cost,
            evidence={
                "others_wait_s": {str(rank): seconds for rank, seconds in lateness.items()}
                if len(ranks) <= 16
                else max(lateness.values()),
                "num_steps_late": {str(rank): num_steps_late[rank] for rank in ranks}
                if len(ranks) <= 16
                else max(num_steps_late.values()),
                "num_steps": context.num_steps,
            },
            changes=(
                "give each rank equal work in each step: batches of the same size and length",
                "do what happens now and then (garbage collection, logging) on all ranks at the same step",
                "keep other processes off the job's cores",
            ),
            safety="exact",
            confidence="medium" if context.num_steps > 1 else "inconclusive",
        )
    return findings
