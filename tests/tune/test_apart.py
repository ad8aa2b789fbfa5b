"""Which set replaces a bundle that was taken apart."""

from __future__ import annotations

import pytest

from flatout.records.verdict import Verdict
from flatout.tune.apart import is_as_fast


def better(speedup: float | None) -> Verdict:
    return Verdict(
        verdict="better",
        objective="step_s",
        speedup=speedup,
        mean_speedup=speedup,
        interval=None,
        best_case=None,
        error_rate=0.05,
        min_effect=0.01,
        num_pairs=2,
        num_void=0,
        void_reasons=(),
        order="AABB",
        next_analysis=None,
        reason="",
    )


@pytest.mark.parametrize(
    ("smaller", "bundle", "is_kept"),
    [
        (1.75, 1.45, True),
        (1.68, 1.75, True),  # 4 % slower: two claims cannot tell them apart
        (1.66, 1.75, False),  # 5.4 % slower
        (1.45, 1.75, False),  # noise had made a useful member look idle
        (None, 1.75, True),
    ],
)
def test_a_smaller_set_replaces_the_bundle_if_it_is_slower_by_5_percent_at_most(
    smaller: float | None, bundle: float, is_kept: bool
) -> None:
    assert is_as_fast(better(smaller), better(bundle)) == is_kept
