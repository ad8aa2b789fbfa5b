"""The result of `flatout compare`: two commands, their verdict, and where the difference is.

`compare/` writes these and `report/` shows them. A difference is always B minus A: above 0, B is slower or has more.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.records.tuning import Separation
from flatout.records.verdict import Objective, Verdict

ArmName = Literal["A", "B"]
# `passed`: B is shown to be slower by less than the gate, or not at all. `failed`: by more than the gate.
GateOutcome = Literal["passed", "failed", "undecided"]
EndedBy = Literal["decided", "hopeless", "time_budget", "trial_budget", "last_analysis", "interrupted"]
# `steps`: the recorded steps of all trials. `kinds`: the same, by kinds of steps: regular ones, and the share of work
# that only some have, such as an epoch's end. `profiles`: the traced steps of the profiles, in which a step is longer.
PartSource = Literal["steps", "kinds", "profiles"]


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two commands, and where it runs."""

    name: ArmName
    command: tuple[str, ...]  # secrets masked
    ref: str | None = None  # as typed; None: the files of the working folder
    commit: str | None = None  # of the ref
    python: str | None = None  # the environment whose Python runs it
    num_trials: int = 0  # complete trials
    step_s: float | None = None  # geometric mean over the trials of their mean steps
    samples_per_step: float | None = None
    peak_memory_bytes: int | None = None  # the highest of its trials
    profile: str | None = None  # the folder of its last profile


class Power(msgspec.Struct, frozen=True, kw_only=True):
    """What the comparison can show, as stated after its first trials."""

    run_sd: float  # run-to-run standard deviation of the log cost
    trial_s: float  # mean duration of a trial
    effect: float  # the slowdown that the gate or the margin asks about
    num_trials: int | None  # of both arms together, to find it with 80 % probability; None: no number of trials does
    num_affordable: int  # trials that the budget and the analyses allow, those already run included
    detectable: float | None  # smallest slowdown that the affordable trials find with 80 % probability


class ComparisonGate(msgspec.Struct, frozen=True, kw_only=True):
    """Whether B is slower than A by more than a limit."""

    limit: float  # 0.03: 3 %
    outcome: GateOutcome
    slowdown: tuple[float, float] | None  # interval of B's cost / A's cost - 1; None before the first analysis


class PartDifference(msgspec.Struct, frozen=True, kw_only=True):
    """How much longer a part of the step takes in B. Times are means over ranks and runs, per step."""

    part: str  # a part of the step log (`data_loading`, ...), or of the profiles (`compute`, ...)
    source: PartSource
    a_s: float
    b_s: float
    change_s: float  # b - a
    interval_s: tuple[float, float] | None  # 95 %, from the differences between runs; None: fewer than two runs
    is_shown: bool  # the interval excludes 0, also after a correction for the number of parts


class CallDifference(msgspec.Struct, frozen=True, kw_only=True):
    """An operator or a collective that a step calls more or less often, or that takes longer, in the profiles."""

    name: str
    a_calls: float  # per step and rank
    b_calls: float
    a_s: float  # per step and rank, without the operators that it calls
    b_s: float


class EnvironmentDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A fact about the runs that differs between the arms, such as the version of torch."""

    name: str
    a: str
    b: str


class TrainingCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Whether B trains as A does, by the gates of a tuning."""

    is_passed: bool
    losses: str  # one line
    gradients: str
    memory: str


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two commands compared. `verdict.speedup` is A's cost / B's cost: above 1, B is better."""

    a: Arm
    b: Arm
    objective: Objective
    verdict: Verdict
    equivalent_within: float | None  # the margin, if the verdict is `equivalent`
    gate: ComparisonGate | None = None
    power: Power | None = None  # None: the comparison ended before it could be estimated
    parts: tuple[PartDifference, ...] = ()  # of the recorded steps, then of the profiles; largest change first
    cause: str | None = None  # the part that explains most of the difference; None: no part is shown to differ
    calls: tuple[CallDifference, ...] = ()  # largest change of time first
    environment: tuple[EnvironmentDifference, ...] = ()
    training: TrainingCheck | None = None
    num_trials: int = 0
    num_failed: int = 0  # trials that did not complete
    num_profiles: int = 0
    num_resumed: int = 0  # trials read from an earlier, interrupted comparison
    took_s: float = 0.0
    budget_s: float = 0.0
    ended_by: EndedBy
    separation: Separation | None = None
    notes: tuple[str, ...] = ()
