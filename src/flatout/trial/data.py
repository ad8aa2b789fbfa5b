"""Whether the collectives of a trial gave the known answers, as each rank wrote down at its end."""

from __future__ import annotations

from pathlib import Path

import msgspec

from flatout.inside.protocol import File
from flatout.trial.gates import GateResult


class _Check(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    wrong: tuple[str, ...]


def check_data(recording: Path, num_ranks: int) -> GateResult:
    """Failed by any wrong number; a rank without a word (it ended before the check) is said, and fails nothing."""
    found = []
    for file in sorted(recording.glob(File.DATA_CHECK.glob)):
        try:
            found.append(msgspec.json.decode(file.read_bytes(), type=_Check))
        except (OSError, msgspec.DecodeError):
            continue
    wrong = [f"rank {one.rank}: {problem}" for one in found for problem in one.wrong]
    if wrong:
        return GateResult(is_passed=False, reason=f"collectives give wrong numbers: {wrong[0]}")
    if len(found) < num_ranks:
        return GateResult(is_passed=True, reason=f"{len(found)} of {num_ranks} ranks checked their collectives")
    return GateResult(is_passed=True, reason="collectives of all ranks gave the known answers")
