"""Print a comparison on a terminal: the verdict, the gate, where the difference is, and how it was measured.

In: a `Comparison` and its folder. Out: a string of at most 80 columns that ends with the next command to type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from flatout import units
from flatout.records.comparison import Arm, Comparison, PartDifference, PartSource
from flatout.report.command import quoted
from flatout.report.comparison_phrases import (
    arm_text,
    calls_text,
    cause_sentence,
    environment_lines,
    gate_sentence,
    headline,
    part_label,
    power_sentence,
    signed_seconds,
    trials_sentence,
)
from flatout.report.separation import separation_sentence
from flatout.report.terminal import TextStyle
from flatout.report.text_table import text_table
from flatout.report.tuning_text import command_lines

SMALLEST_CHANGE = 0.002  # of the step: smaller changes of parts are not listed
MOST_NOTES = 20


def comparison_text(
    result: Comparison, folder: Path | str, typed: Sequence[str], *, style: TextStyle | None = None
) -> str:
    """Return the full report. `typed` is the command that is running, with its secrets masked."""
    style = style or TextStyle()
    sections = [
        _head(result, style),
        _arms(result, style),
        _where(result, style),
        environment_lines(result.environment, style),
        _training(result, style),
        _measured(result, style),
        _notes(result, style),
        ["Next:", *command_lines(next_words(result, folder, typed), style)],
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _head(result: Comparison, style: TextStyle) -> list[str]:
    text = headline(result)
    lines = [style.bold(line) for line in style.wrapped(text[0].upper() + text[1:])]
    if result.training is not None and not result.training.is_passed:
        lines += style.wrapped("B does not train as A does: see below.")
    if result.gate is not None:
        lines += [style.bold(line) for line in style.wrapped(gate_sentence(result.gate))]
    return lines


def _title(text: str, style: TextStyle) -> str:
    rule = ("─" if style.has_unicode else "-") * (style.width - len(text) - 1)
    return f"{style.bold(text)} {style.dim(rule)}"


def _arms(result: Comparison, style: TextStyle) -> list[str]:
    lines = []
    for arm in (result.a, result.b):
        where = arm_text(arm)
        command = " ".join(map(quoted, arm.command))
        lines += style.wrapped(f"{where}: {command}" if where else command, label=f"{arm.name}  ")
        lines += style.wrapped(_numbers(arm), label="   ")
    return lines


def _numbers(arm: Arm) -> str:
    facts = [f"{units.seconds(arm.step_s)} per step"] if arm.step_s is not None else []
    if arm.samples_per_step is not None:
        facts.append(f"{arm.samples_per_step:,.4g} samples per step")
    if arm.peak_memory_bytes is not None:
        facts.append(f"peak memory {units.num_bytes(arm.peak_memory_bytes)}")
    return ", ".join(facts) or "no complete trial"


def _where(result: Comparison, style: TextStyle) -> list[str]:
    if not result.parts:
        return []
    lines = [_title("Where", style), *style.wrapped(cause_sentence(result))]
    titles: dict[PartSource, str] = {
        "steps": "part of a step",
        "kinds": "kind of step",
        "profiles": "part of traced step",
    }
    for source, title in titles.items():
        lines += _part_table(result, source, title, style)
    if result.calls:
        cells = [
            [
                call.name,
                calls_text(call.a_calls),
                calls_text(call.b_calls),
                units.seconds(call.a_s),
                units.seconds(call.b_s),
            ]
            for call in result.calls
        ]
        header = ("calls per traced step", "A", "B", "time in A", "in B")
        lines += ["", *text_table(header, cells, style=style, flexible=(0,))]
    return lines


def _part_table(result: Comparison, source: PartSource, title: str, style: TextStyle) -> list[str]:
    parts = [part for part in result.parts if part.source == source]
    step_s = sum(max(part.a_s, part.b_s) for part in parts)
    shown = [part for part in parts if abs(part.change_s) >= SMALLEST_CHANGE * step_s]
    if not shown:
        return []
    rows = [_part_row(part) for part in shown]
    if len(shown) < len(parts):
        rest_s = sum(part.change_s for part in parts if part not in shown)
        rows.append(["all other parts", "", "", signed_seconds(rest_s), "", ""])
    header = [title, "A", "B", "change", "95 % interval", ""]
    has_marks = any(row[-1] for row in rows)
    if not has_marks:  # all parts are shown to differ
        header, rows = header[:-1], [row[:-1] for row in rows]
    return ["", *text_table(header, rows, style=style, flexible=(0,))]


def _part_row(part: PartDifference) -> list[str]:
    interval = "unknown"
    if part.interval_s is not None:
        low_s, high_s = part.interval_s
        interval = f"{signed_seconds(low_s)} to {signed_seconds(high_s)}"
    mark = "" if part.is_shown else "not shown"
    return [
        part_label(part.part),
        units.seconds(part.a_s),
        units.seconds(part.b_s),
        signed_seconds(part.change_s),
        interval,
        mark,
    ]


def _training(result: Comparison, style: TextStyle) -> list[str]:
    if result.training is None:
        return []
    verdict = "B trains as A does." if result.training.is_passed else "B does not train as A does."
    lines = [_title("Training", style), *style.wrapped(verdict)]
    reasons = (
        ("losses", result.training.losses),
        ("gradients", result.training.gradients),
        ("memory", result.training.memory),
    )
    for name, reason in reasons:
        lines += style.wrapped(reason, label=f"  {name:<10}")
    return lines


def _measured(result: Comparison, style: TextStyle) -> list[str]:
    lines = [_title("How this was measured", style), *style.wrapped(trials_sentence(result))]
    if result.power is not None:
        gate = result.gate.limit if result.gate is not None else None
        stated = power_sentence(result.power, gate)
        lines += style.wrapped(f"Stated before: {stated}.")
    if result.separation is not None:
        sentence = separation_sentence(result.separation)
        lines += style.wrapped(f"{sentence[0].upper()}{sentence[1:]}.")
    return lines


def _notes(result: Comparison, style: TextStyle) -> list[str]:
    notes = list(dict.fromkeys(result.notes))
    lines = [_title("Notes", style)] if notes else []
    for note in notes[:MOST_NOTES]:
        lines += style.wrapped(note, label="  ")
    if len(notes) > MOST_NOTES:
        lines.append(f"  and {len(notes) - MOST_NOTES} more, in comparison.json")
    return lines


def next_words(result: Comparison, folder: Path | str, typed: Sequence[str]) -> tuple[str, ...]:
    """Return the next command: the same one with twice the budget if that ended it, else the diff of the profiles."""
    is_open = result.gate.outcome == "undecided" if result.gate is not None else result.verdict.verdict == "undecided"
    if is_open and result.ended_by in ("time_budget", "interrupted"):
        budget = f"{max(1, math.ceil(2 * result.budget_s / 60))}m" if result.ended_by == "time_budget" else None
        return _with_options(typed, {"--out": str(folder), "--budget": budget})
    if result.a.profile is not None and result.b.profile is not None:
        return ("flatout", "diff", result.a.profile, result.b.profile)
    return ("flatout", "profile", "--", *result.b.command)


def _with_options(typed: Sequence[str], values: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return the typed command with other values of these options; None leaves an option as it is."""
    options, command = list(typed), []
    if "--" in options:
        at = options.index("--")
        options, command = options[:at], options[at:]
    for name, value in values.items():
        if value is None:
            continue
        options = _without(options, name)
        options += [name, value]
    return (*options, *command)


def _without(words: Sequence[str], option: str) -> list[str]:
    """Return the words without an option and its value."""
    kept = []
    is_value = False
    for word in words:
        if is_value:
            is_value = False
        elif word == option:
            is_value = True
        elif not word.startswith(f"{option}="):
            kept.append(word)
    return kept
