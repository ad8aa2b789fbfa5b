"""Check by losses and memory that a candidate trains the same model as the baseline. A candidate that fails is unsafe.

Two runs of the same script have different losses if its kernels do not add in a fixed order, and the difference grows
with each step; a change to the order of sums has the same effect. Wrong gradients have a different effect: after the
first update, the losses differ by as much as an update changes the loss. So the difference of a candidate is compared
with the differences between repeated baselines. If these are equal, it is compared with float noise at the first
updates, and later with the spread of the losses.

Some trainings carry float noise far within a few updates, e.g. one whose learning rate lets the loss rise at first. A
trial of the job whose weights were disturbed by a rounding after the first update shows how far; see
`inside.other_rounding`. Each of the first losses is then compared with what the disturbance did up to that step, so
that the loss after one update still shows wrong gradients.

A change that rounds differently differs after the first step, and its losses drift apart slowly. It must stay in a band
around the curve: the mean over all steps and over the last quarter within 2 %, over each quarter within 4 %, or within
twelve times the difference between the means of the baselines, which counts up to 90 % of the loss. So a curve that
first falls below and then rises above the baseline's curve does not pass. Baselines whose means differ by more than a
quarter judge nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.records.change import ChangeSet
from flatout.records.trial import TrialResult
from flatout.records.tuning import TriedOutcome
from flatout.units import num_bytes, percent

FLOAT_NOISE = 2e-3  # relative, over the first updates: bf16 sums in another order differ by 4e-4 to 1e-3
NUM_FIRST = 5
MOST_LOSS = 1e100  # larger ones have no square, and count as infinite
ALL_KEPT = 512  # the recorder keeps the loss of each step up to this one: an absent loss was NaN
GRADIENT_NOISE = 0.05  # relative: the most that sums in another order change a gradient of a training that is unstable
SPREADS = 4.0
# For means: in unseeded runs of ResNet-50 on two H200 over 23 steps, a new run was up to 4.8 times as far from the mean
# of the runs before it as the farthest of them, and up to ten times as far as the farthest of the first three.
MEAN_SPREADS = 12.0
BLUNT = 0.2  # relative: a note warns if the gate allows a larger difference in the mean loss
WIDEST = 0.9  # relative: no spread of the baselines makes the gate allow more; at 1 it would pass a loss of 0
MAX_SPREAD = 0.25  # relative standard deviation of the baselines' mean losses; above it the gate judges nothing
MIN_RUNS = 2  # of which a standard deviation can be taken
_CAUSES = "set the script's seeds, and let no run read what another one wrote"
NUM_WINDOWS = 4  # quarters of the steps; windows for the loss curve of a change that rounds
WINDOW_BAND = 0.04  # relative, for the mean over each window
LEAST_SIZE = 0.1  # relative to the mean loss over all steps; a smaller loss of a window counts as this much
BAND = {
    "exact": 0.005,
    "rounding": 0.02,
    "semantic": 1.0,
}  # relative, for the mean over all steps; for rounding, also over the last quarter
ROUNDING_BAND = (
    "a change of class rounding is refused if its mean loss is outside a band around the baseline's: "
    f"{percent(BAND['rounding'])}"
    f" over all steps and over the last quarter, {percent(WINDOW_BAND)} over each quarter, or {MEAN_SPREADS:.0f} times"
    " the difference between the means of repeated baseline runs"
)
MAX_MORE_MEMORY = 0.10
RESAMPLES = {"dataloader"}  # families that may make a script's random augmentation draw different samples


class GateResult(msgspec.Struct, frozen=True, kw_only=True):
    is_passed: bool
    reason: str
    outcome: TriedOutcome = "unsafe"  # of a candidate that does not pass
    # It began as the baseline did, and no trial has shown yet how far float noise carries: that may be all there is.
    may_be_noise: bool = False


def check_losses(candidate: TrialResult, baselines: Sequence[TrialResult], changes: ChangeSet) -> GateResult:
    """Compare the losses of the candidate with those of the baselines, step by step from the first."""
    is_resampled = may_resample(candidate, baselines, changes)
    if not is_resampled:
        baselines = with_usual_samples(baselines)
    # The recorder cannot know the first step's loss of a job that accumulates gradients.
    start = _num_unknown_first(baselines)
    runs = _runs(baselines, start)
    mine = _known(candidate, start)
    incomparable = _without_losses(mine, [run.losses for run in runs], start=start, num_candidate=len(candidate.losses))
    if incomparable is not None:
        return incomparable
    length = min(mine.size, *(run.losses.size for run in runs))
    compared = _Comparison(
        mine=mine[:length],
        together=np.array([run.losses[:length] for run in runs]),
        trials=[run.trial for run in runs],
        changes=changes,
        is_resampled=is_resampled,
    )
    for check in (_infinite_or_equal, _without_judgement):
        result = check(compared)
        if result is not None:
            return result
    refusal = None
    if changes.safety == "exact" and not is_resampled:
        refusal = _first_losses(mine[:length], compared.together, start, is_noise_known=compared.is_noise_known)
    gate = refusal or _mean_losses(mine[:length], compared.together, changes, is_resampled=is_resampled)
    return msgspec.structs.replace(gate, may_be_noise=not gate.is_passed and _may_be_noise(compared))


class _Comparison(NamedTuple):
    """The losses of the candidate and of the job's trials, in the steps that all of them have."""

    mine: NDArray[np.float64]
    together: NDArray[np.float64]  # trials x steps
    trials: Sequence[TrialResult]
    changes: ChangeSet
    is_resampled: bool

    @property
    def is_noise_known(self) -> bool:
        return any(trial.has_other_rounding for trial in self.trials)


