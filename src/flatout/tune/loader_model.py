"""The model of the job's loader, from the stages that a profile has timed: what each number of workers would deliver.

In: the profile of the loaders and the job's facts. Out: the facts with the seconds that each number of workers takes
for a step's samples, the number that is predicted to be best, and what limits the present one. Nothing is added where
no stages were timed.
"""

from __future__ import annotations

import msgspec

from flatout.change.dataloader import MAX_WORKERS
from flatout.loading.causes import MIN_GAIN, MIN_WAIT
from flatout.loading.speed import best_workers, least_step_s, predicted_speed
from flatout.records.change import JobFacts
from flatout.records.loading import LoaderSpeed, LoadingProfile, RankLoading
from flatout.units import percent

LITTLE = 1.25  # by workers that share cores with the training: it is said that the cores are the reason
CORES_DECIDE = 0.9  # of a step: where computing needs the rank's cores so long, they set the pace


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
        loader_pace_s=tuple(_pace_s(loading, speed) for speed in known),
        loader_best_workers=best.num_workers,
        loader_best_gain=best.training_samples_per_s / present.training_samples_per_s,
        loader_limit=_limit(loading, present, known[1]),
    )


def _pace_s(loading: RankLoading, speed: LoaderSpeed) -> float:
    """Return the seconds of a step's samples: workers take turns with the training on cores that are busy."""
    assert loading.samples_per_step
    made_s = loading.samples_per_step / speed.samples_per_s
    return max(made_s, least_step_s(loading)) if speed.num_workers else made_s


def _limit(loading: RankLoading, present: LoaderSpeed, with_one: LoaderSpeed) -> str:
    """Return what limits the present loader, or its first worker where that would find the cores busy."""
    assert loading.samples_per_step
    is_full = least_step_s(loading) * with_one.training_samples_per_s >= CORES_DECIDE * loading.samples_per_step
    return "cores" if present.num_workers == 0 and is_full else present.limit


def note_on_workers(facts: JobFacts, profile: LoadingProfile) -> str | None:
    """Say that another number of workers is not what helps; None if it may help, or if the job does not wait."""
    gain, cause = facts.loader_best_gain, next(iter(profile.causes), None)
    if gain is None:
        return _note_on_cores(facts)
    is_short_of_cores = facts.loader_workers == 0 and facts.loader_limit == "cores" and gain < LITTLE
    if not profile.is_waiting or cause is None or (gain >= MIN_GAIN and not is_short_of_cores):
        return None
    loading = _slowest(profile)
    if loading is not None and _waits_for_starts_only(loading):
        return None
    waits = f"the training waits for its batches {percent(cause.share_of_step)} of the step ({cause.name.value})"
    if gain >= MIN_GAIN:
        return f"{waits}, but workers would take turns with it on busy cores: at most {gain:.2f}x is predicted"
    return (
        f"{waits}, and no other number of workers is predicted to make it faster by {percent(MIN_GAIN - 1)}: the"
        f" loader is limited by its {facts.loader_limit}"
    )


def _note_on_cores(facts: JobFacts) -> str | None:
    """Say that workers would find the cores busy, where no stages were timed; None if they would not."""
    speedup = facts.cores_speedup
    is_waiting = facts.loader_load is not None and facts.loader_load >= MIN_WAIT
    if not is_waiting or facts.loader_waits or speedup is None or speedup >= MIN_GAIN:
        return None
    busy = f"the job keeps {facts.cores_busy_by_job or 0.0:.1f} of the {facts.cores_allowed or 0.0:g} cores busy"
    if facts.cores_busy_by_others:
        busy += f", and other programs {facts.cores_busy_by_others:.1f}"
    return (
        f"the training waits for its batches, and workers are not predicted to make it faster by "
        f"{percent(MIN_GAIN - 1)}: making batches is work for the cores, and {busy}"
    )


def _waits_for_starts_only(loading: RankLoading) -> bool:
    """Whether the regular steps get their batches in time: only starts of loaders are waited for."""
    if not loading.step_s or loading.steady_wait_s is None:
        return False
    return loading.steady_wait_s < MIN_WAIT * loading.step_s


def _slowest(profile: LoadingProfile) -> RankLoading | None:
    return next((loading for loading in profile.ranks if loading.rank == profile.slowest_rank), None)
