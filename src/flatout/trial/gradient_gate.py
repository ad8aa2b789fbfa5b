"""Whether a candidate's first gradients are the baseline's: those of all ranks, of all parameters, and of their size.

Losses say little while the learning rate warms up, or where a script sets no seed; the gradients themselves are right
or wrong from the first step on. Four things are looked at, of each optimizer by itself:

- ranks whose gradients agree in the baseline agree in the candidate: else not all of them are reduced;
- a parameter that has a gradient in the baseline has one in the candidate, unless it is up to chance which ones have;
- no gradient is infinite or not a number where the baseline's are finite;
- the norm of all gradients, its mean over the first steps: a band, as the losses have one, or what repeated baselines
  differ by. Where those agree, also the first step's by itself, which no update has touched.

What a script does to its gradients before the step is in all of this. Where it clips them by their norm, the norm that
they had before is held to the same bands as the one that is left, where both the job and the candidate have it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flatout.records.change import ChangeSet
from flatout.records.trial import GradientNorms, TrialResult
from flatout.trial.gates import GateResult, may_resample, step_noise
from flatout.units import percent

BAND = {"exact": 0.05, "rounding": 0.2}  # relative, of the mean over the steps
FIRST_BAND = {"exact": 0.01, "rounding": 0.1}  # of the first step, where baselines agree
REPEATABLE = 0.01  # relative: baselines that differ by no more in any step are runs of a script with a seed
# Of unseeded runs, where three may be alike by chance: half the gradient, or twice, is far beyond.
UNSEEDED_BAND = 0.25
SPREADS = 4.0
# In standard deviations of a run's mean. Of small trainings without a seed, against three others, at most three in
# a thousand were farther (benchmarks/gradient_gate.py).
MEAN_SPREADS = 5.0
BLUNT = 1.5  # a gate that lets the norm differ by a larger factor is told to see little
RANKS_AGREE = 1e-3  # relative: reduced gradients are the same to the bit, unless unlike devices took their norms
RANKS_DIFFER = 0.01  # more than that in the baseline: its ranks train, or hold, something of their own
RANK_SPREADS = 10.0
MIN_CLIPPED = 3  # steps with the same norm
CLIPPED = 1e-3
_BEFORE = " before clipping"
_Norms = Sequence[float]
_MOST_LOG = math.log(sys.float_info.max)
LOSSY_HOOKS = {"powersgd", "topk"}  # of `ddp_hook`: what they leave out of a step's gradient they add to a later one


def check_gradients(
    candidate: TrialResult,
    baselines: Sequence[TrialResult],
    changes: ChangeSet,
    *,
    others: Sequence[TrialResult] = (),
) -> GateResult:
    """The candidate's gradients against the baselines'.

    `others`: trials that repeat another job, by which it is known, too, what repeated runs differ by.
    """
    if changes.safety == "semantic":
        return GateResult(is_passed=True, reason="what is trained changes: gradients are not compared")
    groups = [[trial.gradients for trial in group if trial.gradients] for group in (baselines, others)]
    base = groups[0]
    if not base or not candidate.gradients:
        return GateResult(is_passed=True, reason="the norms of the gradients are not known: not checked")
    compared = [candidate.gradients, *base]
    found = []
    for place in range(min(map(len, compared))):
        repeated = [[of[place] for of in group if len(of) > place] for group in groups]
        where = f"optimizer {place + 1}: " if len(candidate.gradients) > 1 else ""
        mine = candidate.gradients[place]
        if _is_laid_out_otherwise(mine, repeated[0], changes):
            found.append(f"{where}it has other parameters by an argument of the script: not compared")
            continue
        is_lossy, is_resampled = _is_lossy(changes), may_resample(candidate, baselines, changes)
        refused, passed = _whole(mine, repeated, is_lossy=is_lossy, is_resampled=is_resampled), ""
        if refused is None and not is_lossy:
            refused, passed = _size(mine, repeated, changes, is_resampled=is_resampled)
        if refused is not None:
            return GateResult(is_passed=False, reason=f"{where}{refused}")
        found += [f"{where}{passed}"] if passed else []
    return GateResult(is_passed=True, reason="; ".join(found) or "gradients are compressed: their size is not compared")


def gradient_note(baselines: Sequence[TrialResult]) -> str | None:
    """What of the job's own gradients keeps changes from being held against them; None: nothing."""
    known = [trial.gradients for trial in baselines if trial.gradients]
    if not known:
        return "the job's gradients are not known: whether changes leave them as they are is not checked"
    for place in range(min(map(len, known))):
        logs = _logs([of[place].norms for of in known])
        if not logs.shape[1]:
            return (
                f"the gradients of the job's optimizer {place + 1} are not known: whether changes leave them as they"
                " are is not checked"
            )
        before = _logs([of[place].unclipped for of in known if of[place].unclipped])
        if before.shape[1]:
            logs = before
        elif logs.shape[1] >= MIN_CLIPPED and float(np.ptp(logs)) <= CLIPPED:
            return (
                f"the job's gradients have the norm {_times(logs.mean()):.4g} in each of its first steps, as clipping"
                " leaves them, and what it was before is not known: a change that scales them does not show in it"
            )
        allowed = MEAN_SPREADS * _mean_sd([logs])
        if allowed > math.log(BLUNT):
            return (
                "the norms of the gradients differ from run to run of the very same job: wrong ones show in them only"
                f" beyond a factor of {_times(allowed):.1f}; a script that sets its seeds is checked more sharply"
            )
    return None


