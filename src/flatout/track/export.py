"""Return one result with its job and machine, to write it in the format of a CI system."""

from __future__ import annotations

from pathlib import Path

import msgspec

from flatout.records.tracking import GateOutcome, TrackedResult
from flatout.track.add import AddRequest, tracked_result
from flatout.track.result_file import read_result

_OUTCOMES: dict[str | None, GateOutcome] = {"passed": "passed", "failed": "failed", "undecided": "undecided"}


class ExportedResult(msgspec.Struct, frozen=True, kw_only=True):
    result: TrackedResult
    verdict: str | None
    gate: GateOutcome | None


def exported_result(path: Path, request: AddRequest) -> ExportedResult:
    file = read_result(path)
    return ExportedResult(
        result=tracked_result(path, file, request, {}),
        verdict=file.facts.verdict,
        gate=_OUTCOMES.get(file.facts.gate),
    )
