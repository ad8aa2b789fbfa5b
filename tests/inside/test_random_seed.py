"""Trials start torch's and numpy's random numbers from one seed, unless the script seeds them itself."""

# ruff: noqa: NPY002 - scripts draw from numpy's global generator
from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from flatout.inside.protocol import Variable
from flatout.inside.random_seed import draw_other_samples, seed_random_numbers, sets_own_seed


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


def test_a_loader_draws_other_samples_and_the_model_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(other: str) -> tuple[float, list[int], list[int]]:
        monkeypatch.setenv(Variable.OTHER_SAMPLES, other)
        undo = draw_other_samples()
        torch.manual_seed(3)  # the script's own seed
        weight = float(torch.rand(1))
        loader: torch.utils.data.DataLoader[int] = torch.utils.data.DataLoader(range(100), batch_size=50, shuffle=True)  # type: ignore[arg-type]
        epochs = [torch.cat(list(loader)).tolist() for _ in range(2)]
        if undo is not None:
            undo()
        return weight, *epochs

    usual, other = run(""), run("5")
    assert usual[0] == other[0]
    assert usual[1] != other[1] and usual[2] != other[2]
    assert sorted(other[1]) == list(range(100)) and other[1] != other[2]  # only the first loader's start is seeded
    assert run("5") == other


def test_with_other_samples_it_is_not_known_whether_the_script_has_a_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn(monkeypatch, "7")
    monkeypatch.setenv(Variable.OTHER_SAMPLES, "5")
    assert sets_own_seed() is None