def _infinite_or_equal(compared: _Comparison) -> GateResult | None:
    """Judge losses that need no comparison of their sizes; None if they do."""
    if not np.isfinite(compared.together).all():
        return GateResult(is_passed=True, reason="the baseline's own loss is not finite: not checked")
    if not np.isfinite(compared.mine).all():
        return GateResult(is_passed=False, reason="its loss is not finite, but the baseline's is")
    if any(np.array_equal(compared.mine, losses) for losses in compared.together):
        return GateResult(is_passed=True, reason=f"the losses of {compared.mine.size} steps are bitwise the same")
    return None


def _without_judgement(compared: _Comparison) -> GateResult | None:
    """Refuse a candidate if the job's own losses differ so much that they judge nothing; None if they do not."""
    # Other samples may change the losses by any amount, which the last check allows for.
    has_usual_samples = [not trial.has_other_samples for trial in compared.trials]
    spread = _spread(compared.together[has_usual_samples])
    if spread <= MAX_SPREAD:
        return None
    return GateResult(is_passed=False, reason=_not_judged(spread, is_noise_known=compared.is_noise_known))


def _may_be_noise(compared: _Comparison) -> bool:
    """Whether a refused candidate began as the job did, and no trial has shown yet how far float noise carries."""
    is_excluded = compared.is_resampled or compared.is_noise_known or compared.changes.safety == "semantic"
    if is_excluded:
        return False
    first = float(compared.together[0][0])
    return bool(abs(compared.mine[0] - first) <= FLOAT_NOISE * abs(first))


class _Run(NamedTuple):
    """A trial of the job, and its known losses."""

    trial: TrialResult
    losses: NDArray[np.float64]


def _runs(baselines: Sequence[TrialResult], start: int) -> list[_Run]:
    """Return the trials with known losses, without those that diverged only because their weights were disturbed.

    Such a trial must not make the losses of a candidate pass unchecked.
    """
    known = [_Run(trial, losses) for trial in baselines if (losses := _known(trial, start)).size]
    return [run for run in known if not run.trial.has_other_rounding or _is_finite(run, start)]


def _is_finite(run: _Run, start: int) -> bool:
    has_all = run.losses.size == len(run.trial.losses) - start
    return has_all and bool(np.isfinite(run.losses).all())


def _not_judged(spread: float, *, is_noise_known: bool) -> str:
    if is_noise_known:
        return f"it cannot be judged: float noise alone changes the mean loss of the job by {percent(spread)}"
    differ = f"mean losses of the unchanged job differ by {percent(spread)} between runs"
    return f"it cannot be judged: {differ}; {_CAUSES}"


def _without_losses(
    mine: NDArray[np.float64], base: Sequence[NDArray[np.float64]], *, start: int, num_candidate: int
) -> GateResult | None:
    """Judge a candidate if losses are missing that a comparison needs; None if they are not."""
    if not base:
        return GateResult(is_passed=True, reason="the job's loss is unknown or not a number: not checked")
    if not mine.size:
        return GateResult(is_passed=False, reason="the candidate reports no loss, but the baseline does")
    if mine.size < min(num_candidate - start, ALL_KEPT - start, *(losses.size for losses in base)):
        reason = f"the loss of its step {start + mine.size + 1} is not a number, but the baseline's is"
        return GateResult(is_passed=False, reason=reason)
    return None


