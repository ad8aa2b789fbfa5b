"""A recording as a few lines of text: the recorded data, the measurements, and those that are missing."""

from __future__ import annotations

from flatout.records.recording import Recording
from flatout.report.phrases import counted, recorded_facts


def recording_lines(recording: Recording, folder: str) -> list[str]:
    """Return the lines for a recording; `folder` is how the user knows it."""
    num_steps = max((len(rank.steps.number) for rank in recording.ranks), default=0)
    lines = [f"recorded {counted(len(recording.ranks), 'rank')}, {counted(num_steps, 'step')}, to {folder}"]
    if facts := recorded_facts(recording.measured):
        lines.append(", ".join(facts))
    for problem in recording.problems:
        where = f"rank {problem.rank}: " if problem.rank is not None else ""
        effect = f" ({problem.effect})" if problem.effect else ""
        lines.append(where + problem.problem + effect)
    return lines
