"""What a resume must bring back besides the weights: random state around loaders, gradients between micro-batches."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from flatout.checkpoint import Checkpointer
from flatout.checkpoint.gradients import waiting_gradients
from flatout.checkpoint.loader_random import keep_worker_random, set_worker_random_state, worker_random_state

pytestmark = pytest.mark.usefixtures("warm")


class Noisy(Dataset[torch.Tensor]):
    """Rows with noise from torch's random state, as an augmentation has it."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, row: int) -> torch.Tensor:
        return torch.full((4,), float(row)) + torch.randn(4)


class Loader(DataLoader[torch.Tensor]):
    """A loader with a position, as torchdata's: it draws from the random state each time that it makes an iterator."""

    def __init__(self, **options: Any) -> None:
        self.position = 0
        super().__init__(Noisy(), batch_size=4, **options)

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]

    def rest(self) -> Any:
        """The batches after the position, without reading those before."""
        iterator = iter(self)
        for _ in range(self.position):
            iterator._next_index()  # type: ignore[attr-defined]
        for batch in iterator:
            self.position += 1
            yield batch
        self.position = 0


def losses(folder: Path, num_steps: int, *, until: int | None = None) -> dict[int, float]:
    """Train to `num_steps` with dropout, a noisy data set, and a checkpoint at each step; stop early at `until`."""
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    loader = Loader()
    seen = {}
    with Checkpointer(folder, model=model, optimizer=optimizer, data=loader, every=1) as checkpointer:
        step = checkpointer.resume()
        while step < num_steps:
            for batch in loader.rest():
                optimizer.zero_grad()
                loss = model(batch).pow(2).mean()
                loss.backward()
                optimizer.step()
                seen[step] = loss.item()
                step += 1
                checkpointer.step(step)
                if step == until:
                    return seen
                if step == num_steps:
                    break
    return seen


@pytest.mark.parametrize("stop", [1, 4, 13], ids=["first step", "middle of an epoch", "second epoch"])
def test_making_the_iterator_again_does_not_change_a_resumed_training(tmp_path: Path, stop: int) -> None:
    whole = losses(tmp_path / "whole", 25)
    first = losses(tmp_path / "parts", 25, until=stop)
    second = losses(tmp_path / "parts", 25)
    assert min(second) == stop
    assert first | second == whole


def test_the_random_state_is_restored_after_one_iterator_only(tmp_path: Path) -> None:
    loader = Loader()
    model = torch.nn.Linear(4, 1)
    with Checkpointer(tmp_path / "ckpt", model=model, data=loader) as checkpointer:
        checkpointer.save(1, wait=True)
    saved = torch.get_rng_state()
    with Checkpointer(tmp_path / "ckpt", model=model, data=loader) as checkpointer:
        checkpointer.resume()
        torch.randn(3)
        iter(loader)
        assert torch.equal(torch.get_rng_state(), saved)
        iter(loader)
        assert not torch.equal(torch.get_rng_state(), saved)


# Workers.


def draw() -> tuple[Any, ...]:
    of_numpy = np.random.rand()  # noqa: NPY002 - whose global state is restored
    return torch.randn(3).tolist(), random.random(), of_numpy, random.gauss(0, 1)


def test_the_random_state_of_a_worker_is_restored_for_all_its_generators() -> None:
    state = worker_random_state()
    drawn = [draw() for _ in range(2)]
    set_worker_random_state(state)
    again = [draw() for _ in range(2)]
    assert drawn == again
    assert sum(len(repr(value)) for value in state.values()) < 100_000  # it is sent with every batch


class Placed(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(4))


class WithState(Noisy):
    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        pass


@pytest.mark.parametrize(
    ("dataset", "num_workers", "is_kept"),
    [(Noisy(), 2, True), (Noisy(), 0, False), (Placed(), 2, False), (WithState(), 2, False)],
    ids=["workers", "no workers", "an iterable data set", "a state already"],
)
def test_whose_random_state_becomes_the_state_of_the_data_set(dataset: Any, num_workers: int, is_kept: bool) -> None:
    loader = Loader(num_workers=num_workers)
    object.__setattr__(loader, "dataset", dataset)
    before = vars(dataset).copy()
    assert keep_worker_random(loader) is is_kept
    assert (vars(dataset) != before) is is_kept