def _first_losses(
    mine: NDArray[np.float64], together: NDArray[np.float64], start: int, *, is_noise_known: bool
) -> GateResult | None:
    """Refuse first losses that float noise does not explain; None if it does."""
    mean = together.mean(axis=0)
    size = max(float(np.abs(mean[:NUM_FIRST]).mean()), 1e-12)  # losses can fall fast
    differences = np.abs(mine - mean)[:NUM_FIRST] / size
    spread = np.abs(together - mean).max(axis=0) / size
    if is_noise_known:
        allowed = _carried_noise(mean / size, spread)
        worst = int(np.argmax(differences / allowed))
        where = f"the loss of step {start + worst + 1} differs"
    else:
        allowed = np.full_like(differences, max(FLOAT_NOISE, SPREADS * float(spread[:NUM_FIRST].max())))
        worst = int(np.argmax(differences))
        where = f"the first {min(NUM_FIRST, len(mine))} losses differ"
    first, most = float(differences[worst]), float(allowed[worst])
    if first <= most:
        return None
    reason = f"{where} by {first:.1e} of their size, but float noise explains at most {most:.1e}"
    return GateResult(is_passed=False, reason=reason)


def _carried_noise(mean: NDArray[np.float64], spread: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return by how much noise may change each of the first losses, where a disturbed trial shows how far it carries.

    Where the first update makes the loss rise, the noise of its gradient changes that loss by a small part of the rise;
    a wrong gradient changes it by more. For later losses the disturbance shows it, which came one update later.
    """
    carried = np.maximum.accumulate(spread[: NUM_FIRST + 1])
    allowed = np.maximum(FLOAT_NOISE, MEAN_SPREADS * np.append(carried[1:], carried[-1]))[: min(NUM_FIRST, len(mean))]
    allowed[:2] = FLOAT_NOISE
    allowed[1:2] = np.maximum(FLOAT_NOISE, GRADIENT_NOISE * np.diff(mean[:2]))
    return allowed


def _mean_losses(
    mine: NDArray[np.float64], together: NDArray[np.float64], changes: ChangeSet, *, is_resampled: bool
) -> GateResult:
    """Compare the mean losses over all steps, and of a change that rounds also over each quarter of them."""
    length = len(mine)
    parts = [(f"of {length} steps", slice(None), BAND[changes.safety])]
    if changes.safety == "rounding":
        parts += _windows(length)
    passed = []
    for where, part, band in parts:
        difference, allowed = _difference(mine, together, part, band, is_resampled=is_resampled)
        if difference > allowed:
            return GateResult(
                is_passed=False,
                reason=f"the mean loss {where} differs by {percent(difference)}, and {percent(allowed)} is allowed",
            )
        passed.append(f"{where} differs by {difference:.1e}; {allowed:.1e} is allowed")
    # Only the last quarter is reported: it has the narrowest band.
    return GateResult(is_passed=True, reason="the mean loss " + ", ".join(dict.fromkeys((passed[0], passed[-1]))))


def _spread(together: NDArray[np.float64]) -> float:
    """Return the standard deviation of the runs' mean losses, relative to the mean loss; 0 for a single run."""
    means = together.mean(axis=1)
    if len(means) < MIN_RUNS:
        return 0.0
    return float(means.std(ddof=1)) / max(float(np.abs(together.mean(axis=0)).mean()), 1e-12)


def _windows(length: int) -> list[tuple[str, slice, float]]:
    """Return the quarters of the steps, each with its band; the last quarter shows the result of training."""
    if length < NUM_WINDOWS:
        return []
    edges = [length * edge // NUM_WINDOWS for edge in range(NUM_WINDOWS + 1)]
    bands = [WINDOW_BAND] * (NUM_WINDOWS - 1) + [BAND["rounding"]]
    return [
        (f"of steps {low + 1} to {high}", slice(low, high), band)
        for low, high, band in zip(edges, edges[1:], bands, strict=False)
    ]


def _difference(
    mine: NDArray[np.float64], together: NDArray[np.float64], part: slice, band: float, *, is_resampled: bool
) -> tuple[float, float]:
    """Return the relative difference of a part's mean loss from the baselines', and the difference that is allowed."""
    mean = together.mean(axis=0)
    # Losses close to 0 in this part are mostly rounding errors.
    size = max(float(np.abs(mean[part]).mean()), LEAST_SIZE * float(np.abs(mean).mean()), 1e-12)
    difference = float(abs((mine - mean)[part].mean())) / size
    # Means are compared with means: single losses of a script without a seed differ by far more, and would hide a
    # training that makes no progress.
    means = together[:, part].mean(axis=1)
    farthest = float(np.abs(means - means.mean()).max()) / size
    # A few means may be alike by chance: their spread is at least what losses that differ from run to run imply.
    sd = float(((together - mean) ** 2).sum() / max((len(together) - 1) * len(mean), 1)) ** 0.5
    own_spread = max(MEAN_SPREADS * farthest, SPREADS * sd / size / len(mine[part]) ** 0.5)
    noise = step_noise(mean) / size / len(mine[part]) ** 0.5
    widened = max(own_spread, SPREADS * noise if is_resampled else 0.0)
    return difference, max(band, min(widened, WIDEST))


def check_memory(candidate: TrialResult, baselines: Sequence[TrialResult]) -> GateResult:
    before = [trial.peak_memory_bytes for trial in baselines if trial.peak_memory_bytes]
    after = candidate.peak_memory_bytes
    if not before or not after:
        return GateResult(is_passed=True, reason="peak memory is unknown: not checked")
    words = f"peak memory {num_bytes(after)}, baseline {num_bytes(max(before))}"
    return GateResult(is_passed=after <= (1 + MAX_MORE_MEMORY) * max(before), reason=words)


def with_usual_samples(baselines: Sequence[TrialResult]) -> list[TrialResult]:
    """Return the baselines with the samples that candidates draw, unless these change the loader."""
    return [trial for trial in baselines if not trial.has_other_samples]


def loss_note(baselines: Sequence[TrialResult]) -> str | None:
    """Say why the job's own losses are a poor reference for changes; None if they are a good reference."""
    baselines = [trial for trial in with_usual_samples(baselines) if not trial.has_other_rounding]
    start = _num_unknown_first(baselines)
    known = [_known(trial, start) for trial in baselines]
    if not any(losses.size for losses in known):
        return (
            "the job's loss is unknown, or not a number from its first step: it does not show whether changes train the"
            " same"
        )
    ends = [
        start + losses.size + 1
        for losses, trial in zip(known, baselines, strict=True)
        if losses.size < min(len(trial.losses), ALL_KEPT) - start
    ]
    ends += [start + int(np.flatnonzero(np.isinf(losses))[0]) + 1 for losses in known if np.isinf(losses).any()]
    if not ends:
        return _spread_note(known)
    return f"the job's own loss is not finite at step {min(ends)} and after: how changes affect it is not checked there"


def _spread_note(known: Sequence[NDArray[np.float64]]) -> str | None:
    """Say that runs of the unchanged job differ so much that the gate detects little; None if they do not."""
    length = min(losses.size for losses in known)
    if not length:
        return None
    together = np.array([losses[:length] for losses in known])
    size = max(float(np.abs(together.mean(axis=0)).mean()), 1e-12)
    spread = float(np.abs(together.mean(axis=1) - together.mean()).max()) / size
    if MEAN_SPREADS * spread <= BLUNT:
        return None
    if _spread(together) > MAX_SPREAD:
        return (
            f"mean losses of the unchanged job differ by {percent(spread)} between runs: it cannot be judged whether a"
            f" change alters the training, so every change that alters a loss is refused; {_CAUSES}"
        )
    return (
        f"mean losses of the unchanged job differ by {percent(spread)} between runs: a change that alters the"
        f" training is detected only above {percent(min(MEAN_SPREADS * spread, WIDEST))}; set the script's seeds for a"
        " sharper check"
    )


def _num_unknown_first(baselines: Sequence[TrialResult]) -> int:
    """Return the number of steps at the start whose loss a baseline lacks, though it has later ones."""
    num_unknown = []
    for trial in baselines:
        known_steps = np.flatnonzero(~np.isnan(np.asarray(trial.losses, dtype=np.float64)))
        if len(known_steps):
            num_unknown.append(int(known_steps[0]))
    return max(num_unknown, default=0)


def _known(trial: TrialResult, start: int) -> NDArray[np.float64]:
    """Return the losses from that step (counted from 0) up to the first unknown loss; infinity for those beyond use."""
    losses = np.asarray(trial.losses[start:], dtype=np.float64)
    losses = np.where(np.abs(losses) > MOST_LOSS, np.copysign(np.inf, losses), losses)
    unknown = np.flatnonzero(np.isnan(losses))
    return losses[: int(unknown[0])] if len(unknown) else losses


def may_resample(candidate: TrialResult, baselines: Sequence[TrialResult], changes: ChangeSet) -> bool:
    """Whether the script's random augmentation may draw different samples from those in the baselines."""
    return any(change.family in RESAMPLES for change in changes.changes) or has_other_workers(candidate, baselines)


def has_other_workers(candidate: TrialResult, baselines: Sequence[TrialResult]) -> bool:
    """Whether the number of loader workers, and so their seeds, differs, even if set by a script argument."""
    before = {trial.loader_workers for trial in baselines}
    return candidate.loader_workers is not None and None not in before and candidate.loader_workers not in before


def step_noise(losses: NDArray[np.float64]) -> float:
    """Estimate the spread of losses from batch to batch by differences between neighbours, which remove any trend."""
    return float(np.diff(losses).std() / 2**0.5) if len(losses) > 2 else 0.0
