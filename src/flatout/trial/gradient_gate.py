"""Check that a candidate's first gradients are the baseline's: on all ranks, for all parameters, and in size.

Losses show little while the learning rate warms up, or if a script sets no seed; the gradients themselves are right or
wrong in the first step. Four checks are made for each optimizer:

- ranks whose gradients agree in the baseline agree in the candidate: otherwise not all gradients are reduced;
- a parameter that has a gradient in the baseline has one in the candidate, unless this is random;
- no gradient is infinite or NaN if the baseline's are finite;
- the norm of all gradients, as a mean over the first steps, is within a band, as for the losses, or within the
  differences between repeated baselines. If the baselines agree, the first step's norm must also be in a band, because
  no update has changed it.

The norms include what a script does to its gradients before the step. If it clips them by their norm, the norm before
clipping must be within the same bands, provided that it is known for both the job and the candidate.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flatout.records.change import ChangeSet
from flatout.records.trial import GradientNorms, TrialResult
from flatout.trial.gates import GateResult, may_resample, step_noise, with_usual_samples
from flatout.units import percent

BAND = {"exact": 0.05, "rounding": 0.2}  # relative, of the mean over the steps
FIRST_BAND = {"exact": 0.01, "rounding": 0.1}  # relative, for the first step, if the baselines agree
REPEATABLE = 0.01  # relative: if baselines differ by no more than this in any step, the script sets a seed
# A wider band for unseeded runs, because three runs can be alike by chance. Half or twice the gradient is far outside
# it.
UNSEEDED_BAND = 0.25
SPREADS = 4.0
# In standard deviations of a run's mean. In small unseeded training runs, compared with three others, at most three
# runs in a thousand were further off (benchmarks/gradient_gate.py).
MEAN_SPREADS = 5.0
BLUNT = 1.5  # a note warns if the gate allows the norm to differ by a larger factor
WIDEST = 10.0  # a gate that allows a larger factor judges nothing: no training survives such gradients
RANKS_AGREE = 1e-3  # relative: reduced gradients are bitwise equal, unless different devices computed their norms
RANKS_DIFFER = 0.01  # if the ranks differ by more in the baseline, each trains or holds something different
RANK_SPREADS = 10.0
MIN_CLIPPED = 3  # number of steps with the same norm
CLIPPED = 1e-3
_BEFORE = " before clipping"
_Norms = Sequence[float]
_MOST_LOG = math.log(sys.float_info.max)
LOSSY_HOOKS = {"powersgd", "topk"}  # values of `ddp_hook` that move a part of a step's gradient to a later step


def check_gradients(
    candidate: TrialResult,
    baselines: Sequence[TrialResult],
    changes: ChangeSet,
    *,
    others: Sequence[TrialResult] = (),
) -> GateResult:
    """Compare the candidate's gradients with the baselines'.

    `others` are repeated trials of another job, which also show how much repeated runs differ.
    """
    if changes.safety == "semantic":
        return GateResult(is_passed=True, reason="the change alters what is trained: gradients are not compared")
    is_resampled = may_resample(candidate, baselines, changes)
    if not is_resampled:
        baselines, others = with_usual_samples(baselines), with_usual_samples(others)
    groups = [_known(baselines), _known(others)]
    base = groups[0]
    if not base or not candidate.gradients:
        return GateResult(is_passed=True, reason="the norms of the gradients are unknown: not checked")
    is_noise_known = any(trial.has_other_rounding for trial in (*baselines, *others))
    num_optimizers = min(map(len, (candidate.gradients, *base)))
    results = []
    for optimizer in range(num_optimizers):
        refused, passed = _check_optimizer(
            candidate.gradients[optimizer],
            [_of_optimizer(group, optimizer) for group in groups],
            changes,
            is_resampled=is_resampled,
            is_noise_known=is_noise_known,
        )
        where = f"optimizer {optimizer + 1}: " if len(candidate.gradients) > 1 else ""
        if refused is not None:
            return GateResult(is_passed=False, reason=f"{where}{refused}")
        if passed:
            results.append(f"{where}{passed}")
    reason = "; ".join(results) or "gradients are compressed: their size is not compared"
    return GateResult(is_passed=True, reason=reason)


def _check_optimizer(
    mine: GradientNorms,
    groups: Sequence[Sequence[GradientNorms]],
    changes: ChangeSet,
    *,
    is_resampled: bool,
    is_noise_known: bool,
) -> tuple[str | None, str]:
    """Say why one optimizer's gradients are refused, or otherwise how they compare ("" if only their size would)."""
    if _has_other_parameters(mine, groups[0], changes):
        return None, "an argument of the script changed its parameters: not compared"
    is_lossy = _is_lossy(changes)
    refused = _whole(mine, groups, is_lossy=is_lossy, is_resampled=is_resampled)
    if refused is not None or is_lossy:
        return refused, ""
    return _size(mine, groups, changes, is_resampled=is_resampled, is_noise_known=is_noise_known)


