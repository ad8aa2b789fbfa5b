"""More compute threads run than there are cores for them, or more than short operators can use.

What it means
    On a CPU, torch runs each operator on several threads. The job has more threads than cores: a container is allowed
    fewer cores than the machine has, other processes use some, or several threads of the script call the model, each
    with its own threads. Or its operators are so short that starting and joining threads takes longer than they
    save.

Why it costs
    An operator ends when its last thread ends. A thread that waits for a core, or that is started for 20 us of work,
    holds all others up, and the others keep their cores busy while they wait.

Evidence
    Threads and cores: those of the machine, those allowed, and those that other processes keep busy; the mean time of
    an operator. The cost is what operators took beyond the fastest call of the same operator with the same shapes. With
    several calling threads, or ONNX Runtime, it is the time per call beyond the fastest hundredth of the calls.

Change to try
    OMP_NUM_THREADS, or `torch.set_num_threads`, to the cores that are free, or to 1 for short operators;
    OMP_WAIT_POLICY=passive where others need the cores. With a pool of calling threads: one compute thread each.

When this is wrong
    The spread of like operators has other causes too: clocks, caches, interrupts. `flatout tune` measures whether fewer
    threads are faster.
"""

from __future__ import annotations

import numpy as np

from flatout.diagnose.calls import calls_of_all_ranks, is_pooled, rank_calls
from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.finding import MIN_SHARE_OF_STEP, cost_words, finding
from flatout.diagnose.host_evidence import busy_cores
from flatout.records.change import JobFacts
from flatout.records.diagnosis import Finding, Part
from flatout.units import percent, seconds

CODE = "F28"
NAME = "thread-oversubscription"
HOST_EVIDENCE = (busy_cores,)
MIN_EXCESS_THREADS = 0.5  # threads beyond the cores: a core is never busy or free to the last percent
SHORT_OPERATOR_S = 50e-6  # on average: below this, threads cost more than they bring
MIN_EXCESS_SHARE = 0.1  # of the time of short operators, for their threads to be a cause without a lack of cores
FASTEST_SHARE = 0.01  # of the calls of a pool: hardly disturbed by the others


def find(context: DiagnosisContext) -> list[Finding]:
    if is_pooled(context):
        return _of_pool(context)
    if context.job_facts.runs_onnx:
        return _of_sessions(context)
    return _of_operators(context)


def free_cores(facts: JobFacts) -> float | None:
    """Return the allowed cores of a host without those that other processes keep busy; None: unknown."""
    if facts.cores_allowed is None:
        return None
    return max(facts.cores_allowed - (facts.cores_busy_by_others or 0.0), 0.0)


def _of_operators(context: DiagnosisContext) -> list[Finding]:
    facts, free = context.job_facts, free_cores(context.job_facts)
    threads = facts.threads_per_rank
    if context.has_gpu or threads is None or threads < 2 or free is None:
        return []
    known = calls_of_all_ranks(context)
    if not known:
        return []
    excess_s = float(np.mean([context.per_step(each.repeats_excess_s) for each in known]))
    spent_s = float(np.mean([context.per_step(each.operators_s) for each in known]))
    operator_s = sum(each.operators_s for each in known) / sum(each.num_operators for each in known)
    all_threads = threads * facts.ranks_on_host
    lacks_cores = all_threads > free + MIN_EXCESS_THREADS
    are_short = operator_s < SHORT_OPERATOR_S and excess_s >= MIN_EXCESS_SHARE * spent_s
    if not lacks_cores and not are_short:
        return []
    cost = context.claim(Part.COMPUTE, excess_s)
    too_short = f"operators of {seconds(operator_s)} are too short for {threads} threads each"
    too_many = f"{all_threads} compute threads have {_cores(free)} to run on"
    why = too_many if lacks_cores else too_short
    return finding(
        context,
        code=CODE,
        name=NAME,
        title=f"{why}: operators take {cost_words(context, cost)}, longer than the fastest of their kind",
        ranks=tuple(timeline.rank for timeline in context.ranks),
        cost_s=cost,
        evidence={
            "threads": all_threads,
            "free_cores": free,
            "cores_of_machine": facts.cores_of_machine,
            "mean_operator_s": operator_s,
            "beyond_fastest_share": excess_s / spent_s if spent_s > 0 else None,
        },
        changes=_changes(free, are_short=are_short),
        safety="exact",
        confidence="medium",
    )


