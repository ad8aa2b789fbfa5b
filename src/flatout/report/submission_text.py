"""A submission as text for a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flatout.records.submission import Submitted


def submission_text(result: Submitted, files: Mapping[Path, str], *, is_wrapped: bool) -> str:
    """Return the lines of a submission. `files` are shown in full if nothing was submitted.

    `is_wrapped`: the job runs under `flatout run`, which the user did not type.
    """
    lines = [f"{_verb(result)}: {result.submitted}"]
    if result.dry_run:
        for path, text in files.items():
            lines.append(f"\n{path}:\n{text.rstrip()}\n")
    layout = None
    if result.layout is not None:
        layout = f"{result.layout}, but only if the command's own arguments select it: see flatout plan --emit"
    facts = [
        ("job", result.job),
        ("command", result.queued if is_wrapped else None),
        ("layout", layout),
        ("output", result.output),
        ("exit code", result.exit_code_file),
        *(("note", note) for note in result.notes),
    ]
    lines += [f"{label}: {value}" for label, value in facts if value is not None]
    lines.append(f"next: {result.next}")
    return "\n".join(lines)


def _verb(result: Submitted) -> str:
    if result.dry_run:
        return "would submit"
    # For Kubernetes, only the manifest is written.
    return "submitted" if result.job is not None else "written, not submitted; submit it with"
