"""Compare changes that can be switched while the job runs, in alternating blocks of steps within one start.

It costs one start for all changes together. What it shows is their speed alone: the arms share one training state, so
no gate is passed here, and a change that looks better needs a fresh start of the whole set, which confirms it.
"""

from __future__ import annotations

from collections.abc import Sequence

from flatout.records.blocks import BlockResult
from flatout.records.change import ChangeSet, JobFacts
from flatout.trial.block_schedule import BlockArm, block_arm, schedule_text
from flatout.trial.blocks import read_blocks
from flatout.tune.runner import Runner
from flatout.verdict.arms import MIN_EFFECT
from flatout.verdict.blocks import judge_blocks

NUM_UNITS = 8  # comparisons of each change with the baseline
SLOWEST = 5.0  # blocks may take this many times as long as planned, because a change can make the job slower


def switchable(candidates: Sequence[ChangeSet], facts: JobFacts) -> list[ChangeSet]:
    """Return the sets of changes that `run_blocks` can compare."""
    return [candidate for candidate in candidates if isinstance(block_arm(candidate, facts), BlockArm)]


def run_blocks(
    runner: Runner,
    candidates: Sequence[ChangeSet],
    *,
    applied: ChangeSet,
    facts: JobFacts,
    start_s: float,
    max_s: float,
    num_units: int = NUM_UNITS,
    seed: int = 0,
    min_effect: float = MIN_EFFECT,
) -> tuple[BlockResult, ...]:
    """Run the job once with the applied changes, and judge each candidate against it, in the order given.

    A candidate holds the added changes only. One that cannot be switched has the reason as its `problem`, and costs
    nothing. `start_s` is what a start of the job takes, and `max_s` the time for all blocks, at the speed of the
    warm-up. Raises FlatoutError as a trial does.
    """
    arms = {candidate.name: block_arm(candidate, facts) for candidate in candidates}
    to_run = [arm for arm in arms.values() if isinstance(arm, BlockArm)]
    if not to_run:
        return tuple(_not_run(name, str(reason)) for name, reason in arms.items())
    schedule = schedule_text(to_run, num_units=num_units, max_s=max_s, seed=seed)
    run = runner.blocks(applied, schedule, start_s + SLOWEST * max_s)
    blocks = read_blocks(run.recording) if run.recording is not None else ()
    results = []
    for name, arm in arms.items():
        if isinstance(arm, str):
            results.append(_not_run(name, arm))
        elif not blocks:
            results.append(_not_run(name, run.problem or "the job ended before the first block"))
        else:
            results.append(
                judge_blocks(
                    blocks,
                    name,
                    num_candidates=len(to_run),
                    min_effect=min_effect,
                    keeps_spikes=arm.keeps_spikes,
                )
            )
    return tuple(results)


def _not_run(name: str, problem: str) -> BlockResult:
    reason = f"it cannot be judged in blocks: {problem}"
    return BlockResult(arm=name, verdict="undecided", reason=reason, problem=problem)
