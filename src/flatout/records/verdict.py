"""The results of trials: verdicts, and the noise floor that they are judged by."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.records.trial import SpellKind

VerdictName = Literal["better", "worse", "equivalent", "undecided"]

Objective = Literal["step_s", "s_per_sample", "s_per_token", "peak_memory_bytes", "j_per_sample", "j_per_step"]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate compared with the baseline. `speedup` is baseline cost / candidate cost: above 1 is better.

    Quote `speedup`: for `better` and `worse` it is corrected for the selection of such verdicts (`verdict.quoted`).
    `mean_speedup` is the plain mean of the pairs, for statistics over verdicts of all names. Otherwise they are equal.

    The interval holds at all interim analyses together: the probability that it misses the truth at any of them is at
    most `error_rate`, regardless of the number of pairs.
    """

    verdict: VerdictName
    objective: Objective
    speedup: float | None  # None before two pairs
    mean_speedup: float | None  # None before two pairs
    interval: tuple[float, float] | None  # of the speedup; None before the first interim analysis
    best_case: float | None  # the speedup exceeds this with 10 % probability; used to stop early, not a claim
    error_rate: float  # of the interval
    min_effect: float  # smaller gains or losses are not called better or worse; the margin of equivalence
    num_pairs: int  # valid pairs behind the verdict; of trials without pairs, the number in the smaller arm
    num_void: int  # invalid pairs or trials, for the reasons in `void_reasons`
    void_reasons: tuple[str, ...]
    order: str  # in which the valid pairs ran: "AB BA AB BA", with A the baseline; of trials without pairs, "AAABAB"
    # Number of pairs, or of the candidate's fresh trials, at the next interim analysis; None if the verdict is final.
    next_analysis: int | None
    reason: str  # one sentence
    num_baselines: int = 0  # valid trials behind the verdict; 0: it is of pairs
    num_candidates: int = 0
    # Work of some steps (an epoch's end) that the trials of an arm did not show: speedup and interval hold for the
    # steps without it, and those of the job are unknown.
    unmeasured_work: tuple[SpellKind, ...] = ()
    probability_better: float | None = None  # that the candidate is faster; None: unknown, or a verdict of pairs


class Prospect(msgspec.Struct, frozen=True, kw_only=True):
    """What more trials are likely to show about a candidate that is undecided: the probability of each verdict by then.

    The trials alternate between the arms. The probabilities follow from the trials so far, with a flat prior.
    """

    num_trials: int  # further trials, of both arms
    num_fresh: int  # of the candidate among them
    total_fresh: int  # fresh trials of the candidate by then
    better: float
    worse: float
    equivalent: float


class NoiseFloor(msgspec.Struct, frozen=True, kw_only=True):
    """The spread among trials of the unchanged job. All spreads are of the logarithm of the cost: 0.01 is 1 %."""

    objective: Objective
    num_trials: int
    num_steps: int  # per trial, the median
    between_sd: float  # between trials, independent of their length
    step_sd: float  # between steps of a trial, without spikes
    step_correlation_time: float  # number of steps that are worth one independent step; at least 1
    drift_per_trial: float  # change from one trial to the next
    spike_share: float  # share of the steps that are long without a known cause or an exact period
    step_s: float  # median over trials
    start_s: float | None  # median time to the first measured step of a trial
    degrees_of_freedom: int
    origin: str = "measured"

    def trial_sd(self, num_steps: int) -> float:
        """Return the spread between trials of the mean of `num_steps` steps."""
        return float((self.between_sd**2 + self.step_sd**2 * self.step_correlation_time / num_steps) ** 0.5)

    def pair_sd(self, num_steps: int) -> float:
        """Return the spread of the log ratio of two trials, without drift."""
        return float(2**0.5 * self.trial_sd(num_steps))


class TrialPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan to detect an effect: the cheapest length and number of trials with enough power."""

    effect: float  # relative gain to be detected: 0.03 is 3 %
    num_steps: int  # measured steps per trial
    num_trials: int | None  # of both arms, until 80 % of tunings have found the effect; None: no plan detects it
    expected_s: float | None  # that they take; None if the time before the first step is unknown
    reason: str


class ScreenedArm(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate after screening: an estimate for choosing whom to confirm, never a claim."""

    arm: str
    speedup: float
    num_trials: int
