"""Keep what each run of a compression found as it ends, so that the same command continues after an interruption.

In: a folder and what identifies the compression. Out: a backend that answers from `runs.jsonl` what that has, and runs
the rest. What failed, and a comparison that a limit or a signal ended, are not kept as ended: they are run again, and
the comparison continues with the trials in its own journal. A line that was truncated as the process died is ignored.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal

import msgspec

from flatout import __version__
from flatout.compress.backend import (
    Benched,
    CompressionBackend,
    EvaluationRun,
    ScreeningStart,
    Sensitivity,
    Variant,
)
from flatout.errors import InputError
from flatout.input_files import decode_json, open_file
from flatout.secrets import open_private
from flatout.tune.result_folder import not_written

NAME = "runs.jsonl"
RunKind = Literal["evaluation", "final_evaluation", "preparation", "sensitivity", "screening", "benchmark"]


class _Heading(msgspec.Struct, frozen=True, kw_only=True):
    identity: str
    tool_version: str


class RecordedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run that ended, of the kind that says which of the results it has."""

    kind: RunKind
    variant: str
    batch: int | None = None
    took_s: float
    evaluated: EvaluationRun | None = None
    prepared: Variant | None = None
    sensitivity: dict[str, Sensitivity] | None = None
    start: ScreeningStart | None = None
    benched: Benched | None = None


def identity_of(*parts: object) -> str:
    """Return a digest of all that a compression must have in common with the one that it resumes."""
    return hashlib.sha256(msgspec.json.encode([__version__, *parts], order="sorted")).hexdigest()


class CompressionJournal:
    """The journal in the folder of a compression."""

    def __init__(self, folder: Path, identity: str) -> None:
        self._path, self._identity = folder / NAME, identity
        self._has_heading = False
        self._is_cut = False  # the last line has no end

    def read(self) -> tuple[RecordedRun, ...] | None:
        """Return the runs that ended; None without a journal, or if it is of another compression."""
        self._has_heading = False
        try:
            heading, *lines = self._lines()
            if decode_json(heading, _Heading).identity != self._identity:
                return None
        except (OSError, ValueError, InputError, msgspec.DecodeError):
            return None
        self._has_heading = True
        runs = (_run_in(line) for line in lines)
        return tuple(run for run in runs if run is not None)

    def _lines(self) -> list[bytes]:
        with open_file(self._path) as file:
            lines = list(file)
        self._is_cut = bool(lines) and not lines[-1].endswith(b"\n")
        return lines[:-1] if self._is_cut else lines

    def keep(self, run: RecordedRun) -> None:
        """Add a run; the first one begins the journal."""
        if not self._has_heading:
            self._write(_Heading(identity=self._identity, tool_version=__version__), "wb")
            self._has_heading, self._is_cut = True, False
        self._write(run, "ab")

    def _write(self, line: _Heading | RecordedRun, mode: str) -> None:
        try:
            with open_private(self._path, mode) as file:
                file.write(b"\n" * self._is_cut + msgspec.json.encode(line) + b"\n")
        except OSError as error:
            raise not_written(self._path, error) from error
        self._is_cut = False


def _run_in(line: bytes) -> RecordedRun | None:
    try:
        return decode_json(line, RecordedRun)
    except (InputError, msgspec.DecodeError):
        return None


class ResumedBackend:
    """A backend that runs what the journal lacks, and keeps it there."""

    def __init__(self, backend: CompressionBackend, journal: CompressionJournal) -> None:
        self._backend, self._journal = backend, journal
        self._recorded = list(journal.read() or ())
        self.num_recorded = len(self._recorded)
        self._recorded_s = 0.0  # that the recorded runs took

    def spent_s(self) -> float:
        return self._recorded_s + self._backend.spent_s()

    def evaluate(self, variant: Variant, *, is_final: bool) -> EvaluationRun:
        kind: RunKind = "final_evaluation" if is_final else "evaluation"
        recorded = self._recalled(kind, variant)
        if recorded is not None and recorded.evaluated is not None:
            return recorded.evaluated
        began_s = self._backend.spent_s()
        evaluated = self._backend.evaluate(variant, is_final=is_final)
        if evaluated.evaluation is not None:
            self._keep(kind, variant, began_s, evaluated=evaluated)
        return evaluated

    def prepared(self, variant: Variant) -> Variant:
        recorded = self._recalled("preparation", variant)
        if recorded is not None and recorded.prepared is not None:
            return recorded.prepared
        began_s = self._backend.spent_s()
        prepared = self._backend.prepared(variant)
        if prepared != variant:
            self._keep("preparation", variant, began_s, prepared=prepared)
        return prepared

    def sensitivity(self, variant: Variant) -> dict[str, Sensitivity]:
        recorded = self._recalled("sensitivity", variant)
        if recorded is not None and recorded.sensitivity is not None:
            return recorded.sensitivity
        began_s = self._backend.spent_s()
        found = self._backend.sensitivity(variant)
        if found:
            self._keep("sensitivity", variant, began_s, sensitivity=found)
        return found

    def start(self, variant: Variant, batch: int | None, budget_s: float, num_starts: int) -> ScreeningStart:
        recorded = self._recalled("screening", variant, batch)
        if recorded is not None and recorded.start is not None:
            return recorded.start
        began_s = self._backend.spent_s()
        start = self._backend.start(variant, batch, budget_s, num_starts)
        if start.trial is not None:
            self._keep("screening", variant, began_s, batch=batch, start=start)
        return start

    def bench(self, variant: Variant, batch: int | None, budget_s: float) -> Benched:
        recorded = self._recalled("benchmark", variant, batch)
        if recorded is not None and recorded.benched is not None:
            return recorded.benched
        began_s = self._backend.spent_s()
        benched = self._backend.bench(variant, batch, budget_s)
        if benched.verdict is not None and not benched.is_open:
            self._keep("benchmark", variant, began_s, batch=batch, benched=benched)
        return benched

    def _recalled(self, kind: RunKind, variant: Variant, batch: int | None = None) -> RecordedRun | None:
        """Return the first recorded run of this kind, which is used once; None if there is none."""
        for place, run in enumerate(self._recorded):
            if (run.kind, run.variant, run.batch) == (kind, variant.name, batch):
                self._recorded_s += run.took_s
                return self._recorded.pop(place)
        return None

    def _keep(self, kind: RunKind, variant: Variant, began_s: float, **results: Any) -> None:
        took_s = self._backend.spent_s() - began_s
        self._journal.keep(RecordedRun(kind=kind, variant=variant.name, took_s=took_s, **results))
