"""The result of `flatout tune jax`: the settings of XLA and JAX that were tried, and a verdict on each."""

from __future__ import annotations

from typing import Literal

import msgspec

XlaVerdict = Literal["better", "worse", "equivalent", "undecided", "unsafe", "failed", "not reached"]


class XlaChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change: flags that are added to XLA_FLAGS, and other variables of the environment."""

    name: str
    safety: Literal["exact", "rounding"]
    flags: tuple[str, ...] = ()
    environment: dict[str, str] = {}
    what: str  # what it does
    platform: str | None = None  # gpu or cpu; None: any
    needs_several_devices: bool = False
    is_of_start: bool = False  # it shortens the start, not the step


class XlaTrial(msgspec.Struct, frozen=True, kw_only=True):
    """One start of the job with a change, or unchanged."""

    change: str  # "" for the unchanged job
    folder: str
    step_s: float | None  # median step after the last compilation: the mean over the processes; None: see `problem`
    start_s: float | None  # from `import jax` to the first step that counts
    num_steps: int
    losses: tuple[float, ...] = ()  # of the first process, in the order in which they were reported
    problem: str | None = None


class XlaTried(msgspec.Struct, frozen=True, kw_only=True):
    """A change, and what its pairs of trials say."""

    change: XlaChange
    verdict: XlaVerdict
    measure: Literal["step", "start"]
    speedup: float | None  # of the step, or of the start
    interval: tuple[float, float] | None  # for all changes together
    num_pairs: int
    loss_gate: Literal["passed", "failed", "no loss was reported"]
    reason: str = ""


class XlaTuning(msgspec.Struct, frozen=True, kw_only=True):
    command: tuple[str, ...]
    platform: str
    num_processes: int
    num_devices: int
    jax: str
    xla_flags: str  # of the unchanged job
    step_s: float
    start_s: float
    has_losses: bool
    tried: tuple[XlaTried, ...]
    not_offered: tuple[str, ...]  # changes that this job cannot use, each with the reason
    trials: tuple[XlaTrial, ...]
    environment: dict[str, str]  # what to set for the accepted change; empty if none was
    took_s: float
    ended_by: Literal["done", "budget"]