def _known(trials: Sequence[TrialResult]) -> list[tuple[GradientNorms, ...]]:
    """Return the gradients of each trial that reports them, by optimizer."""
    return [tuple(trial.gradients) for trial in trials if trial.gradients]


def _of_optimizer(runs: Sequence[Sequence[GradientNorms]], optimizer: int) -> list[GradientNorms]:
    """Return the gradients of one optimizer, of the runs that have it."""
    return [run[optimizer] for run in runs if len(run) > optimizer]


def gradient_note(baselines: Sequence[TrialResult]) -> str | None:
    """Say why the job's own gradients are a poor reference for changes; None if they are a good reference."""
    known = _known([trial for trial in with_usual_samples(baselines) if not trial.has_other_rounding])
    if not known:
        return "the job's gradients are unknown: whether changes alter them is not checked"
    for optimizer in range(min(map(len, known))):
        note = _note_on_optimizer(optimizer + 1, _of_optimizer(known, optimizer))
        if note is not None:
            return note
    return None


def _note_on_optimizer(number: int, runs: Sequence[GradientNorms]) -> str | None:
    logs = _logs([run.norms for run in runs])
    if not logs.shape[1]:
        return f"the gradients of the job's optimizer {number} are unknown: whether changes alter them is not checked"
    before = _logs([run.unclipped for run in runs if run.unclipped])
    if before.shape[1]:
        logs = before
    elif _is_clipped(logs):
        return (
            f"the job's gradients have the norm {_times(logs.mean()):.4g} in each of its first steps, as after"
            " clipping, and the norm before clipping is unknown: a change that scales gradients cannot be detected"
        )
    allowed = MEAN_SPREADS * _mean_sd([logs])
    if allowed * _of_a_new_run(len(logs)) > math.log(WIDEST):
        return (
            "gradient norms of the unchanged job differ so much from run to run that it cannot be judged whether a"
            " change alters them: every change is refused; set the script's seeds, and let no run read what another"
            " one wrote"
        )
    if allowed > math.log(BLUNT):
        return (
            "gradient norms of the unchanged job differ from run to run: wrong gradients are detected only above a"
            f" factor of {_times(allowed):.1f}; set the script's seeds for a sharper check"
        )
    return None


def _is_clipped(logs: NDArray[np.float64]) -> bool:
    """Whether the norms are the same in all of several steps, as after clipping."""
    return logs.shape[1] >= MIN_CLIPPED and float(np.ptp(logs)) <= CLIPPED


def _whole(
    mine: GradientNorms, groups: Sequence[Sequence[GradientNorms]], *, is_lossy: bool, is_resampled: bool
) -> str | None:
    """Say what is missing or wrong in the gradients, apart from their size; None if they are complete."""
    job = groups[0]
    return (
        _other_parameters(mine, job)
        or _not_finite_or_absent(mine, job)
        or _unreduced(mine, job)
        or (None if is_lossy else _lost(mine, groups, is_resampled=is_resampled))
    )


def _other_parameters(mine: GradientNorms, job: Sequence[GradientNorms]) -> str | None:
    """Say that the optimizer has another number of parameters, if it is known and the same in all runs of the job."""
    counts = {run.num_parameters for run in job}
    if mine.num_parameters is None or None in counts or len(counts) != 1 or mine.num_parameters in counts:
        return None
    return f"the optimizer has {mine.num_parameters} parameters, and {counts.pop()} in the job"


def _not_finite_or_absent(mine: GradientNorms, job: Sequence[GradientNorms]) -> str | None:
    """Say in which step the gradients are infinite or zero, although they are in no run of the unchanged job."""
    num_steps = min(len(run.norms) for run in (mine, *job))
    for step in range(num_steps):
        if math.isinf(mine.norms[step]) and all(math.isfinite(run.norms[step]) for run in job):
            return f"the gradients of its step {step + 1} are not finite, but those of the unchanged job are"
        if mine.norms[step] == 0 and all(run.norms[step] > 0 for run in job):
            return f"its step {step + 1} has no gradients, but the same step of the unchanged job has"
    return None


