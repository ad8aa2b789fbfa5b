"""Estimate the error that trials of one arm share, because the cost of their periodic work comes from one another.

A short window may hold no end of an epoch; its trial then has the mean cost of an end in the arm's other trials. Such
trials agree on it, whatever it really costs: their spread does not show this error, so it is added to the interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

import msgspec

from flatout.records.trial import SpellKind
from flatout.verdict.cost import TrialCost, WorkCost

# How much a work's cost differs between trials, relative to its mean; enters as one more observation of that spread.
USUAL_SPREAD = 0.1
# No work is taken to differ by more than its own mean, unless its measurements do: so an interval is never wider than
# this spread would make it, if it were known.
MOST_SPREAD = 1.0
_ROUNDING = 1e-9


class SharedError(msgspec.Struct, frozen=True, kw_only=True):
    """An error of the log speedup that no trial's spread shows."""

    sd: float
    degrees_of_freedom: int
    most_sd: float = math.inf  # for the largest sensible spread; infinite if the measurements have a larger one


NO_SHARED_ERROR = SharedError(sd=0.0, degrees_of_freedom=1)


def shared_error(arms: Sequence[Sequence[TrialCost]]) -> SharedError:
    """Return the shared error of the difference between the arms' mean log costs."""
    kinds = dict.fromkeys(work.kinds for arm in arms for cost in arm for work in cost.work)
    errors = [error for of_work in kinds if (error := _error_of_work(arms, of_work)).sd > 0]
    if not errors:
        return NO_SHARED_ERROR
    variance = sum(error.sd**2 for error in errors)
    # The degrees of freedom of a sum of variances that are known to different degrees (Satterthwaite 1946, Biometrics
    # Bulletin 2:110).
    freedom = variance**2 / sum(error.sd**4 / error.degrees_of_freedom for error in errors)
    return SharedError(
        sd=math.sqrt(variance),
        degrees_of_freedom=max(math.floor(freedom + _ROUNDING), 1),
        most_sd=math.sqrt(sum(error.most_sd**2 for error in errors)),
    )


def _error_of_work(arms: Sequence[Sequence[TrialCost]], kinds: tuple[SpellKind, ...]) -> SharedError:
    squares, freedom = USUAL_SPREAD**2, 1
    weight = 0.0  # variance of the difference, for trials that differ by a relative spread of 1
    for arm in arms:
        pairs = [(cost, work) for cost in arm for work in cost.work if work.kinds == kinds]
        measured = [work.extra_s for _, work in pairs if work.num_measured and work.extra_s is not None]
        if not measured or fmean(measured) <= 0:
            continue
        squares += sum((extra_s / fmean(measured) - 1) ** 2 for extra_s in measured)
        freedom += len(measured) - 1
        # The share of the arm's mean cost that was not measured in the trial itself.
        assumed = sum(_share(cost, work) for cost, work in pairs if not work.num_measured) / len(arm)
        weight += assumed**2 / len(measured)
    spread = math.sqrt(squares / freedom)
    most_sd = math.sqrt(weight) * MOST_SPREAD if spread <= MOST_SPREAD else math.inf
    return SharedError(sd=math.sqrt(weight) * spread, degrees_of_freedom=freedom, most_sd=most_sd)


def _share(cost: TrialCost, work: WorkCost) -> float:
    if work.is_absent or work.per_step_s is None or not cost.step_s:
        return 0.0
    return work.per_step_s / cost.step_s
