"""Batches by length are offered where the recording shows that lengths differ, and nowhere else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.change.jobs import facts

from flatout.change.batches import changes
from flatout.change.catalogue import unmet_needs
from flatout.profile.read_facts import _batch_tokens, _length_spread


def offered(**values: Any) -> list[str]:
    job = facts(**values)
    return [change.name for change in changes(job) if not unmet_needs(change, job)]


@pytest.mark.parametrize(("spread", "is_offered"), [(None, False), (0.049, False), (0.05, True)])
def test_lengths_must_be_known_to_differ(spread: float | None, is_offered: bool) -> None:
    names = ["batches-by-length", "batches-by-tokens=4096"]
    assert offered(loader_length_spread=spread, loader_batch_tokens=4096) == (names if is_offered else [])


def test_an_iterable_data_set_and_an_unknown_number_of_tokens() -> None:
    assert offered(loader_length_spread=0.3, loader_is_iterable=True, loader_batch_tokens=4096) == []
    assert offered(loader_length_spread=0.3) == ["batches-by-length"]


def recording(lengths: list[float], *, samples: float = 4.0, passes: int = 1) -> Any:
    """One rank with so many steps of `samples` samples, padded to these lengths."""
    steps = SimpleNamespace(
        is_ordinary=np.array([True] * len(lengths)),
        num_samples=np.array([samples] * len(lengths)),
        num_tokens=np.array(lengths) * samples,
        num_backward=np.array([passes] * len(lengths)),
    )
    return SimpleNamespace(ranks=[SimpleNamespace(steps=steps)])


@pytest.mark.parametrize(("num_steps", "spread"), [(7, None), (8, 0.25)])
def test_the_spread_of_the_padded_length_needs_eight_steps(num_steps: int, spread: float | None) -> None:
    """Lengths of 60 and 100 by turns have a mean of 80 and a deviation of 20."""
    lengths = [60.0, 100.0] * 4
    assert _length_spread(recording(lengths[:num_steps])) == spread


def test_the_tokens_of_a_batch_are_those_of_one_pass_with_padding() -> None:
    assert _batch_tokens(recording([60.0, 100.0] * 4)) == 320
    assert _batch_tokens(recording([60.0, 100.0] * 4, passes=4)) == 80
    assert _batch_tokens(recording([np.nan] * 8)) is None
    assert _length_spread(recording([np.nan] * 8)) is None
