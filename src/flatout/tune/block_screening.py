"""Narrow the candidates of a round by blocks of steps within one start of the job, before any has a trial.

In: a round. Out: the round without the changes that blocks show to be of no use, ordered by what blocks measured. It is
done only if that costs less than trials would: several changes can be switched, and a start takes far longer than some
steps. Blocks pass no gate and adopt nothing: what is left has its trials in fresh starts as always.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flatout.errors import FlatoutError, InvalidTrialError
from flatout.records.blocks import BlockResult
from flatout.records.change import Change, ChangeSet
from flatout.records.tuning import TuningEnd
from flatout.trial.block_schedule import MIN_BLOCK_S, MIN_STEPS, UNIT
from flatout.tune.blocks import run_blocks, switchable
from flatout.tune.bundle import independent_changes
from flatout.tune.progress import Progress, Promise, Round, Setup, StoppedError
from flatout.tune.tried import tried_set
from flatout.verdict.blocks import MIN_UNITS
from flatout.verdict.cost import TIMES

MIN_SWITCHED = 2  # changes; for one, a trial is as cheap
MAX_SHARE_OF_BUDGET = 0.25  # of what is left
MAX_OF_DROPPED = 0.8  # speedup of a change that was dropped, as clearly slower, before it could be judged


def narrow_by_blocks(setup: Setup, progress: Progress, this_round: Round) -> tuple[Progress, Round]:
    """Return the round without the changes that blocks within one job show to be of no use."""
    changes = _worth_blocks(setup, progress, this_round)
    if not changes:
        return progress, this_round
    setup.say(f"round {this_round.number}: comparing {len(changes)} changes in blocks of steps within one job")
    usual_s = setup.runner.usual_s or 0.0
    left_s = setup.options.budget_s - setup.runner.spent_s()
    try:
        results = run_blocks(
            setup.runner,
            [alone(change) for change in changes],
            applied=progress.applied.changes,
            facts=this_round.facts,
            start_s=usual_s,
            max_s=min(len(changes) * usual_s, MAX_SHARE_OF_BUDGET * left_s),
            seed=this_round.number,
            min_effect=setup.options.min_effect,
        )
    except KeyboardInterrupt as interrupt:
        raise StoppedError(progress, TuningEnd(ended_by="interrupted")) from interrupt
    except InvalidTrialError:
        raise
    except FlatoutError as error:
        return progress.with_note(f"the changes could not be compared in blocks: {error}"), this_round
    return _narrowed(setup, progress, this_round, changes, results)


def alone(change: Change) -> ChangeSet:
    """Return one change as a set, without those that it requires, which are applied or set by the script."""
    return ChangeSet(
        changes=(change,),
        environment=change.environment,
        launch=change.launch,
        patches=() if change.patch is None else (change.patch,),
        arguments=() if change.argument is None else (change.argument,),
    )


def _worth_blocks(setup: Setup, progress: Progress, this_round: Round) -> list[Change]:
    """Return the candidates to compare in blocks; none if trials are as cheap."""
    if not setup.options.blocks or progress.objective not in TIMES:
        return []
    fitting = [
        change
        for change in this_round.candidates
        if progress.applied.with_added([change], this_round.facts) is not None
    ]
    sets = switchable([alone(change) for change in fitting], this_round.facts)
    changes = [change_set.changes[0] for change_set in sets]
    steps = [trial.step_s for trial in progress.current_trials]
    if len(changes) < MIN_SWITCHED or not steps or setup.runner.usual_s is None:
        return []
    block_s = max(MIN_BLOCK_S, MIN_STEPS * sum(steps[-1]) / len(steps[-1]))
    return changes if MIN_UNITS * UNIT * block_s <= setup.runner.usual_s else []


def _narrowed(
    setup: Setup, progress: Progress, this_round: Round, changes: Sequence[Change], results: Sequence[BlockResult]
) -> tuple[Progress, Round]:
    promises = dict(this_round.promises)
    useless: set[str] = set()
    for change, result in zip(changes, results, strict=True):
        setup.say(f"{change.name}: {in_words(result)}")
        if _is_useless(result):
            useless.add(change.name)
            tried = tried_set(setup, this_round, (change,), "not better", in_words(result), screened=result.speedup)
            progress = progress.with_outcomes(progress.outcomes.with_tried(tried).excluding([change.name]))
        elif result.verdict == "better" and result.speedup is not None:
            before = promises.get(change.name)
            most = max(result.speedup, before.max_speedup if before is not None else 1.0)
            promises[change.name] = Promise(expected_speedup=result.speedup, max_speedup=most)
    left = [change for change in this_round.candidates if change.name not in useless]
    left.sort(key=lambda change: -promises[change.name].expected_speedup if change.name in promises else 0.0)
    narrowed = msgspec.structs.replace(this_round, candidates=tuple(left), promises=promises, bundle=None)
    return progress, msgspec.structs.replace(narrowed, bundle=independent_changes(progress, narrowed, left))


def _is_useless(result: BlockResult) -> bool:
    if result.verdict in ("worse", "equivalent"):
        return True
    return result.interval is None and result.speedup is not None and result.speedup <= MAX_OF_DROPPED


def in_words(result: BlockResult) -> str:
    """Return the result in one line."""
    if result.speedup is None:
        return result.reason
    if result.interval is None:
        return f"{result.speedup:.2f}x in {result.num_blocks} blocks within one job"
    low, high = result.interval
    return f"{result.speedup:.2f}x ({low:.2f}-{high:.2f}) in {result.num_blocks} blocks within one job"