# Micro-batches.


def accumulate(folder: Path, *, stop_after: int | None, zero: Callable[[Any], None]) -> list[torch.Tensor]:
    """Two steps of three micro-batches, with a checkpoint after each micro-batch; stop after some of them."""
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    rows = torch.randn(6, 5, 4, generator=torch.Generator().manual_seed(1))
    with Checkpointer(folder, model=model, optimizer=optimizer) as checkpointer:
        for micro_batch in range(checkpointer.resume(), 6):
            model(rows[micro_batch]).pow(2).mean().backward()
            if micro_batch % 3 == 2:
                optimizer.step()
                zero(optimizer)
            checkpointer.save(micro_batch + 1, wait=True)
            if micro_batch + 1 == stop_after:
                break
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("stop_after", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("set_to_none", [True, False], ids=["none", "zeros"])
def test_gradients_accumulated_before_a_checkpoint_are_kept(tmp_path: Path, stop_after: int, set_to_none: bool) -> None:
    def zero(optimizer: Any) -> None:
        optimizer.zero_grad(set_to_none=set_to_none)

    whole = accumulate(tmp_path / "whole", stop_after=None, zero=zero)
    accumulate(tmp_path / "parts", stop_after=stop_after, zero=zero)
    resumed = accumulate(tmp_path / "parts", stop_after=None, zero=zero)
    assert all(torch.equal(one, other) for one, other in zip(whole, resumed, strict=True))


def test_gradients_that_a_step_has_used_are_not_saved(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    with Checkpointer(tmp_path / "ckpt", model=model, optimizer=optimizer) as checkpointer:
        checkpointer.resume()
        assert waiting_gradients([optimizer], names) == {}
        for step in range(1, 4):
            model(torch.ones(4)).backward()
            assert set(waiting_gradients([optimizer], names)) == {"weight", "bias"}
            optimizer.step()
            assert waiting_gradients([optimizer], names) == {}
            checkpointer.save(step, wait=True)
            assert b'"gradients"' not in (tmp_path / "ckpt" / f"step-{step:09d}" / "rank00000.json").read_bytes()
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            assert waiting_gradients([optimizer], names) == {}


# What `wait` promises.


def test_save_with_wait_is_true_only_for_what_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flatout.checkpoint import CheckpointError
    from flatout.checkpoint import store as store_module

    write = store_module.write_file
    is_full = False

    def written(path: Path, *given: Any) -> Any:
        if is_full:
            raise OSError(28, "No space left on device")
        return write(path, *given)

    monkeypatch.setattr(store_module, "write_file", written)
    with Checkpointer(tmp_path / "ckpt", model=torch.nn.Linear(2, 2)) as checkpointer:
        checkpointer.resume()
        assert checkpointer.save(1, wait=True) is True
        is_full = True
        assert checkpointer.save(2, wait=True) is False
        assert checkpointer.last_saved == 1
        is_full = False
        assert checkpointer.save(3, wait=True) is True
        assert checkpointer.last_saved == 3
    is_full = True
    with Checkpointer(tmp_path / "other", model=torch.nn.Linear(2, 2), on_error="raise") as checkpointer:
        checkpointer.resume()
        with pytest.raises(CheckpointError, match="No space left on device"):
            checkpointer.save(1, wait=True)


def test_save_with_wait_is_false_if_one_of_two_folders_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flatout.checkpoint import store as store_module

    write = store_module.write_file
    monkeypatch.setattr(
        store_module, "write_file", lambda path, *given: write(path, *given) if "fast" in str(path) else 1 / 0
    )
    model = torch.nn.Linear(2, 2)
    with Checkpointer(tmp_path / "ckpt", model=model, local=tmp_path / "fast", shared_every=2) as checkpointer:
        checkpointer.resume()
        assert checkpointer.save(1, wait=True) is True  # due in the local folder alone
        assert checkpointer.save(2, wait=True) is False
