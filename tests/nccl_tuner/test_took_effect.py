"""A table is kept only if NCCL's log shows that it took effect. The ranks are not started: the log is written here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.nccl_tuner.fabrics import KIB, work
from tests.nccl_tuner.test_nccl_log import LOG

from flatout.nccl_tuner.table_file import parse_table
from flatout.nccl_tuner.tuning import TuningRequest, _Tuning
from flatout.records.nccl_tuning import Measurements, SizeResult, Start

SIZE = SizeResult(collective="all_reduce", num_bytes=16 * KIB, num_ranks=2, num_nodes=1, default_s=1.0, candidate="few")


class Logged(_Tuning):
    """Whatever is measured, NCCL writes the same log."""

    log: str | None = LOG

    def _measure(
        self, starts: Sequence[Start], num_turns: int, num_rounds: int, part: str, logs: Path | None = None
    ) -> Measurements:
        if logs is not None and self.log is not None:
            (logs / "nccl-host-1.log").write_text(self.log)
        return Measurements(num_nodes=(1,))


@pytest.mark.parametrize(
    ("most_channels", "log", "is_kept", "note"),
    [
        (2, LOG, True, "NCCL's log shows that the table took effect"),
        (1, LOG, False, "no table is kept, because it did not take effect: all_reduce of 16384 bytes used 2 channels"),
        (2, None, True, "NCCL wrote no log, so it is unknown whether the table took effect"),
    ],
)
def test_a_table_that_nccl_did_not_follow_is_not_kept(
    most_channels: int, log: str | None, is_kept: bool, note: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Tuning, "_plugin", lambda *_: None)
    request = TuningRequest(
        backend="nccl", transport="socket", num_ranks=2, work=work("all_reduce"), folder=tmp_path, time_s=1.0
    )
    tuning: Any = Logged(request, lambda line: None, {}, None)
    tuning.log = log
    table = parse_table(f"flatout-collective-table 1\nall_reduce 0 65536 2 * * * {most_channels}\n", "table")
    kept, _ = tuning._confirm(table, (SIZE,), "default", {})
    assert bool(kept.rows) == is_kept
    assert any(each.startswith(note) for each in tuning.notes)
