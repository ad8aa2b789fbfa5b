"""The first line of a submission says whether anything was submitted."""

from __future__ import annotations

import pytest

from flatout.records.submission import Scheduler, Submitted
from flatout.report.submission_text import submission_text


@pytest.mark.parametrize(
    ("scheduler", "job", "dry_run", "line"),
    [
        ("slurm", "17", False, "submitted: COMMAND"),
        ("slurm", None, True, "would submit: COMMAND"),
        ("kubernetes", None, False, "written, not submitted; submit it with: COMMAND"),
        ("kubernetes", None, True, "would submit: COMMAND"),
    ],
)
def test_what_was_only_written_is_not_called_submitted(
    scheduler: Scheduler, job: str | None, dry_run: bool, line: str
) -> None:
    result = Submitted(
        scheduler=scheduler,
        job=job,
        dry_run=dry_run,
        submitted="COMMAND",
        queued="train",
        num_nodes=1,
        gpus_per_node=8,
        plan=None,
        layout=None,
        folder=None,
        files=(),
        output=None,
        exit_code_file=None,
        notes=(),
        next="NEXT",
    )
    assert submission_text(result, {}, is_wrapped=False).splitlines()[0] == line
