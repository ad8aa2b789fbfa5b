"""Compare the first outputs of two sizes of the batch, sample by sample: the same samples must have the same outputs.

In: the digests of a candidate and of the unchanged job. Out: a `GateResult`. The samples of a run are the rows of what
its calls returned, one call after another; the runs must read the same samples in the same order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from flatout.records.trial import OutputDigest
from flatout.trial.gates import GateResult

_Samples = Mapping[int, NDArray[np.float64]]  # place of a tensor within a call -> a row for each sample


def check_samples(mine: Sequence[OutputDigest], base: Sequence[OutputDigest], allowed: float) -> GateResult:
    """Compare the samples that both runs have. `allowed`: the difference, relative to the size of the entries."""
    own, other = _samples(mine), _samples(base)
    is_alike = own.keys() == other.keys() and all(own[place].shape[1] == other[place].shape[1] for place in own)
    if not own or not is_alike:
        reason = "it cannot be judged: its model returns no rows that are the job's samples with another batch size"
        return GateResult(is_passed=False, reason=reason)
    num_samples = min(min(len(own[place]), len(other[place])) for place in own)
    difference = max(_difference(own[place][:num_samples], other[place][:num_samples]) for place in own)
    words = f"the outputs of the first {num_samples} samples differ by {difference:.1e} of their size"
    is_passed = difference <= allowed
    if is_passed:
        return GateResult(is_passed=True, reason=f"{words}; {allowed:.1e} is allowed")
    return GateResult(
        is_passed=False,
        reason=f"{words}, and {allowed:.1e} is allowed: each batch size must read the same samples in the same order",
    )


def _samples(outputs: Sequence[OutputDigest]) -> _Samples:
    """Return the samples of each tensor of a call; {} if its rows have other lengths from call to call."""
    rows: dict[int, list[tuple[float, ...]]] = defaultdict(list)
    place = 0
    call: int | None = None
    for output in outputs:
        place = place + 1 if output.call == call else 0
        call = output.call
        rows[place] += output.samples
    widths = {place: {len(row) for row in of_place} for place, of_place in rows.items()}
    if any(len(each) != 1 for each in widths.values()):
        return {}
    return {place: np.array(of_place) for place, of_place in rows.items()}


def _difference(own: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the root mean square difference relative to the size; NaN where only one of both is no number."""
    is_same = (own == other) | (np.isnan(own) & np.isnan(other))
    if is_same.all():
        return 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        size = max(float(np.sqrt(np.mean(other**2))), 1e-30)
        return float(np.sqrt(np.mean((own - other) ** 2))) / size
