"""What a rank says of its failure."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from flatout.inside.failure.failure_notes import FailureNotes, _message


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


def noted(folder: Path, error: BaseException) -> dict[str, Any]:
    FailureNotes(folder).note(error)
    (file,) = folder.glob("failure-*.json")
    content: dict[str, Any] = json.loads(file.read_text())
    return content


def raised(raises: Callable[[], object]) -> Exception:
    try:
        raises()
    except Exception as error:  # noqa: BLE001 - whatever it raises
        return error
    raise AssertionError


def saves_to(path: str) -> Callable[[], object]:
    def fails() -> None:
        try:
            raise OSError(28, "No space left on device", path)
        except OSError as error:
            raise RuntimeError("the checkpoint is incomplete") from error

    return fails


def test_the_chain_of_an_exception_and_the_space_that_is_left_are_noted(tmp_path: Path) -> None:
    note = noted(tmp_path, raised(saves_to(str(tmp_path / "no" / "such" / "ckpt.pt"))))
    assert note["exception"] == "RuntimeError"
    (cause,) = note["chain"]
    assert cause["exception"] == "OSError" and cause["message"].startswith("[Errno 28]")
    assert note["space"]["folder"] == str(tmp_path), "the nearest folder that exists"
    assert note["space"]["free_bytes"] > 0 and note["space"]["shm_free_bytes"] > 0


def test_the_file_that_torch_could_not_write_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "full"
    folder.mkdir()
    with pytest.MonkeyPatch.context() as patch:

        def full(*arguments: object) -> None:
            raise RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 704 vs 598")

        patch.setattr(torch.serialization, "_save", full)
        error = raised(lambda: torch.save(torch.zeros(3), folder / "ckpt.pt"))
    assert noted(tmp_path, error)["space"]["folder"] == str(folder)


def test_of_another_error_no_space_is_measured(tmp_path: Path) -> None:
    note = noted(tmp_path, ValueError("a bad batch"))
    assert note["space"] is None and note["chain"] == []


def test_a_context_that_the_script_suppressed_is_no_cause(tmp_path: Path) -> None:
    def fails() -> None:
        try:
            raise KeyError("x")
        except KeyError:
            raise ValueError("no such key") from None

    assert noted(tmp_path, raised(fails))["chain"] == []


class ProcessFailure:
    def __init__(self, pid: int, exitcode: int) -> None:
        self.pid, self.exitcode = pid, exitcode


class ChildFailedError(Exception):
    failures: ClassVar = {0: ProcessFailure(11, -15), 1: ProcessFailure(12, 3)}


class ProcessExitedException(Exception):  # noqa: N818 - as torch calls it
    error_index, error_pid, exit_code = 1, 12, -9


@pytest.mark.parametrize(
    ("error", "children"),
    [
        (ChildFailedError(), [(0, 11, -15), (1, 12, 3)]),
        (ProcessExitedException(), [(1, 12, -9)]),
    ],
)
def test_a_launcher_notes_how_its_ranks_ended_and_no_failure(
    tmp_path: Path, error: Exception, children: list[tuple[int, int, int]]
) -> None:
    FailureNotes(tmp_path).note(error)
    assert list(tmp_path.glob("failure-*")) == []
    (file,) = tmp_path.glob("children-*.json")
    report = json.loads(file.read_text())
    assert [(child["rank"], child["pid"], child["code"]) for child in report["children"]] == children
