"""What a rank says of its failure."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, Dataset

from flatout.inside.failure.failure_notes import _message


class Broken(Dataset[int]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if torch.utils.data.get_worker_info() is not None:
            raise ValueError("no workers please")
        return index


def test_what_a_loaders_worker_said_itself_is_told() -> None:
    """torch puts the worker's traceback into the message, and its own words at the end of that."""
    try:
        list(DataLoader(Broken(), num_workers=1, multiprocessing_context="fork"))
    except ValueError as error:
        told = _message(error)
    assert told == "Caught ValueError in DataLoader worker process 0: ValueError: no workers please"


def test_other_messages_are_kept_as_they_are() -> None:
    assert _message(RuntimeError("two\nlines")) == "two\nlines"
