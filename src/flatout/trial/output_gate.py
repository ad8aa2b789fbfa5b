"""Check that a candidate's first outputs are the baseline's, in a script that only infers.

Such a script has no loss and no gradients: its outputs are all that shows whether a change computes the same. Of a
script that repeats itself, an exact change must give the same entries up to float noise. A change that rounds may
differ within a band, and must give nearly all of the same answers (the places of the largest entries). A semantic
change has the same band: nothing else would show that half of the layers are missing. Of a script that draws other
inputs in each run, nothing can be compared, and so no gain may be claimed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flatout.change.arguments import sets_batch
from flatout.records.change import ChangeSet
from flatout.records.trial import OutputDigest, TrialResult
from flatout.trial.gates import GateResult, loss_note
from flatout.trial.gradient_gate import gradient_note
from flatout.trial.output_samples import check_samples
from flatout.units import percent

REPEATABLE = 1e-3  # relative: if outputs of baselines differ by no more, the script sets its seeds
# Relative to the size of the entries. `exact` leaves room for another order of sums, as another number of threads has.
BAND = {"exact": 1e-5, "rounding": 0.05, "semantic": 0.05}
SPREADS = 4.0
MIN_SAME_ANSWERS = {"exact": 1.0, "rounding": 0.98, "semantic": 0.98}
_UNKNOWN = "the job's model returns no tensors of plain numbers"
_SEEDS = "set the script's seeds, and read the same inputs in each run"

Outputs = Sequence[OutputDigest]


def check_model_outputs(candidate: TrialResult, baselines: Sequence[TrialResult], changes: ChangeSet) -> GateResult:
    """Compare the candidate's outputs with those of the baselines, tensor by tensor."""
    base = [trial.model_outputs for trial in baselines if trial.model_outputs]
    if not base:
        return GateResult(is_passed=True, reason="the outputs of the job are unknown: not checked")
    mine = candidate.model_outputs
    if not mine:
        return GateResult(is_passed=False, reason="its model returned nothing, but the job's did")
    if not _is_known(base[0]):
        return GateResult(is_passed=False, reason=f"it cannot be judged: {_UNKNOWN}")
    spread = _spread(base)
    if spread > REPEATABLE:
        reason = f"it cannot be judged: outputs of the unchanged job differ by {percent(spread)} between runs; {_SEEDS}"
        return GateResult(is_passed=False, reason=reason)
    allowed = max(BAND[changes.safety], SPREADS * spread)
    refusal = _other_shape(mine, base[0])
    if refusal is not None and any(sets_batch(change) for change in changes.changes):
        return check_samples(mine, base[0], allowed)
    if refusal is not None:
        return GateResult(is_passed=False, reason=refusal)
    difference = _difference(mine, base[0])
    if not difference <= allowed:  # also true of NaN
        reason = f"its outputs differ by {difference:.1e} of their size, and {allowed:.1e} is allowed"
        return GateResult(is_passed=False, reason=reason)
    same = _same_answers(mine, base[0])
    if same < MIN_SAME_ANSWERS[changes.safety]:
        return GateResult(
            is_passed=False,
            reason=f"{percent(same)} of its answers are the job's, and {percent(MIN_SAME_ANSWERS[changes.safety])}"
            " must be",
        )
    return GateResult(
        is_passed=True, reason=f"its outputs differ by {difference:.1e} of their size; {allowed:.1e} is allowed"
    )


def reference_notes(baselines: Sequence[TrialResult]) -> tuple[str, ...]:
    """Say why the job's own losses and gradients, or outputs if it only infers, are a poor reference for changes."""
    only_infers = any(trial.model_outputs for trial in baselines)
    notes = [output_note(baselines)] if only_infers else [loss_note(baselines), gradient_note(baselines)]
    notes.append(_seed_note(baselines))
    return tuple(note for note in notes if note is not None)


def _seed_note(baselines: Sequence[TrialResult]) -> str | None:
    """Say that the trials have a seed that the script lacks; None if it has its own, or this is unknown."""
    if not any(trial.sets_own_seed is False for trial in baselines):
        return None
    return (
        "the script does not seed torch: all trials, and only they, start torch's and numpy's random numbers from one"
        " seed, so that their results can be compared"
    )


def output_note(baselines: Sequence[TrialResult]) -> str | None:
    """Say why the job's outputs are a poor reference; None if they are a good one, or the job trains."""
    known = [trial.model_outputs for trial in baselines if trial.model_outputs]
    if not known:
        return None
    if not _is_known(known[0]):
        return f"{_UNKNOWN}, so no gain can be claimed"
    spread = _spread(known)
    if spread <= REPEATABLE:
        return None
    differ = f"the outputs of the unchanged job differ by {percent(spread)} between runs"
    return f"{differ}, so no gain can be claimed; {_SEEDS}"


def _is_known(outputs: Outputs) -> bool:
    return any(output.norm is not None for output in outputs)


def _spread(runs: Sequence[Outputs]) -> float:
    """Return the largest difference between the first run's outputs and another's; 1 if they have other shapes."""
    first, *others = runs
    if any(_other_shape(other, first) is not None for other in others):
        return 1.0
    differences = [_difference(other, first) for other in others]
    return max((difference if np.isfinite(difference) else 1.0 for difference in differences), default=0.0)


def _other_shape(mine: Outputs, base: Outputs) -> str | None:
    """Say how the calls' tensors differ in number or shape; calls after the shorter run's last are not compared."""
    for own, other in zip(mine, base, strict=False):
        if (own.call, own.shape) != (other.call, other.shape):
            shapes = f"a tensor of shape {own.shape}, and the job's {other.shape}"
            return f"call {own.call + 1} of its model returned {shapes}"
    return None


def _difference(mine: Outputs, base: Outputs) -> float:
    """Return the largest root mean square difference of a tensor's entries, relative to their size."""
    largest = 0.0
    for own, other in zip(mine, base, strict=False):
        entries, reference = np.array(own.entries), np.array(other.entries)
        is_same = (entries == reference) | (np.isnan(entries) & np.isnan(reference))
        if is_same.all() and own.norm == other.norm:
            continue
        with np.errstate(invalid="ignore", over="ignore"):
            size = max(float(np.sqrt(np.mean(reference**2))), 1e-30)
            off = float(np.sqrt(np.mean((entries - reference) ** 2))) / size
            off_norm = abs((own.norm or 0.0) - (other.norm or 0.0)) / max(abs(other.norm or 0.0), 1e-30)
        if not np.isfinite([off, off_norm]).all():
            return float("nan")
        largest = max(largest, off, off_norm)
    return largest


def _same_answers(mine: Outputs, base: Outputs) -> float:
    pairs = [
        (own_answer, answer)
        for own, other in zip(mine, base, strict=False)
        for own_answer, answer in zip(own.answers, other.answers, strict=False)
    ]
    return sum(own == other for own, other in pairs) / len(pairs) if pairs else 1.0
