"""Add a table to the page of a run of GitHub Actions, which shows the file $GITHUB_STEP_SUMMARY."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from flatout.errors import OutputError
from flatout.records.tracking import Reported
from flatout.report.ci_formats.markdown import markdown
from flatout.secrets import open_private

VARIABLE = "GITHUB_STEP_SUMMARY"


def add_step_summary(reported: Reported, environment: Mapping[str, str] = os.environ) -> None:
    """Append the Markdown table to the file; without the variable, do nothing."""
    name = environment.get(VARIABLE)
    if not name:
        return
    try:
        with open_private(Path(name), "ab") as file:
            file.write((markdown(reported) + "\n\n").encode())
    except OSError as error:
        raise OutputError(f"`{name}`, named by {VARIABLE}, cannot be written: {error.strerror}") from error
