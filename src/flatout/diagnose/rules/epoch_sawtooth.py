"""Steps grow (or shrink) within each epoch, and start again at the next.

What it means
    The time of a step depends on its place in the epoch: it changes in one direction until the epoch ends, falls back
    at once, and does so in every epoch. Usually the batches are in the order of their length: the data set is sorted,
    the sampler does not shuffle, or it sorts within groups of batches.

Why it costs
    It is neither a leak nor a drift, and a longer job is no slower. But a step rate taken early in an epoch misses that
    of the job by far, small batches of short samples use the GPU badly, and the longest ones come together, where they
    run out of memory late. Where the ranks' samples differ in length, all ranks wait for the longest.

Evidence
    The number of complete epochs with the pattern (`num_epochs`), their length (`period_steps`), the step time in the
    first and the last quarter of an epoch (`first_s`, `last_s`), and the numbers of the steps with which epochs begin.
    `boundaries` says whether a loader ended there ("loader") or only the times fell back ("step times"). The cost is
    the mean time beyond the shorter end of an epoch; the longer samples need some of it in any order.

Change to try
    Shuffle the batches. To keep padding small, group samples of similar length into batches, and shuffle these batches.
    If sorted batches are wanted at first, sort the first epoch only.

When this is wrong
    Something else can start again with each epoch: outputs that are kept until it ends, or a cache that is emptied.
    If the lengths of the samples do not change within the epoch, look for what is collected in it. Stop at the same
    step of an epoch when comparing two runs. Steps also grow while the queue of launches fills, until the host waits
    for the GPU: where the trace shows a GPU that works all the time, the data quality says so instead.
"""

from __future__ import annotations

from flatout.diagnose.context import DiagnosisContext
from flatout.diagnose.finding import MIN_SHARE_OF_STEP
from flatout.records.diagnosis import Finding
from flatout.records.job_log import Sawtooth
from flatout.units import percent, seconds

CODE = "F22"
NAME = "epoch-sawtooth"
MIN_FOR_HIGH = 3  # epochs
NUM_EXAMPLES = 8


def find(context: DiagnosisContext) -> list[Finding]:
    log = context.log
    if log is None or log.sawtooth is None or log.launched_ahead is not None:
        return []
    sawtooth = log.sawtooth
    cost = max(sawtooth.mean_s - min(sawtooth.first_s, sawtooth.last_s), 0.0)
    if log.step_s <= 0 or cost < MIN_SHARE_OF_STEP * log.step_s:
        return []
    cost = context.claim_change(cost)
    return [
        Finding(
            code=CODE,
            name=NAME,
            title=(
                f"{_pattern(sawtooth)}: {seconds(cost)} per step, {percent(cost / log.step_s)} of the job's mean step,"
                " beyond the shortest batches"
            ),
            ranks=log.ranks,
            cost_s_per_step=cost,
            share_of_step=cost / log.step_s,
            evidence={
                "first_s": sawtooth.first_s,
                "last_s": sawtooth.last_s,
                "direction": "grow" if sawtooth.last_s > sawtooth.first_s else "shrink",
                "num_epochs": sawtooth.num_teeth,
                "period_steps": sawtooth.period_steps,
                "boundaries": "loader" if sawtooth.is_epoch else "step times",
                "steps": list(sawtooth.starts[:NUM_EXAMPLES]),
            },
            changes=_changes(sawtooth),
            safety="semantic",
            confidence="high" if sawtooth.is_epoch and sawtooth.num_teeth >= MIN_FOR_HIGH else "medium",
        )
    ]


def _pattern(sawtooth: Sawtooth) -> str:
    verb = "grow" if sawtooth.last_s > sawtooth.first_s else "shrink"
    change = f"steps {verb} from {seconds(sawtooth.first_s)} to {seconds(sawtooth.last_s)}"
    period = f"{sawtooth.period_steps:,} steps"
    if sawtooth.is_epoch:
        return (
            f"{change} within each of {sawtooth.num_teeth} epochs of {period} and start again with the next, as batches"
            " in the order of their length do"
        )
    return (
        f"{change} and start again every {period}, {sawtooth.num_teeth} times, as batches do that are in the order of"
        " their length within groups"
    )


def _changes(sawtooth: Sawtooth) -> tuple[str, ...]:
    unordered = "if samples do not change in length there, look for what is collected and then dropped"
    return (
        "shuffle the batches (DataLoader(shuffle=True), or the sampler's own option)",
        "to keep padding small, group samples of similar length into batches and shuffle these batches",
        *(("sort the first epoch only",) if sawtooth.is_epoch else ()),
        unordered,
    )
