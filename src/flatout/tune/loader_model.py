"""The model of the job's loader, from the stages that a profile has timed: what each number of workers would deliver.

In: the profile of the loaders and the job's facts. Out: the facts with the seconds that each number of workers takes
for a step's samples, the number that is predicted to be best, and what limits the present one. Nothing is added where
no stages were timed.
"""

from __future__ import annotations

import msgspec

from flatout.change.dataloader import MAX_WORKERS
from flatout.loading.causes import MIN_GAIN, MIN_WAIT
from flatout.loading.speed import best_workers, predicted_speed
from flatout.records.change import JobFacts
from flatout.records.loading import LoadingProfile, RankLoading
from flatout.units import percent


def with_loader_model(facts: JobFacts, profile: LoadingProfile) -> JobFacts:
    """Return the facts with the model of the rank that waits longest."""
    loading = _slowest(profile)
    if loading is None or not loading.samples_per_step:
        return facts
    speeds = [predicted_speed(loading, count) for count in range(MAX_WORKERS + 1)]
    known = tuple(speed for speed in speeds if speed is not None)
    best = best_workers(known)
    if best is None or len(known) != len(speeds):
        return facts
    present = predicted_speed(loading, loading.num_workers)
    assert present is not None
    return msgspec.structs.replace(
        facts,
        loader_pace_s=tuple(loading.samples_per_step / speed.samples_per_s for speed in known),
        loader_best_workers=best.num_workers,
        loader_best_gain=best.training_samples_per_s / present.training_samples_per_s,
        loader_limit=present.limit,
    )


def note_on_workers(facts: JobFacts, profile: LoadingProfile) -> str | None:
    """Say that another number of workers is not what helps; None if it may help, or if the job does not wait."""
    gain, cause = facts.loader_best_gain, next(iter(profile.causes), None)
    if not profile.is_waiting or gain is None or gain >= MIN_GAIN or cause is None:
        return None
    loading = _slowest(profile)
    if loading is not None and _waits_for_starts_only(loading):
        return None
    wait = percent(cause.share_of_step)
    return (
        f"the training waits for its batches {wait} of the step ({cause.name.value}), and no other number "
        f"of workers is predicted to make it faster by {percent(MIN_GAIN - 1)}: the loader is limited by its "
        f"{facts.loader_limit}"
    )


def _waits_for_starts_only(loading: RankLoading) -> bool:
    """Whether the regular steps get their batches in time: only starts of loaders are waited for."""
    if not loading.step_s or loading.steady_wait_s is None:
        return False
    return loading.steady_wait_s < MIN_WAIT * loading.step_s


def _slowest(profile: LoadingProfile) -> RankLoading | None:
    return next((loading for loading in profile.ranks if loading.rank == profile.slowest_rank), None)