def _whole(
    mine: GradientNorms, groups: Sequence[Sequence[GradientNorms]], *, is_lossy: bool, is_resampled: bool
) -> str | None:
    """Why something of the gradients is missing or wrong, whatever their size; None: it is not.

    `groups`: as in `_size`.
    """
    base = groups[0]
    counts = {one.num_parameters for one in base}
    if None not in {mine.num_parameters, *counts} and len(counts) == 1 and mine.num_parameters not in counts:
        return f"the optimizer has {mine.num_parameters} parameters, and {counts.pop()} in the job"
    num_steps = min(len(one.norms) for one in (mine, *base))
    for step in range(num_steps):
        if math.isinf(mine.norms[step]) and all(math.isfinite(one.norms[step]) for one in base):
            return f"the gradients of its step {step + 1} are not finite, and the job's are"
        if mine.norms[step] == 0 and all(one.norms[step] > 0 for one in base):
            return f"there are no gradients in its step {step + 1}, and in the job there are"
    usual = max((one.rank_spread for one in base if one.rank_spread is not None), default=None)
    if usual is not None and usual <= RANKS_DIFFER and mine.rank_spread is not None:
        allowed = max(RANKS_AGREE, RANK_SPREADS * usual)
        if mine.rank_spread > allowed:
            return (
                f"the norm of a parameter's gradient differs by {percent(mine.rank_spread)} between ranks, and they"
                " agree in the job: not all gradients are reduced"
            )
    lost = set(mine.without).difference(*(one.faint for one in base))
    if len(lost) > max(_num_changing(runs, is_resampled=is_resampled) for runs in groups) and not is_lossy:
        return (
            f"{len(lost)} of {mine.num_parameters} parameters get no gradient (the first of them is number"
            f" {min(lost) + 1} of the optimizer), and they do in the job"
        )
    return None


def _num_changing(runs: Sequence[GradientNorms], *, is_resampled: bool) -> int:
    """Parameters that have a gradient in each step of one run of the very same job, and not of another one.

    So are experts that a router seldom chooses, and layers that are left out by chance, in scripts without a seed: a
    run may be without others of them than those before it. Where the same ones are without in each run, as before a
    weight that begins at 0, nothing is up to chance. Where other samples may be drawn, each run is one draw: those
    count that have none in some of its steps.
    """
    if not runs:
        return 0
    absent = [set(one.absent) for one in runs]
    always = [set(one.without) for one in runs] if is_resampled else absent
    return len(absent[0].union(*absent[1:]) - always[0].intersection(*always[1:]))


def _size(
    mine: GradientNorms, groups: Sequence[Sequence[GradientNorms]], changes: ChangeSet, *, is_resampled: bool
) -> tuple[str | None, str]:
    """Why the norm is another one, or else what it is found to be.

    `groups`: runs of one job each, those of the baseline first.
    """
    norms = [[one.norms for one in group] for group in groups]
    refused, passed = _size_of("", mine.norms, norms, changes, is_resampled=is_resampled)
    unclipped = [[one.unclipped for one in group if one.unclipped] for group in groups]
    if refused is not None or not unclipped[0]:
        return refused, passed
    if not mine.unclipped:
        return None, f"{passed}; what it was before clipping is not known: not checked"
    refused, of_unclipped = _size_of(_BEFORE, mine.unclipped, unclipped, changes, is_resampled=is_resampled)
    return refused, f"{passed}; {of_unclipped}"


