"""Check that the collectives of a trial returned the known results, from the file that each rank wrote at its end."""

from __future__ import annotations

from pathlib import Path

import msgspec

from flatout.input_files import decode_json, read_bytes
from flatout.inside.protocol import File
from flatout.trial.gates import GateResult


class _Check(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    wrong: tuple[str, ...]


def check_data(recording: Path, num_ranks: int) -> GateResult:
    """Fail the trial if any result is wrong.

    A rank that ended before the check is reported, but does not fail the trial.
    """
    checks = []
    for file in sorted(recording.glob(File.DATA_CHECK.glob)):
        try:
            checks.append(decode_json(read_bytes(file), type=_Check))
        except (OSError, msgspec.DecodeError):
            continue
    wrong = [f"rank {check.rank}: {problem}" for check in checks for problem in check.wrong]
    if wrong:
        return GateResult(is_passed=False, reason=f"collectives return wrong results: {wrong[0]}")
    if len(checks) < num_ranks:
        return GateResult(is_passed=True, reason=f"{len(checks)} of {num_ranks} ranks checked their collectives")
    return GateResult(is_passed=True, reason="collectives of all ranks returned the expected results")
