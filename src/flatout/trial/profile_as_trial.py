"""Take the steps of a profile before its trace as a trial of the same job, if they are as undisturbed as a trial's.

In: the recording of a profile, and the facts of its job. Out: a `TrialResult`, or None with no reason given: a trial
that is run instead is never wrong. The conditions:

- Every rank measured steps between its warm-up and the first step that the recorder slows down, and the job ended as
  the recorder asked. Only those steps count; until then a profile does the same work as a trial.
- No loader started again within them, and the recorder no longer looked at how a loader makes its first batches, or
  that takes less than a hundredth of a step, or there was no loader.
- Their mean is known about as precisely as that of a trial.

Where a budget allows too few trials for small gains, a coarse trial is worth more than none: a loader may start again
in these steps, and be looked at for up to 5 % of a step, and the steps may differ as much as they like. A baseline that
is slower by as much does not make up a gain of the size that such a budget can show.

What the trace and the counting of operations affect is unknown in the result: peak memory and energy. Gradients and
the state at the start are measured only in trials.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from flatout.inside.protocol import NUM_WATCHED_BATCHES
from flatout.records.change import JobFacts
from flatout.records.recording import RankRecording, Recording, Steps
from flatout.records.trial import BASELINE, TrialResult
from flatout.trial.result import covariates, epoch_ends, loader_wait_s, mean_losses, mean_steps
from flatout.trial.start_costs import counted_from_s, start_costs
from flatout.trial.step_kinds import step_numbers, step_spells

MIN_STEPS = 5
MAX_WATCH_SHARE = 0.01  # of a step: the time that the recorder adds to the loader's batches of one step
MAX_ERROR = 0.05  # standard error of the mean step, relative
COARSE_WATCH_SHARE = 0.05  # as MAX_WATCH_SHARE, of a coarse trial


def profile_as_trial(
    recording: Recording,
    facts: JobFacts,
    *,
    index: int = 0,
    arm: str = BASELINE,
    session: int = 0,
    is_coarse: bool = False,
    has_other_samples: bool = False,
) -> TrialResult | None:
    """Return the profile as a trial of an arm, or None if it is not as good as one, or as a coarse one."""
    if len(recording.runs) != 1 or recording.runs[0].exit_code != 0 or recording.missing_ranks:
        return None
    ranks = [undisturbed for rank in recording.ranks if (undisturbed := _undisturbed(rank)) is not None]
    if not ranks or len(ranks) < len(recording.ranks):
        return None
    step_s = mean_steps(ranks)
    if len(step_s) < MIN_STEPS:
        return None
    is_sound = _is_sound_if_coarse if is_coarse else _is_sound
    if not is_sound(ranks, facts, step_s):
        return None
    run = recording.runs[0]
    counted_s = [begins_s for rank in ranks if (begins_s := counted_from_s(rank)) is not None]
    costs = start_costs(ranks, run.start_unix_s, None)
    numbers = step_numbers(ranks)
    return TrialResult(
        index=index,
        arm=arm,
        outcome="completed",
        step_s=step_s,
        epoch_ends=epoch_ends(ranks) or (),
        first_step=numbers.first,
        unmeasured_steps=numbers.unmeasured,
        spells=step_spells(ranks),
        loader_wait_s=loader_wait_s(ranks),
        steps_per_epoch=facts.steps_per_epoch,
        samples_per_step=recording.measured.samples_per_step,
        tokens_per_step=recording.measured.tokens_per_step,
        losses=mean_losses(recording.ranks),  # also of disturbed steps: the trace slows a step, and alters no number
        loader_workers=facts.loader_workers,
        has_other_samples=has_other_samples,
        sets_own_seed=facts.sets_own_seed,
        start_s=max(counted_s) - run.start_unix_s,
        start_costs=costs,
        covariates=covariates(recording.hosts),
        took_s=None if run.end_unix_s is None else run.end_unix_s - run.start_unix_s,
        stopped_by="enough",
        session=session,
    )


def _is_sound(ranks: Sequence[RankRecording], facts: JobFacts, step_s: Sequence[float]) -> bool:
    mean_s = float(np.mean(step_s))
    error = float(np.std(step_s, ddof=1)) / math.sqrt(len(step_s)) / mean_s
    if error > MAX_ERROR or epoch_ends(ranks) != ():
        return False
    return _watch_s(ranks, facts) <= MAX_WATCH_SHARE * mean_s


def _is_sound_if_coarse(ranks: Sequence[RankRecording], facts: JobFacts, step_s: Sequence[float]) -> bool:
    """Whether even a recorder that looks at each batch of the steps adds little to them."""
    if epoch_ends(ranks) is None:
        return False
    return _most_watch_s(ranks, facts) <= COARSE_WATCH_SHARE * float(np.mean(step_s))


def _undisturbed(rank: RankRecording) -> RankRecording | None:
    """Return a rank with its steps before the first that the recorder slows down; None if none of them was measured."""
    if rank.settled_step is None or rank.disturbed_from is None:
        return None
    num_rows = int((rank.steps.number < rank.disturbed_from).sum())
    if not (rank.steps.number[:num_rows] >= rank.settled_step).any():
        return None
    return msgspec.structs.replace(rank, steps=_first_rows(rank.steps, num_rows))


def _first_rows(steps: Steps, num_rows: int) -> Steps:
    columns = {name: getattr(steps, name) for name in steps.__struct_fields__}
    first = {name: column[:num_rows] for name, column in columns.items() if column is not None}
    return msgspec.structs.replace(steps, **first)


def _watch_s(ranks: Sequence[RankRecording], facts: JobFacts) -> float:
    """Return the time that watching the loaders adds to a step at most: infinite if it is unknown.

    Each process that makes batches is watched for its first ones, and workers make them in turn.
    """
    num_before = min(rank.settled_step or 0 for rank in ranks) * (facts.passes_per_step or 1)
    if facts.loader_workers is not None and num_before >= NUM_WATCHED_BATCHES * max(facts.loader_workers, 1):
        return 0.0
    return _most_watch_s(ranks, facts)


def _most_watch_s(ranks: Sequence[RankRecording], facts: JobFacts) -> float:
    """Return the time that watching the loaders adds to a step for which all batches are watched."""
    has_loader = any(not np.isnan(rank.steps.num_samples).all() for rank in ranks)
    if not has_loader and facts.loader_workers is None:
        return 0.0
    return math.inf if facts.loader_watch_s is None else facts.loader_watch_s * (facts.passes_per_step or 1)