def _of_sessions(context: DiagnosisContext) -> list[Finding]:
    """Return the finding for ONNX Runtime, whose operators no trace shows: by the times of its calls."""
    log, facts, free = context.log, context.job_facts, free_cores(context.job_facts)
    threads = facts.session_threads or facts.cores_of_machine
    if log is None or free is None or threads is None or facts.device != "cpu":
        return []
    all_threads = threads * facts.ranks_on_host
    calls_s = [calls.model_s[calls.is_measured] for calls in rank_calls(context)]
    if all_threads <= free + MIN_EXCESS_THREADS or not sum(map(len, calls_s)):
        return []
    model_s = np.concatenate(calls_s)
    fastest_s = float(np.quantile(model_s, FASTEST_SHARE))
    cost = min(float(model_s.mean()) - fastest_s, log.without_stalls_s)
    share = cost / log.step_s
    if share < MIN_SHARE_OF_STEP:
        return []
    left_s = context.in_trace(cost)
    for part in (Part.COMPUTE, Part.HOST_LAUNCH):
        left_s -= context.claim(part, left_s)
    return [
        Finding(
            code=CODE,
            name=NAME,
            title=(
                f"{all_threads} threads of ONNX Runtime have {_cores(free)} to run on: {seconds(cost)} per call,"
                f" {percent(share)} of the step, beyond the fastest calls"
            ),
            ranks=log.ranks,
            cost_s_per_step=cost,
            share_of_step=share,
            evidence={
                "threads": all_threads,
                "free_cores": free,
                "cores_of_machine": facts.cores_of_machine,
                "call_s": float(np.median(model_s)),
                "fastest_calls_s": fastest_s,
            },
            changes=(
                f"SessionOptions.intra_op_num_threads = {max(int(free) // facts.ranks_on_host, 1)}",
                'SessionOptions.add_session_config_entry("session.intra_op.allow_spinning", "0")',
            ),
            safety="exact",
            confidence="medium",
        )
    ]


def _of_pool(context: DiagnosisContext) -> list[Finding]:
    log, facts, free = context.log, context.job_facts, free_cores(context.job_facts)
    if log is None or free is None or facts.threads_per_rank is None or facts.device == "cuda":
        return []
    ranks = rank_calls(context)
    model_s = np.concatenate([calls.model_s[calls.is_measured] for calls in ranks])
    period_s = np.concatenate([calls.duration_s[calls.is_measured] for calls in ranks])
    if not len(model_s) or period_s.sum() <= 0:
        return []
    at_once = float(model_s.sum() / period_s.sum())
    all_threads = at_once * facts.threads_per_rank * facts.ranks_on_host
    if at_once < 1 + MIN_EXCESS_THREADS or all_threads <= free + MIN_EXCESS_THREADS:
        return []
    fastest_s = float(np.quantile(model_s, FASTEST_SHARE))
    cost = max(log.without_stalls_s - fastest_s / min(at_once, max(free, 1.0)), 0.0)
    share = cost / log.step_s
    if share < MIN_SHARE_OF_STEP:
        return []
    return [
        Finding(
            code=CODE,
            name=NAME,
            title=(
                f"{at_once:.1f} calls of the model run at once, each with {facts.threads_per_rank} compute threads, on"
                f" {_cores(free)}: {seconds(cost)} per call, {percent(share)} of the step, beyond the fastest calls"
            ),
            ranks=log.ranks,
            cost_s_per_step=cost,
            share_of_step=share,
            evidence={
                "calls_at_once": at_once,
                "threads": facts.threads_per_rank,
                "free_cores": free,
                "cores_of_machine": facts.cores_of_machine,
                "call_s": float(np.median(model_s)),
                "fastest_calls_s": fastest_s,
            },
            changes=(
                "one compute thread for each calling thread: OMP_NUM_THREADS=1 or torch.set_num_threads(1)",
                "as many calling threads as cores, or one that calls with batches",
            ),
            safety="exact",
            confidence="medium",
        )
    ]


def _cores(free: float) -> str:
    return "1 free core" if free == 1 else f"{free:.2g} free cores"


def _changes(free: float, *, are_short: bool) -> tuple[str, ...]:
    count = 1 if are_short else max(int(free), 1)
    first = f"OMP_NUM_THREADS={count}, or torch.set_num_threads({count})"
    return (first, "OMP_WAIT_POLICY=passive: threads that wait leave their cores to others")
