"""Print what `flatout tune jax` found: an `XlaTuning` -> text for a terminal."""

from __future__ import annotations

import shlex

from flatout.records.xla_tuning import XlaTried, XlaTuning
from flatout.report.phrases import counted
from flatout.report.terminal import TextStyle
from flatout.report.text_table import text_table
from flatout.units import seconds


def xla_tuning_text(tuning: XlaTuning, *, style: TextStyle) -> str:
    """Return what was accepted, a table of what was tried, and what the losses could not show."""
    better = [tried for tried in tuning.tried if tried.verdict == "better"]
    head = "No change is shown to be better."
    if better:
        head = "; ".join(f"{each.change.name} makes the {each.measure} {_speed(each)}" for each in better)
    facts = (
        f"JAX {tuning.jax} on {tuning.platform}: {counted(tuning.num_devices, 'device')},"
        f" {seconds(tuning.step_s)} per step, {seconds(tuning.start_s)} to start"
    )
    blocks = [style.wrapped(head), style.wrapped(facts)]
    if tuning.tried:
        header = ["change", "verdict", "speedup", "interval", "pairs", "losses", "what it does"]
        rows = [_row(tried) for tried in tuning.tried]
        blocks.append(text_table(header, rows, style=style, flexible=(6, 5)))
    blocks.append([line for note in _notes(tuning) for line in style.wrapped(note, label="- ")])
    if tuning.environment:
        blocks.append([f"export {name}={shlex.quote(value)}" for name, value in tuning.environment.items()])
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _speed(tried: XlaTried) -> str:
    assert tried.speedup is not None
    interval = f" ({tried.interval[0]:.2f} to {tried.interval[1]:.2f})" if tried.interval is not None else ""
    return f"{tried.speedup:.2f} times as fast{interval}"


def _row(tried: XlaTried) -> list[str]:
    speedup = "unknown" if tried.speedup is None else f"{tried.speedup:.2f}"
    interval = "unknown" if tried.interval is None else f"{tried.interval[0]:.2f} to {tried.interval[1]:.2f}"
    measure = "" if tried.measure == "step" else " (start)"
    what = f"{tried.change.what}: {tried.reason}" if tried.reason else tried.change.what
    pairs = str(tried.num_pairs)
    return [tried.change.name, tried.verdict, speedup + measure, interval, pairs, tried.loss_gate, what]


def _notes(tuning: XlaTuning) -> list[str]:
    notes = []
    if not tuning.has_losses:
        notes.append(
            "The script reports no loss, so the changes are only timed: whether it still trains the same is not shown."
            " Report it with flatout.callbacks.report_loss(value)."
        )
    if tuning.ended_by == "budget":
        notes.append("The budget ended before every change had all its pairs: --budget gives more.")
    notes += [f"not offered: {reason}" for reason in tuning.not_offered]
    return notes
