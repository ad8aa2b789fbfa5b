"""Choose how long the next trial is: as long as it pays, given what a start costs and what is to be seen.

In: what is known of the job so far, the effect that is sought, and the time left. Out: a `StopRule`. Nothing is run
here.

Two kinds of noise decide. Differences between steps average out in a longer trial; differences between runs do not, so
only more trials help against these. A trial pays for its start whatever its length. The time to a given precision,
trials times (start + measured), is least where the variance within a trial is that between runs times measured over
start (Cochran's optimum for sampling in two stages): a trial measures until the error is that small, or until it is
well below the effect.
"""

from __future__ import annotations

import math

import msgspec

from flatout.records.stop_rule import StopRule

DEFAULT_START_S, DEFAULT_RUN_SD = 20.0, 0.01  # until they are known
MIN_SHARE, MAX_SHARE = 0.15, 3.0  # of the start's seconds that are counted, at least and at most
LEAST_S, MOST_MIN_S = 0.5, 10.0  # bounds of the least seconds
LEAST_MAX_S = 30.0  # the most seconds of a job that starts fast
# With the usual number, a spike can be distinguished from a stall, if it takes no longer than the least seconds.
FEWEST_STEPS, USUAL_STEPS = 5, 20
MAX_STEPS = 20_000
ERROR_OF_EFFECT = 0.2  # error of a trial's mean, as a share of the effect
LEAST_ERROR, MOST_ERROR = 0.002, 0.1
NUM_TRIALS = 6  # the budget should allow as many: three of each arm
NUM_PERIODS, SHORT_PERIODS_SHARE = 2, 0.5  # periods that a trial holds, if they take at most this share of its start
ABANDON_SLOWDOWN, ABANDON_DEVIATIONS = 0.2, 4.0  # how much slower is clearly worse, beyond the run-to-run noise
ACCEPT_DEVIATIONS = 4.0


class KnownTimes(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a job's trials so far; None: not measured yet."""

    step_s: float | None = None  # mean step of the baseline
    start_s: float | None = None  # from the start of the command to the first counted step, and its end after the last
    run_sd: float | None = None  # standard deviation between runs, relative
    period: int | None = None  # number of steps from one boundary, such as an epoch's end, to the next


def trial_length(
    job: KnownTimes,
    *,
    effect: float,
    budget_left_s: float,
    num_trials: int = NUM_TRIALS,
    reference_step_s: float | None = None,
) -> StopRule:
    """Return the rule of the next trial.

    `effect` is the gain that it should help to see (0.3: 1.3x), and `num_trials` the number of such trials that
    `budget_left_s` should allow. `reference_step_s` is the mean step of the arm that a candidate is compared with, to
    abandon one that is clearly worse; None for a baseline, and for a candidate whose steps do different work.
    """
    start_s = DEFAULT_START_S if job.start_s is None else job.start_s
    run_sd = DEFAULT_RUN_SD if job.run_sd is None else job.run_sd
    min_s = min(max(MIN_SHARE * start_s, LEAST_S), MOST_MIN_S)
    affordable_s = max(budget_left_s / num_trials - start_s, min_s)
    max_s = min(max(MAX_SHARE * start_s, LEAST_MAX_S), affordable_s)
    min_steps = _min_steps(job, start_s, min_s, max_s)
    return StopRule(
        min_steps=min_steps,
        max_steps=max(MAX_STEPS, min_steps),
        min_s=min_s,
        max_s=max_s,
        relative_error=min(max(ERROR_OF_EFFECT * effect, LEAST_ERROR), MOST_ERROR),
        period=job.period,
        error_per_root_s=run_sd / math.sqrt(max(start_s, LEAST_S)),
        abandon_step_s=None if reference_step_s is None else _abandon_step_s(reference_step_s, run_sd),
        accept_step_s=None if reference_step_s is None else _accept_step_s(reference_step_s, run_sd, effect),
    )


def _min_steps(job: KnownTimes, start_s: float, min_s: float, max_s: float) -> int:
    """Return the least steps: whole periods where they fit, so that each trial holds its share of the boundaries."""
    if job.step_s is None or job.step_s <= 0:
        return FEWEST_STEPS
    min_steps = max(min(int(min_s / job.step_s), USUAL_STEPS), FEWEST_STEPS)
    if job.period is None:
        return min_steps
    period_s = job.period * job.step_s
    if period_s > max_s:
        return min_steps
    num_periods = NUM_PERIODS if NUM_PERIODS * period_s <= SHORT_PERIODS_SHARE * start_s else 1
    return max(min_steps, num_periods * job.period)


def _abandon_step_s(reference_step_s: float, run_sd: float) -> float:
    return reference_step_s * (1 + ABANDON_SLOWDOWN + ABANDON_DEVIATIONS * run_sd)


def _accept_step_s(reference_step_s: float, run_sd: float, effect: float) -> float:
    """Return the step below which a candidate needs no better precision: noise between runs does not explain it."""
    return reference_step_s * math.exp(-max(effect, ACCEPT_DEVIATIONS * run_sd))
