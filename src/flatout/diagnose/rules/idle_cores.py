"""The model computes on fewer threads than there are free cores.

What it means
    Operators take long enough to be divided among cores, but torch has few threads: the script calls
    `torch.set_num_threads(1)`, or OMP_NUM_THREADS is set, as torchrun and many container images do.

Why it costs
    The other cores are idle while the model computes.

Evidence
    Threads, the cores that are allowed and not busy with other processes, and the mean time of an operator. The cost is
    half of what a division of the operators' time among all free cores would save: it is never perfect.

Change to try
    OMP_NUM_THREADS, or `torch.set_num_threads`, to the number of free cores.

When this is wrong
    If other ranks or other jobs need these cores, one thread each is right. Operators that are limited by the memory's
    bandwidth gain little.
"""

from __future__ import annotations

import numpy as np

from flatout.diagnose.calls import calls_of_all_ranks
from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.finding import cost_words, finding
from flatout.diagnose.host_evidence import busy_cores
from flatout.diagnose.rules.thread_oversubscription import free_cores
from flatout.records.diagnosis import Finding, Part
from flatout.units import seconds

CODE = "F29"
NAME = "idle-cores"
HOST_EVIDENCE = (busy_cores,)
MIN_IDLE = 0.5  # of the free cores
LONG_OPERATOR_S = 200e-6  # on average: worth dividing
EFFICIENCY = 0.5  # share of the ideal saving that is counted


def find(context: DiagnosisContext) -> list[Finding]:
    facts, free = context.job_facts, free_cores(context.job_facts)
    threads = facts.threads_per_rank
    if context.has_gpu or threads is None or free is None:
        return []
    known = calls_of_all_ranks(context)
    if not known:
        return []
    all_threads = threads * facts.ranks_on_host
    operator_s = sum(each.operators_s for each in known) / sum(each.num_operators for each in known)
    if all_threads > (1 - MIN_IDLE) * free or operator_s < LONG_OPERATOR_S:
        return []
    computing_s = float(np.mean([context.per_step(each.model_parts_s[Part.COMPUTE]) for each in known]))
    cost = context.claim(Part.COMPUTE, EFFICIENCY * computing_s * (1 - all_threads / free))
    count = max(int(free) // facts.ranks_on_host, 1)
    return finding(
        context,
        code=CODE,
        name=NAME,
        title=(
            f"the model computes on {all_threads} of {free:.2g} free cores, in operators of {seconds(operator_s)}: the"
            f" others would save about {cost_words(context, cost)}"
        ),
        ranks=tuple(timeline.rank for timeline in context.ranks),
        cost_s=cost,
        evidence={
            "threads": all_threads,
            "free_cores": free,
            "cores_of_machine": facts.cores_of_machine,
            "mean_operator_s": operator_s,
            "script_sets_threads": facts.script_sets_threads,
        },
        changes=(f"torch.set_num_threads({count}), or OMP_NUM_THREADS={count} without a call of it in the script",),
        safety="exact",
        confidence="medium",
    )