def _unreduced(mine: GradientNorms, job: Sequence[GradientNorms]) -> str | None:
    """Say how much the ranks' gradients differ, if those of the job agree."""
    usual = max((run.rank_spread for run in job if run.rank_spread is not None), default=None)
    if usual is None or usual > RANKS_DIFFER or mine.rank_spread is None:
        return None
    if mine.rank_spread <= max(RANKS_AGREE, RANK_SPREADS * usual):
        return None
    return (
        f"the norm of a parameter's gradient differs by {percent(mine.rank_spread)} between ranks, and they"
        " agree in the job: not all gradients are reduced"
    )


def _lost(mine: GradientNorms, groups: Sequence[Sequence[GradientNorms]], *, is_resampled: bool) -> str | None:
    """Say how many parameters get no gradient, if they are more than change from run to run of the job."""
    lost = set(mine.without).difference(*(run.faint for run in groups[0]))
    if len(lost) <= max(_num_changing(runs, is_resampled=is_resampled) for runs in groups):
        return None
    return (
        f"{len(lost)} of {mine.num_parameters} parameters get no gradient (the first of them is number"
        f" {min(lost) + 1} of the optimizer), but do in the unchanged job"
    )


def _num_changing(runs: Sequence[GradientNorms], *, is_resampled: bool) -> int:
    """Count parameters that have a gradient in each step of one run of the job, but not in each step of another run.

    Examples in scripts without a seed are experts that a router seldom chooses, and layers that are skipped by chance:
    the missing gradients differ by run. If the same gradients are missing in each run, e.g. those before a weight that
    starts at 0, the cause is not chance. If other samples may be drawn, each run counts as one draw, so parameters that
    lack a gradient in some of its steps are counted.
    """
    if not runs:
        return 0
    absent = [set(norms.absent) for norms in runs]
    always = [set(norms.without) for norms in runs] if is_resampled else absent
    return len(absent[0].union(*absent[1:]) - always[0].intersection(*always[1:]))


def _size(
    mine: GradientNorms,
    groups: Sequence[Sequence[GradientNorms]],
    changes: ChangeSet,
    *,
    is_resampled: bool,
    is_noise_known: bool,
) -> tuple[str | None, str]:
    """Say why the norm is rejected, or otherwise how it compares.

    Each of `groups` is one job's runs, the baseline first.
    """
    norms = [[one.norms for one in group] for group in groups]
    how = {"is_resampled": is_resampled, "is_noise_known": is_noise_known}
    refused, passed = _size_of("", mine.norms, norms, changes, **how)
    unclipped = [[one.unclipped for one in group if one.unclipped] for group in groups]
    if refused is not None or not unclipped[0]:
        return refused, passed
    if not mine.unclipped:
        return None, f"{passed}; its value before clipping is unknown: not checked"
    refused, of_unclipped = _size_of(_BEFORE, mine.unclipped, unclipped, changes, **how)
    return refused, f"{passed}; {of_unclipped}"


def _size_of(
    when: str,
    mine: _Norms,
    groups: Sequence[Sequence[_Norms]],
    changes: ChangeSet,
    *,
    is_resampled: bool,
    is_noise_known: bool,
) -> tuple[str | None, str]:
    """Compare the norms that the optimizer uses, or with `when` those before clipping; see `_size`.

    A trial that shows how far float noise carries was disturbed after the first step, so its first norm is the job's.
    """
    together = _logs([mine, *groups[0]])
    num_steps = together.shape[1]
    if not num_steps:
        return None, f"no step has known gradient norms{when} in all runs: not checked"
    own, base = together[0], together[1:]
    repeated = [logs for logs in (base, *map(_logs, groups[1:])) if len(logs) > 1 and logs.shape[1]]
    does_same_updates = not is_resampled and _updates_in_same_steps([mine, *groups[0]])
    undisturbed = [logs[:, :1] for logs in repeated] if is_noise_known else repeated
    if does_same_updates and _is_repeatable(undisturbed):
        begins_alike, first_words = _first(when, own, base, FIRST_BAND[changes.safety])
        if not begins_alike:
            return first_words, ""
    usual_band = BAND[changes.safety]
    if not does_same_updates or not _is_repeatable(repeated):
        usual_band = max(usual_band, UNSEEDED_BAND)
    allowed = _allowed(base, repeated, usual_band, is_resampled=is_resampled)
    if allowed > math.log(WIDEST):
        words = (
            f"it cannot be judged: runs of the unchanged job differ so much that {_times(allowed):.3g} times the norm"
            f" of its gradients{when} would pass; set the script's seeds, and let no run read what another one wrote"
        )
        return words, ""
    difference = float((own - base.mean(axis=0)).mean())
    words = (
        f"the norm of its gradients{when} is {_times(difference):.3g} times the job's, the mean over"
        f" {num_steps} step{'s' * (num_steps > 1)}, and {_times(-allowed):.3g} to {_times(allowed):.3g} is allowed"
    )
    is_outside = abs(difference) > allowed
    return (words, "") if is_outside else (None, words)


