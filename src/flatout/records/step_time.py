"""What an average step of an arm takes: a regular step, and the share of the work that only some steps have."""

from __future__ import annotations

import msgspec

from flatout.records.trial import SpellKind


class WorkTime(msgspec.Struct, frozen=True, kw_only=True):
    """Work that some steps have, e.g. the end of an epoch with its evaluation and its checkpoint."""

    kinds: tuple[SpellKind, ...]  # that always come in the same steps; `unknown`: long steps without a known cause
    extra_s: float  # that such a step takes beyond a regular one
    period_steps: float  # steps from one to the next, the mean

    @property
    def per_step_s(self) -> float:
        return self.extra_s / self.period_steps


class StepTime(msgspec.Struct, frozen=True, kw_only=True):
    """The mean over an arm's trials. The regular step and the shares of the work add up to the step."""

    step_s: float  # in the long run
    regular_s: float
    work: tuple[WorkTime, ...] = ()  # what costs most per step first
    unknown: tuple[SpellKind, ...] = ()  # work that was not measured in this arm: absent here, or assumed
