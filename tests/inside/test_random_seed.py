"""Trials start torch's and numpy's random numbers from one seed, unless the script seeds them itself."""

# ruff: noqa: NPY002 - scripts draw from numpy's global generator
from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from flatout.inside.protocol import Variable
from flatout.inside.random_seed import seed_random_numbers, sets_own_seed


@pytest.fixture(autouse=True)
def _generators_of_before() -> Iterator[None]:
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()
    yield
    torch.set_rng_state(torch_state)
    np.random.set_state(numpy_state)


def drawn(monkeypatch: pytest.MonkeyPatch, seed: str | None, rank: str | None = None) -> tuple[float, float]:
    """Return what a process draws first that starts with these variables, from whatever state."""
    torch.seed()
    np.random.seed(None)
    for name, value in ((Variable.SEED, seed), ("RANK", rank)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    seed_random_numbers()
    return float(torch.rand(1)), float(np.random.rand())


def test_two_trials_draw_the_same_numbers_and_two_ranks_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    first = drawn(monkeypatch, "7", "0")
    assert drawn(monkeypatch, "7", "0") == first
    assert drawn(monkeypatch, "7") == first
    of_torch, of_numpy = drawn(monkeypatch, "7", "1")
    assert of_torch != first[0] and of_numpy != first[1]


@pytest.mark.parametrize("seed", [None, "", "-1", "x"])
def test_without_a_seed_the_numbers_are_left_alone(monkeypatch: pytest.MonkeyPatch, seed: str | None) -> None:
    assert drawn(monkeypatch, seed) != drawn(monkeypatch, seed)
    assert sets_own_seed() is None


def test_a_script_that_seeds_torch_is_told_from_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn(monkeypatch, "7", "3")
    assert sets_own_seed() is False
    torch.manual_seed(0)
    assert sets_own_seed() is True


def test_pythons_own_random_numbers_stay_different(monkeypatch: pytest.MonkeyPatch) -> None:
    state = random.getstate()
    drawn(monkeypatch, "7")
    assert random.getstate() == state


def test_the_largest_seed_that_numpy_takes_is_not_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn(monkeypatch, str(2**32 - 1), "3")
    assert sets_own_seed() is False