def _allowed(
    base: NDArray[np.float64], repeated: Sequence[NDArray[np.float64]], band: float, *, is_resampled: bool
) -> float:
    """Return by how much the mean logarithm of the norms may differ: a band, or what repeated runs differ by."""
    of_repeated_runs = MEAN_SPREADS * _mean_sd(repeated) * _of_a_new_run(len(base))
    allowed = max(math.log1p(band), of_repeated_runs)
    if not is_resampled:
        return allowed
    of_other_samples = float(SPREADS * step_noise(base.mean(axis=0)) / base.shape[1] ** 0.5)
    return max(allowed, of_other_samples)


def _updates_in_same_steps(runs: Sequence[_Norms]) -> bool:
    """Whether all runs have finite norms in the same steps.

    If a GradScaler skipped other steps than in the job, the weights at a step have had fewer or more updates.
    """
    length = min(map(len, runs))
    return len({tuple(math.isfinite(norm) for norm in one[:length]) for one in runs}) == 1


def _is_repeatable(groups: Sequence[NDArray[np.float64]]) -> bool:
    """Whether repeated runs of each job have the same norms; False if none is repeated."""
    deviations = [float(np.abs(logs - logs.mean(axis=0)).max()) for logs in groups]
    return bool(deviations) and max(deviations) <= REPEATABLE


def _of_a_new_run(num_runs: int) -> float:
    """Return how much farther a new run is from the mean of `num_runs` others than its standard deviation says."""
    return math.sqrt(1 + 1 / num_runs)


def _first(when: str, own: NDArray[np.float64], base: NDArray[np.float64], band: float) -> tuple[bool, str]:
    """Check the first step alone: return whether it passes, and the reason if it does not."""
    difference = float(own[0] - base[:, 0].mean())
    allowed = max(math.log1p(band), SPREADS * float(np.abs(base[:, 0] - base[:, 0].mean()).max()))
    return abs(difference) <= allowed, (
        f"the norm of its first gradients{when} is {_times(difference):.4g} times the job's, and {_times(-allowed):.3g}"
        f" to {_times(allowed):.3g} is allowed"
    )


def _logs(norms: Sequence[_Norms]) -> NDArray[np.float64]:
    """Return logarithms, trials x steps, for the steps in which all norms are known, finite and not 0."""
    if not norms:
        return np.zeros((0, 0))
    length = min(map(len, norms))
    values = np.array([one[:length] for one in norms], dtype=np.float64)
    return np.log(values[:, (np.isfinite(values) & (values > 0)).all(axis=0)])


def _times(log: float) -> float:
    """Return the ratio from its logarithm; infinite on overflow, which norms of diverging trainings cause."""
    return math.exp(log) if log < _MOST_LOG else math.inf


def _mean_sd(groups: Sequence[NDArray[np.float64]]) -> float:
    """Return the standard deviation of a run's mean over the steps, pooled over the repeated jobs.

    Norms differ by run (initial weights) and by step (samples). A few means may be alike by chance, so the result is
    at least what the differences between the steps imply.
    """
    repeated = [logs for logs in groups if len(logs) > 1 and logs.shape[1]]
    degrees = sum(len(logs) - 1 for logs in repeated)
    if not degrees:
        return 0.0
    means = sum(float(((logs.mean(axis=1) - logs.mean()) ** 2).sum()) for logs in repeated) / degrees
    steps = sum(float(((logs - logs.mean(axis=0)) ** 2).mean(axis=1).sum() / logs.shape[1]) for logs in repeated)
    return math.sqrt(max(means, steps / degrees))


def _has_other_parameters(mine: GradientNorms, base: Sequence[GradientNorms], changes: ChangeSet) -> bool:
    """Whether a user's argument, declared safe by the user, changed the number of parameters, e.g. by sharding."""
    counts = {one.num_parameters for one in base}
    is_other = None not in {mine.num_parameters, *counts} and mine.num_parameters not in counts
    return is_other and any(change.argument is not None for change in changes.changes)


def _is_lossy(changes: ChangeSet) -> bool:
    hooks = [change.patch.parameters.get("hook") for change in changes.changes if change.patch is not None]
    return not LOSSY_HOOKS.isdisjoint(hooks)
