"""Compare the first outputs of two sizes of the batch, sample by sample: the same samples must have the same outputs.

In: the digests of a candidate and of the unchanged job. Out: a `GateResult`. The samples of a run are the rows of what
its calls returned, numbered from its first call, which the recorder does not see the end of; the runs must read the
same samples in the same order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from flatout.records.trial import OutputDigest
from flatout.trial.gates import GateResult

LEAST_SAMPLES = 8  # that both runs must have
# Kernels for another size of the batch add in another order. In fp32 a ViT-B/16 then differs by 1.1e-5 on an H200
# (`benchmarks/gpu_inference.py`); in bf16 and fp16, which keep 8 and 11 bits, a layer's output is rounded.
ROUNDED = {"bf16": 0.03, "fp16": 0.004, "fp32": 1e-4}
_Rows = Mapping[int, tuple[float, ...]]  # number of the sample in the run -> its entries
_Samples = Mapping[int, _Rows]  # place of a tensor within a call -> its samples


def check_samples(mine: Sequence[OutputDigest], base: Sequence[OutputDigest], allowed: float) -> GateResult:
    """Compare the samples that both runs have. `allowed`: the difference, relative to the size of the entries."""
    own, other = _samples(mine), _samples(base)
    shared = {place: sorted(own[place].keys() & other[place].keys()) for place in own.keys() & other.keys()}
    num_samples = min(map(len, shared.values()), default=0)
    if own.keys() != other.keys() or num_samples < LEAST_SAMPLES or not _is_alike(own, other):
        reason = (
            "it cannot be judged: its model returns too few rows that are the job's samples with another batch size"
        )
        return GateResult(is_passed=False, reason=reason)
    allowed = max(allowed, min(_rounded(rows) for rows in other.values()))
    difference = max(
        _difference(*(np.array([rows[place][number] for number in shared[place]]) for rows in (own, other)))
        for place in own
    )
    words = f"the outputs of {num_samples} samples differ by {difference:.1e} of their size"
    if difference <= allowed:
        return GateResult(is_passed=True, reason=f"{words}; {allowed:.1e} is allowed")
    return GateResult(
        is_passed=False,
        reason=f"{words}, and {allowed:.1e} is allowed: each batch size must read the same samples in the same order",
    )


def _is_alike(own: _Samples, other: _Samples) -> bool:
    """Whether the rows of each tensor have one length in both runs."""
    return all(len({len(row) for row in (*own[place].values(), *other[place].values())}) == 1 for place in own)


def _samples(outputs: Sequence[OutputDigest]) -> _Samples:
    """Return the samples of each tensor of a call, up to the first call with another number of samples."""
    rows: dict[int, dict[int, tuple[float, ...]]] = defaultdict(dict)
    sizes: dict[int, int] = {}
    place = 0
    call: int | None = None
    for output in outputs:
        place = place + 1 if output.call == call else 0
        call = output.call
        size = sizes.setdefault(place, output.shape[0] if output.shape else 0)
        if not output.shape or output.shape[0] != size:
            break
        for number, row in enumerate(output.samples):
            rows[place][call * size + number] = row
    return rows


def _difference(own: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the root mean square difference relative to the size; NaN where only one of the two is NaN."""
    is_same = (own == other) | (np.isnan(own) & np.isnan(other))
    if is_same.all():
        return 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        size = max(float(np.sqrt(np.mean(other**2))), 1e-30)
        return float(np.sqrt(np.mean((own - other) ** 2))) / size


def _rounded(rows: _Rows) -> float:
    """Return how much outputs of this type may differ: its values show the type, and whole numbers are not rounded.

    The last entry of a row is its size.
    """
    values = np.array([entry for row in rows.values() for entry in row[:-1]], dtype=np.float32)
    values = values[np.isfinite(values)]
    if (values == np.round(values)).all():
        return 0.0
    if (values.view(np.uint32) % (1 << 16) == 0).all():  # bf16 is the upper half of fp32
        return ROUNDED["bf16"]
    with np.errstate(over="ignore"):
        is_half = (values == values.astype(np.float16)).all()
    return ROUNDED["fp16" if is_half else "fp32"]
