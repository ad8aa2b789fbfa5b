"""A compression that is interrupted at any moment: nothing is lost, and nothing is run twice."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from tests.compress.simulated import SimulatedBackend, Truth

from flatout.compress.backend import Benched, EvaluationRun, Sensitivity, Variant
from flatout.compress.journal import NAME, CompressionJournal, ResumedBackend, identity_of
from flatout.compress.loop import CompressionFound, CompressionLoop, CompressionPlan
from flatout.errors import OutputError
from flatout.records.compression import MaxLoss
from flatout.tune.result_folder import FolderNames, SearchLimits, open_folder

PLAN = CompressionPlan(metric="accuracy", is_higher_better=True, max_loss=MaxLoss(value=0.02, is_relative=True))
TRUTHS = {
    "int8-weights": Truth(speedup=2.0, size=0.3, loss=0.2),
    "int4-weights": Truth(speedup=2.5, size=0.1, loss=0.3),
    "int8-weights without 1": Truth(speedup=1.9, size=0.3),
}
LAYERS = {name: Sensitivity(error=error, saved_bytes=1) for name, error in (("a", 0.3), ("b", 0.2), ("c", 0.1))}


class Interrupted(SimulatedBackend):
    """Ctrl-C comes at the call with this number, before it has an effect."""

    def __init__(self, truths: dict[str, Truth]) -> None:
        super().__init__(truths, sensitivities=LAYERS)
        self.num_calls, self.interrupted_at = 0, -1

    def _call(self) -> None:
        self.num_calls += 1
        if self.num_calls == self.interrupted_at:
            raise KeyboardInterrupt

    def evaluate(self, variant: Variant, *, is_final: bool) -> EvaluationRun:
        self._call()
        return super().evaluate(variant, is_final=is_final)

    def prepared(self, variant: Variant) -> Variant:
        if variant.options:
            return variant
        self._call()
        return msgspec.structs.replace(variant, options={"calibration": "ranges.json"})

    def sensitivity(self, variant: Variant) -> dict[str, Sensitivity]:
        self._call()
        return super().sensitivity(variant)

    def bench(self, variant: Variant, batch: int | None, budget_s: float) -> Benched:
        self._call()
        return super().bench(variant, batch, budget_s)


def compressed(backend: SimulatedBackend, folder: Path, identity: str = "same") -> CompressionFound:
    variants = [Variant(name=name, kind=name) for name in ("int8-weights", "int4-weights")]
    resumed = ResumedBackend(backend, CompressionJournal(folder, identity))
    return CompressionLoop(resumed, PLAN, variants, lambda line: None).run()


def test_a_compression_that_is_interrupted_at_any_call_goes_on_from_there(tmp_path: Path) -> None:
    whole = Interrupted(TRUTHS)
    (tmp_path / "whole").mkdir()
    expected = compressed(whole, tmp_path / "whole")
    assert expected.recommended == ("int8-weights without 1",)
    assert whole.num_calls > 8
    for number in range(1, whole.num_calls + 1):
        backend = Interrupted(TRUTHS)
        backend.interrupted_at = number
        folder = tmp_path / str(number)
        folder.mkdir()
        if number <= 2:
            with pytest.raises(KeyboardInterrupt):
                compressed(backend, folder)
        else:
            assert compressed(backend, folder).ended_by == "interrupted"
        assert compressed(backend, folder) == expected
        assert backend.num_calls == whole.num_calls + 1
    finished = Interrupted(TRUTHS)
    assert compressed(finished, folder) == expected
    assert finished.num_calls == 0


def test_a_journal_that_was_read_and_then_replaced_begins_anew(tmp_path: Path) -> None:
    """As with --force on the same commands."""
    backend = SimulatedBackend({"int8-weights": Truth(speedup=2.0)})
    compressed(backend, tmp_path)
    journal = CompressionJournal(tmp_path, "same")
    runs = journal.read()
    (tmp_path / NAME).write_bytes(b"")
    assert runs is not None
    assert journal.read() is None
    journal.keep(runs[0])
    assert CompressionJournal(tmp_path, "same").read() == runs[:1]


def test_the_time_of_recorded_runs_counts(tmp_path: Path) -> None:
    first = SimulatedBackend({"int8-weights": Truth(speedup=2.0, size=0.3)})
    compressed(first, tmp_path)
    again = ResumedBackend(SimulatedBackend({}), CompressionJournal(tmp_path, "same"))
    assert again.spent_s() == 0.0
    again.evaluate(Variant(name="untouched"), is_final=False)
    assert again.spent_s() == 1.0


def test_what_failed_and_what_a_limit_ended_is_run_again(tmp_path: Path) -> None:
    backend = SimulatedBackend({"int8-weights": Truth(fails=True), "int4-weights": Truth(speedup=2.0)})
    bench, is_open = backend.bench, True

    def limited(variant: Variant, batch: int | None, budget_s: float) -> Benched:
        return msgspec.structs.replace(bench(variant, batch, budget_s), is_open=is_open)

    backend.bench = limited  # type: ignore[method-assign]
    compressed(backend, tmp_path)
    backend.truths["int8-weights"] = Truth(speedup=2.0)  # the user has fixed the script
    num_benched, is_open = len(backend.benched), False
    names = {variant.name: variant.outcome for variant in compressed(backend, tmp_path).variants}
    assert set(names.values()) == {"measured"}
    assert sorted(backend.benched[num_benched:]) == [("int4-weights", None), ("int8-weights", None)]


def test_a_journal_of_other_commands_or_with_a_damaged_end_is_read_as_such(tmp_path: Path) -> None:
    backend = SimulatedBackend({"int8-weights": Truth(speedup=2.0)})
    compressed(backend, tmp_path)
    assert CompressionJournal(tmp_path, "other").read() is None
    runs = CompressionJournal(tmp_path, "same").read()
    assert runs is not None
    path = tmp_path / NAME
    content = path.read_bytes()
    path.write_bytes(content + b"no JSON\n" + content.splitlines()[-1][:-9])
    cut = CompressionJournal(tmp_path, "same")
    assert cut.read() == runs
    cut.keep(runs[0])
    assert CompressionJournal(tmp_path, "same").read() == (*runs, runs[0])
    assert identity_of("a", 1) != identity_of("a", 2)


NAMES = FolderNames(kind="search", journal="runs.jsonl", results=("result.json",), folders=("logs",))


@pytest.mark.parametrize(
    ("files", "resumes", "force", "message"),
    [
        (["logs/mine"], False, True, "already has other files"),  # without our journal the logs are the user's
        (["runs.jsonl", "mine"], True, True, "already has other files"),
        (["runs.jsonl"], False, False, "already has a result"),
        (["runs.jsonl", "result.json"], False, False, "already has a result"),
        (["runs.jsonl", "result.json", "logs/old"], True, False, None),
        (["runs.jsonl", "result.json", "logs/old"], False, True, None),
        (["result.json", "logs/old"], False, True, None),  # of a version without a journal
        ([], False, False, None),
    ],
)
def test_a_folder_loses_nothing_that_is_not_of_the_search(
    tmp_path: Path, files: Sequence[str], resumes: bool, force: bool, message: str | None
) -> None:
    folder = tmp_path / "out"
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    limits = SearchLimits(folder=folder, budget_s=1.0, force=force)
    if message is not None:
        with pytest.raises(OutputError, match=message):
            open_folder(limits, NAMES, resumes=resumes)
        assert all((folder / name).read_text() == "x" for name in files)
        return
    for _ in range(2):  # a notebook opens it again
        open_folder(limits, NAMES, resumes=resumes)
    assert (folder / "logs" / "old").exists() == resumes
    assert (folder / "runs.jsonl").read_text() == ("x" if resumes else "")


def test_an_empty_journal_marks_a_folder_of_which_nothing_can_be_lost(tmp_path: Path) -> None:
    """The command was fixed after its first run failed."""
    limits = SearchLimits(folder=tmp_path / "out", budget_s=1.0)
    open_folder(limits, NAMES, resumes=False)
    (tmp_path / "out" / "logs" / "first.log").write_text("error")
    open_folder(limits, NAMES, resumes=False)
    assert list((tmp_path / "out" / "logs").iterdir()) == []