def _size_of(
    when: str, mine: _Norms, groups: Sequence[Sequence[_Norms]], changes: ChangeSet, *, is_resampled: bool
) -> tuple[str | None, str]:
    """Of the norms as they are used (`when`: nothing), or as they were before clipping."""
    together = _logs([mine, *groups[0]])
    num_steps = together.shape[1]
    if not num_steps:
        return None, f"the norms of the gradients{when} are not known in the same steps: not checked"
    own, base = together[0], together[1:]
    repeated = [base, *(_logs(group) for group in groups[1:])]
    repeated = [logs for logs in repeated if len(logs) > 1 and logs.shape[1]]
    deviations = [float(np.abs(logs - logs.mean(axis=0)).max()) for logs in repeated]
    is_repeatable = bool(deviations) and max(deviations) <= REPEATABLE and not is_resampled
    # A GradScaler that left out other steps than the job's has weights of fewer or more updates behind each step.
    length = min(map(len, (mine, *groups[0])))
    known = {tuple(math.isfinite(norm) for norm in one[:length]) for one in (mine, *groups[0])}
    is_repeatable = is_repeatable and len(known) == 1
    if is_repeatable and not (first := _first(when, own, base, FIRST_BAND[changes.safety]))[0]:
        return first[1], ""
    band = math.log1p(BAND[changes.safety] if is_repeatable else max(BAND[changes.safety], UNSEEDED_BAND))
    allowed = max(band, MEAN_SPREADS * _mean_sd(repeated) * (1 + 1 / len(base)) ** 0.5)
    if is_resampled:
        allowed = max(allowed, SPREADS * step_noise(base.mean(axis=0)) / num_steps**0.5)
    difference = float((own - base.mean(axis=0)).mean())
    words = (
        f"the norm of its gradients{when} is {_times(difference):.3g} times the job's, the mean over"
        f" {num_steps} step{'s' * (num_steps > 1)}, and {_times(-allowed):.3g} to {_times(allowed):.3g} is allowed"
    )
    return (words, "") if abs(difference) > allowed else (None, words)


def _first(when: str, own: NDArray[np.float64], base: NDArray[np.float64], band: float) -> tuple[bool, str]:
    """Of the first step: whether it passes, and the words if not."""
    difference = float(own[0] - base[:, 0].mean())
    allowed = max(math.log1p(band), SPREADS * float(np.abs(base[:, 0] - base[:, 0].mean()).max()))
    return abs(difference) <= allowed, (
        f"the norm of its first gradients{when} is {_times(difference):.4g} times the job's, and {_times(-allowed):.3g}"
        f" to {_times(allowed):.3g} is allowed"
    )


def _logs(norms: Sequence[_Norms]) -> NDArray[np.float64]:
    """Trials x steps, of the steps in which all are known, finite and not 0."""
    if not norms:
        return np.zeros((0, 0))
    length = min(map(len, norms))
    values = np.array([one[:length] for one in norms], dtype=np.float64)
    return np.log(values[:, (np.isfinite(values) & (values > 0)).all(axis=0)])


def _times(log: float) -> float:
    """Beyond what a number can be: infinite, as float64's norms of trainings that diverge may differ."""
    return math.exp(log) if log < _MOST_LOG else math.inf


def _mean_sd(groups: Sequence[NDArray[np.float64]]) -> float:
    """The standard deviation of a run's mean over the steps, pooled over jobs that were repeated.

    A run as a whole may have other norms (its own initial weights), each step too (its own samples): means that are
    alike by chance are no surer than what the steps differ by lets them be.
    """
    repeated = [logs for logs in groups if len(logs) > 1 and logs.shape[1]]
    degrees = sum(len(logs) - 1 for logs in repeated)
    if not degrees:
        return 0.0
    means = sum(float(((logs.mean(axis=1) - logs.mean()) ** 2).sum()) for logs in repeated) / degrees
    steps = sum(float(((logs - logs.mean(axis=0)) ** 2).mean(axis=1).sum() / logs.shape[1]) for logs in repeated)
    return math.sqrt(max(means, steps / degrees))


def _is_laid_out_otherwise(mine: GradientNorms, base: Sequence[GradientNorms], changes: ChangeSet) -> bool:
    """By an argument that the user calls safe, as one that shards by another library or in other units."""
    counts = {one.num_parameters for one in base}
    is_other = None not in {mine.num_parameters, *counts} and mine.num_parameters not in counts
    return is_other and any(change.argument is not None for change in changes.changes)


def _is_lossy(changes: ChangeSet) -> bool:
    hooks = [change.patch.parameters.get("hook") for change in changes.changes if change.patch is not None]
    return not LOSSY_HOOKS.isdisjoint(hooks)
