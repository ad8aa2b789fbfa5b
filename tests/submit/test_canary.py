"""`flatout submit --canary`: one job tries a tuning, and its ledger decides for the jobs after it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from flatout.errors import FlatoutError, InputError, UsageError
from flatout.records.submission import SCHEDULERS
from flatout.submit import KeepOptions, SubmitOptions, job_request, submit, submitted
from flatout.submit.canary import _answers, canary_of, note_canary
from flatout.submit.job import JobRequest, Prepared

TUNED = Path(__file__).parents[1] / "data" / "readers" / "tuned.toml"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tuned.toml").write_text(TUNED.read_text())
    return tmp_path


def requested(folder: Path, **options: Any) -> JobRequest:
    keep = KeepOptions(ledger=folder / "ledger.jsonl")
    return job_request(
        SubmitOptions(
            command=("python", "train.py"), config=folder / "tuned.toml", has_canary=True, keep=keep, **options
        )
    )


def queued(request: JobRequest, *, refuses: bool = False) -> str | None:
    def to_the_queue() -> str:
        if refuses:
            raise FlatoutError("the queue is full")
        return "7"

    prepared = Prepared(
        scheduler=SCHEDULERS[0],
        shown="sbatch",
        files={request.folder / "job.sh": "#!/bin/sh\n"},
        output=None,
        exit_code_file=None,
        notes=(),
        submit=to_the_queue,
        next_command=str,
    )
    job = submit(prepared, request)
    record = submitted(prepared, request, job=job, notes=(), next_command="", dry_run=False)
    assert request.canary is not None
    assert record.notes[0] == request.canary.note
    return job


def answers(path: Path, outcome: str, *, unix_s: float | None = None) -> None:
    line = {"event": "tuning_check", "unix_s": time.time() if unix_s is None else unix_s, "outcome": outcome}
    damaged = '{"event": "tuning_ch'
    with path.open("a") as file:
        file.write("\n".join([json.dumps({"event": "attempt", "unix_s": 1.0}), json.dumps(line), damaged]) + "\n")


def state(folder: Path) -> str:
    return canary_of(folder / "tuned.toml", folder / "ledger.jsonl").state


def is_changed(request: JobRequest) -> bool:
    return bool(request.tuning.config) and request.tuning.num_trials is not None


@pytest.mark.parametrize(
    ("outcome", "has_changes"),
    [("as_tuned", True), ("not_as_tuned", True), ("regression", False), ("not_compared", False)],
)
def test_the_first_job_tries_the_changes_and_its_answer_decides(folder: Path, outcome: str, has_changes: bool) -> None:
    first = requested(folder)
    assert is_changed(first)
    assert queued(first) == "7"
    second = requested(folder, out=folder / "second")
    assert state(folder) == "pending"
    assert not is_changed(second)
    assert second.tuning.keep == first.tuning.keep  # it is kept alive as asked
    queued(second)
    answers(folder / "ledger.jsonl", outcome)
    third = requested(folder, out=folder / "third")
    assert state(folder) == outcome
    assert is_changed(third) is has_changes
    queued(third)
    assert state(folder) == outcome


def test_an_answer_from_before_the_canary_is_not_its_answer(folder: Path) -> None:
    answers(folder / "ledger.jsonl", "regression", unix_s=time.time() - 60)
    queued(requested(folder))
    assert state(folder) == "pending"


def test_another_tuning_has_a_canary_of_its_own(folder: Path) -> None:
    queued(requested(folder))
    answers(folder / "ledger.jsonl", "regression")
    assert state(folder) == "regression"
    (folder / "tuned.toml").write_text((folder / "tuned.toml").read_text() + "# tuned again\n")
    assert state(folder) == "first"


def test_a_job_that_is_refused_or_only_shown_is_no_canary(folder: Path) -> None:
    with pytest.raises(FlatoutError, match="full"):
        queued(requested(folder), refuses=True)
    requested(folder)
    assert state(folder) == "first"


def test_the_ledgers_of_a_folder_are_read_and_a_damaged_note_is_one_line(folder: Path) -> None:
    ledgers = folder / "ledgers"
    ledgers.mkdir()
    note_canary(canary_of(folder / "tuned.toml", ledgers), submitted_unix_s=10.0)
    answers(ledgers / "n1.jsonl", "as_tuned", unix_s=20.0)
    assert canary_of(folder / "tuned.toml", ledgers).state == "as_tuned"
    (folder / "tuned.toml.canary.json").write_text("{")
    with pytest.raises(InputError, match="cannot be read") as error:
        state(folder)
    assert error.value.hint == "remove it to begin with a new canary"


def test_a_canary_needs_a_tuning_and_a_ledger(folder: Path) -> None:
    for config, ledger in ((None, folder / "ledger.jsonl"), (folder / "tuned.toml", None)):
        with pytest.raises(UsageError, match="needs a tuning and a ledger"):
            canary_of(config, ledger)


def test_a_ledger_whose_name_is_too_long_has_no_comparisons() -> None:
    assert list(_answers(Path("9" * 400))) == []
