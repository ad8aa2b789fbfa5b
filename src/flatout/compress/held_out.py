"""Keep the data that search apart from those that judge.

In: an evaluation. Out: the part that may choose variants, and the part that has the final word. With another evaluation
for the end (`--eval-final`) all of the first one may choose. Otherwise every second sample is held out.
"""

from __future__ import annotations

import math

from flatout.records.compression import Evaluation

_SAME = 1e-3  # relative: results of two runs that differ by less are the same but for rounding


def search_part(evaluation: Evaluation, *, has_final: bool) -> Evaluation:
    """Return what may choose: everything if the end has other data, or if nothing can be held out."""
    if has_final or not evaluation.samples:
        return evaluation
    return _of(evaluation.samples[1::2])


def held_out_part(evaluation: Evaluation) -> Evaluation | None:
    """Return every second sample, from the first; None without results of single samples."""
    return _of(evaluation.samples[::2]) if evaluation.samples else None


def _of(samples: tuple[float, ...]) -> Evaluation:
    if not samples:
        return Evaluation(value=math.nan, num_samples=0)
    return Evaluation(value=math.fsum(samples) / len(samples), num_samples=len(samples), samples=samples)


def is_repeatable(first: Evaluation, second: Evaluation) -> bool | None:
    """Return whether two evaluations of one model give the same results in the same order; None: unknown."""
    if not first.samples or not second.samples:
        return None
    if len(first.samples) != len(second.samples):
        return False
    pairs = zip(first.samples, second.samples, strict=True)
    return all(math.isclose(one, other, rel_tol=_SAME, abs_tol=1e-9) for one, other in pairs)
