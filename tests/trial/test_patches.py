from __future__ import annotations

import json
import os
from pathlib import Path

from flatout.records.change import ChangeSet, Patch
from flatout.trial.patches import unapplied

CHANGES = ChangeSet(patches=(Patch(name="ddp"), Patch(name="dataloader")))


def line(patch: str, pid: int, applied: bool, reason: str | None = None) -> str:
    return json.dumps({"patch": patch, "pid": pid, "applied": applied, "reason": reason, "more": 1}) + "\n"


def test_a_patch_that_took_effect_in_one_process_is_applied(tmp_path: Path) -> None:
    (tmp_path / "patches-1.jsonl").write_text(line("ddp", 1, False, "no DDP here") + line("dataloader", 1, True))
    (tmp_path / "patches-2.jsonl").write_text(line("ddp", 2, True))
    assert unapplied(tmp_path, CHANGES) == ()


def test_the_last_word_of_a_process_counts(tmp_path: Path) -> None:
    (tmp_path / "patches-1.jsonl").write_text(
        line("ddp", 1, False, "not yet") + line("ddp", 1, True) + line("dataloader", 1, True)
        + line("dataloader", 1, False, "it was refused")
    )  # fmt: skip
    assert unapplied(tmp_path, CHANGES) == ("dataloader: it was refused",)


def test_a_patch_of_which_nobody_spoke_is_told(tmp_path: Path) -> None:
    assert unapplied(tmp_path, CHANGES) == (
        "ddp: no training process reported it",
        "dataloader: no training process reported it",
    )


def test_what_is_no_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "patches-1.jsonl").write_text(line("ddp", 1, True) + line("dataloader", 1, True))
    (tmp_path / "patches-2.jsonl").mkdir()
    os.mkfifo(tmp_path / "patches-3.jsonl")
    (tmp_path / "patches-4.jsonl").symlink_to("missing")
    assert unapplied(tmp_path, CHANGES) == ()


def test_a_line_that_was_cut_short_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "patches-1.jsonl").write_text(
        line("ddp", 1, True) + line("dataloader", 1, True) + '{"patch": "ddp", "pi'
    )
    assert unapplied(tmp_path, CHANGES) == ()


def test_without_patches_nothing_is_missing(tmp_path: Path) -> None:
    assert unapplied(tmp_path / "nowhere", ChangeSet()) == ()
