"""What trials showed: verdicts, the noise floor that they were judged against, and how long trials must be."""

from __future__ import annotations

from typing import Literal

import msgspec

VerdictName = Literal["better", "worse", "equivalent", "undecided"]

Objective = Literal["step_s", "s_per_sample", "s_per_token", "peak_memory_bytes", "j_per_sample", "j_per_step"]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate against the baseline. `speedup` is the baseline's cost over the candidate's: above 1 is better.

    Of what is called better or worse it is corrected for that (`verdict.corrected`), and is what to quote;
    `mean_speedup` is the plain mean of the pairs, for all that takes in verdicts of every name. Else the two are equal.

    The interval holds at all looks together: the chance that it misses the truth at any look is at most
    `error_rate`, however many pairs were run before someone stopped.
    """

    verdict: VerdictName
    objective: Objective
    speedup: float | None  # None before two pairs
    mean_speedup: float | None  # None before two pairs
    interval: tuple[float, float] | None  # of the speedup; None before the first look
    best_case: float | None  # the speedup is above this with a chance of 10 % only: for stopping early, no claim
    error_rate: float  # that the interval holds to
    min_effect: float  # a smaller gain or loss is not called better or worse; equivalence is within it
    num_pairs: int  # that the verdict rests on
    num_void: int  # left out of it, for what `void_reasons` say
    void_reasons: tuple[str, ...]
    order: str  # in which the counted pairs ran: "AB BA AB BA", A the baseline
    next_look: int | None  # pairs at which it is judged again; None where the verdict is final
    reason: str  # one sentence


class NoiseFloor(msgspec.Struct, frozen=True, kw_only=True):
    """How much trials of the very same job differ. All spreads are of the logarithm of the cost: 0.01 is 1 %."""

    objective: Objective
    num_trials: int
    num_steps: int  # a trial, the median
    between_sd: float  # of trials, however long they are
    step_sd: float  # of steps within a trial, spikes apart
    step_correlation_time: float  # steps that carry as much as one independent step; at least 1
    drift_per_trial: float  # change from each trial to the next
    spike_share: float  # of steps that take more than 1.5 times their trial's median
    step_s: float  # median over trials
    start_s: float | None  # median time to a trial's first settled step
    degrees_of_freedom: int
    origin: str = "measured"

    def trial_sd(self, num_steps: int) -> float:
        """Spread of the mean of so many steps, from trial to trial."""
        return float((self.between_sd**2 + self.step_sd**2 * self.step_correlation_time / num_steps) ** 0.5)

    def pair_sd(self, num_steps: int) -> float:
        """Spread of the log ratio of two trials; drift apart."""
        return float(2**0.5 * self.trial_sd(num_steps))


class TrialPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How to see an effect: the cheapest length and number of trials that find it often enough."""

    effect: float  # relative gain that is to be seen: 0.03 is 3 %
    num_steps: int  # settled steps a trial
    num_pairs: int | None  # the look by which it is found with `power`; None: no plan finds it
    expected_pairs: float | None  # on average, if the effect is there
    power: float
    expected_s: float | None  # time on average; None where the time of a start is unknown
    reason: str


class Screened(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate after screening: an estimate for choosing whom to confirm, never a claim."""

    arm: str
    speedup: float
    num_trials: int
