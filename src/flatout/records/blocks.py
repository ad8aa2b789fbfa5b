"""Blocks of steps within one running job, with changes switched on and off between them, and what they show.

`trial/` reads the blocks of a recording, `verdict/` judges them. A block shows speed only: all arms share one training
state, so losses, gradients and memory belong to none of them.
"""

from __future__ import annotations

import msgspec

from flatout.records.verdict import VerdictName


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """The measured steps of one block, in order; each is the mean over the ranks."""

    number: int
    arm: str  # `baseline`, or the name of a set of changes
    is_switch: bool  # the block before was of another arm
    num_carry_over: int  # steps at its start that were not measured
    step_s: tuple[float, ...]
    # Part of each step for evaluations, checkpoints, loader starts and logging, whose frequency no block can change.
    periodic_s: tuple[float, ...]
    problem: str | None = None  # why its arm was not what its name says; None: all settings took effect


class BlockResult(msgspec.Struct, frozen=True, kw_only=True):
    """A set of changes compared with the baseline within one job. It passes no gate, and needs a fresh start for one.

    `speedup` is the baseline's cost / the cost with the changes: above 1 is better. Both costs include periodic work
    at its frequency in the job. The interval misses the truth with a probability of at most `error_rate`.
    """

    arm: str
    verdict: VerdictName
    reason: str  # one sentence
    problem: str | None = None  # why the changes could not be judged in blocks; the verdict is then `undecided`
    speedup: float | None = None  # None before the first unit
    interval: tuple[float, float] | None = None  # None before the fewest units that can decide
    error_rate: float = 0.05
    min_effect: float = 0.01
    num_units: int = 0  # groups of four blocks, two of each arm, each of which is one comparison
    num_blocks: int = 0
    num_steps: int = 0  # measured steps of both arms that count
    num_carry_over: int = 0  # steps of both arms that were discarded after switches
    num_spikes: int = 0  # long steps that are rare in both arms, and weigh the same in both
    baseline_step_s: float | None = None  # mean regular step, without periodic work and spikes
    step_s: float | None = None  # the same with the changes
    periodic_s_per_step: float = 0.0  # periodic work and spikes that weigh the same in both arms
