"""A recording as a few lines of text: what was recorded, what was measured, and what could not be."""

from __future__ import annotations

from flatout.records.recording import Measured, Recording
from flatout.report.phrases import MFU_AGAINST, counted
from flatout.units import num_bytes, percent, seconds


def recording_lines(recording: Recording, folder: str) -> list[str]:
    """Return the lines for a recording; `folder` is how the user knows it."""
    num_steps = max((len(rank.steps.number) for rank in recording.ranks), default=0)
    lines = [f"recorded {counted(len(recording.ranks), 'rank')}, {counted(num_steps, 'step')}, to {folder}"]
    if facts := _facts(recording.measured):
        lines.append(", ".join(facts))
    for problem in recording.problems:
        where = f"rank {problem.rank}: " if problem.rank is not None else ""
        effect = f" ({problem.effect})" if problem.effect else ""
        lines.append(where + problem.problem + effect)
    return lines


def _facts(measured: Measured) -> list[str]:
    facts = []
    if measured.step_s is not None:
        facts.append(f"{seconds(measured.step_s)} per step untraced")
    if measured.samples_per_s is not None:
        facts.append(f"{measured.samples_per_s:,.0f} samples/s")
    if measured.tokens_per_s is not None:
        facts.append(f"{measured.tokens_per_s:,.0f} tokens/s")
    if measured.mfu is not None:
        facts.append(f"MFU {percent(measured.mfu)}{MFU_AGAINST.get(measured.mfu_against or '', '')}")
    if measured.peak_memory_bytes is not None:
        facts.append(f"peak memory {num_bytes(measured.peak_memory_bytes)}")
    return facts
