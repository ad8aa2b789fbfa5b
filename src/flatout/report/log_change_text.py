"""Print the change from the log of one training to that of another: a `LogChange` -> text for a terminal."""

from __future__ import annotations

from flatout.records.step_series import LogChange, LogSide
from flatout.report.terminal import TextStyle
from flatout.report.text_table import text_table
from flatout.units import seconds

_BY = {"samples_per_s": "samples per second", "tokens_per_s": "tokens per second", "step_s": "the median step"}


def log_change_text(change: LogChange, *, style: TextStyle) -> str:
    """Return who is faster, a table of both logs, and what one run each cannot say."""
    low, high = change.ratio_range
    sentence = (
        f"B is {change.speedup:.2f} times as fast as A by {_BY[change.speedup_by]}, one run each. Its median step takes"
        f" {change.ratio:.3f} times as long ({low:.3f} to {high:.3f})."
    )
    header = ["", "log of", "lines", "median step", "quartiles", "mean", "samples/s"]
    rows = [_row(name, side) for name, side in (("A", change.a), ("B", change.b))]
    notes = ["The interval is of the steps of these two runs: what differs from run to run is not in it."]
    if change.has_same_work is False:
        notes.append("A step of B has another number of samples or tokens than one of A.")
    elif change.has_same_work is None:
        notes.append("Whether a step of both has the same number of samples is not in the logs.")
    blocks = [
        style.wrapped(sentence),
        text_table(header, rows, style=style, flexible=(1, 4)),
        [line for note in notes for line in style.wrapped(note)],
    ]
    return "\n\n".join("\n".join(block) for block in blocks)


def _row(name: str, side: LogSide) -> list[str]:
    quartiles = f"{seconds(side.low_step_s)} - {seconds(side.high_step_s)}"
    rate = "unknown" if side.samples_per_s is None else f"{side.samples_per_s:,.0f}"
    return [
        name,
        str(side.format),
        f"{side.num_lines:,}",
        seconds(side.step_s),
        quartiles,
        seconds(side.mean_step_s),
        rate,
    ]
