"""Print a tuning on a terminal: accepted changes, rejected ones and why, and how they were measured, in 80 columns.

In: a `TuneResult` and the tuning's folder. Out: a string that ends with the next command to type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from flatout import units
from flatout.records.tuning import ALL_BUT_COMPUTATION, TriedSet, TuneResult
from flatout.records.verdict import Verdict
from flatout.report.command import quoted
from flatout.report.terminal import TextStyle
from flatout.report.text_table import text_table
from flatout.report.tuning_bounds import above_bound_sentences, besides_computation, bound_name
from flatout.report.tuning_errors import error_sentence
from flatout.report.tuning_next import next_reason, next_words
from flatout.report.tuning_phrases import (
    Quantity,
    all_notes,
    compared_quantity,
    end_sentence,
    facts,
    final_sentences,
    headline,
    is_better,
    noise_sentence,
    step_parts,
    why,
)
from flatout.report.tuning_ratios import (
    UNKNOWN,
    has_predictions,
    measured_text,
    predicted_estimate,
    predicted_text,
    ratio,
)
from flatout.report.tuning_rows import OUTCOME_ORDER, adopted_rows, not_adopted, not_shown_sentence

MOST_TRIED = 16
MOST_NOTES = 20


def tuning_text(result: TuneResult, folder: Path | str, *, style: TextStyle | None = None) -> str:
    """Return the full report. `folder` is the tuning's `--out`, which contains tuned.toml."""
    style = style or TextStyle()
    sections = [
        _head(result, style),
        _adopted(result, style),
        _tried(result, style),
        _bounds(result, style),
        _measured(result, style),
        _notes(result, style),
        _next(result, folder, style),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _head(result: TuneResult, style: TextStyle) -> list[str]:
    separator = " · " if style.has_unicode else ", "
    text = headline(result)
    lines = [style.bold(line) for line in style.wrapped(text[0].upper() + text[1:])]
    return lines + style.wrapped(separator.join(facts(result)))


def _title(text: str, style: TextStyle) -> str:
    rule = ("─" if style.has_unicode else "-") * (style.width - len(text) - 1)
    return f"{style.bold(text)} {style.dim(rule)}"


def _adopted(result: TuneResult, style: TextStyle) -> list[str]:
    rows = adopted_rows(result)
    if not rows:
        return []
    title = "Accepted changes" if is_better(result) else "Better in repeated trials"
    cells = [
        [
            row.name,
            row.safety,
            predicted_text(row.prediction, row.bound, result.objective),
            measured_text(row.verdict),
        ]
        for row in rows
    ]
    cells.append(["all, against the baseline", "", "", _final_text(result.tuning.verdict)])
    header = ("change", "safety", "predicted", "measured (interval)")
    lines = [_title(title, style), *text_table(header, cells, style=style, flexible=(0,))]
    if any(len(row.changes) > 1 for row in rows):
        lines += style.wrapped("Changes joined by + were measured only together.")
    if unknown := not_shown_sentence(rows):
        lines += style.wrapped(unknown)
    if len(rows) > 1:
        lines += style.wrapped("Each row is measured against the rows above it: the ratios multiply, roughly.")
    return lines


def _final_text(verdict: Verdict | None) -> str:
    return "not measured" if verdict is None else measured_text(verdict)


def _why(one: TriedSet, result: TuneResult) -> str:
    """Return why a change was not accepted, with the prediction; its interval is in tuning.json and the HTML page."""
    is_measured = one.screened is not None or (one.verdict is not None and one.verdict.speedup is not None)
    if one.prediction is None or not is_measured or one.outcome == "unsafe" or not has_predictions(result):
        return why(one)
    return f"{why(one)}; predicted {predicted_estimate(one.prediction).value}"


def _tried(result: TuneResult, style: TextStyle) -> list[str]:
    left = not_adopted(result)
    if not left:
        return [] if result.tried else [_title("Tried", style), "No change was tried."]
    cells = [[one.name, one.safety, one.outcome, _why(one, result)] for one in left[:MOST_TRIED]]
    lines = [_title("Tried but not adopted", style)]
    lines += text_table(("change", "safety", "outcome", "why"), cells, style=style, flexible=(0, 3))
    rest = Counter(one.outcome for one in left[MOST_TRIED:])
    if rest:
        words = ", ".join(f"{rest[name]} {name}" for name in OUTCOME_ORDER if rest[name])
        lines += style.wrapped(f"and {sum(rest.values())} more, in tuning.json: {words}")
    return lines


def _bounds(result: TuneResult, style: TextStyle) -> list[str]:
    lines = [_title("Maximum speedup from fixing each finding", style)]
    if not result.bounds:
        return lines + style.wrapped("Unknown: the baseline has no finding that gives a bound.")
    cells = [[bound_name(bound), ratio(bound.speedup)] for bound in result.bounds]
    lines += text_table(("finding", "speedup of a step, at most"), cells, style=style, flexible=(0,))
    if result.bounds[0].finding == ALL_BUT_COMPUTATION:
        limit = besides_computation(result) or "a change that leaves the computation as it is brings at most this"
        lines += style.wrapped(f"Nothing was found: {limit}.")
    for sentence in above_bound_sentences(result):
        lines += style.wrapped(sentence)
    return lines


def _measured(result: TuneResult, style: TextStyle) -> list[str]:
    lines = [_title("How this was measured", style)]
    verdict = result.tuning.verdict
    if verdict is not None:
        lines += style.wrapped(" ".join(final_sentences(verdict)))
    lines += style.wrapped(noise_sentence(result))
    lines += style.wrapped(error_sentence(result))
    costs = " ".join((_costs(result), *step_parts(result))).strip()
    if costs:
        lines += style.wrapped(costs)
    return lines + style.wrapped(end_sentence(result))


def _costs(result: TuneResult) -> str:
    """Return the costs of a step and of memory that the headline does not show."""
    costs: tuple[tuple[Quantity, str, str, str], ...] = (
        ("step", "A step", _cost(result.baseline_step_s, units.seconds), _cost(result.tuned_step_s, units.seconds)),
        (
            "memory",
            "Peak memory",
            _cost(result.baseline_peak_memory_bytes, units.num_bytes),
            _cost(result.tuned_peak_memory_bytes, units.num_bytes),
        ),
    )
    in_headline = compared_quantity(result)
    sentences = []
    for quantity, name, before, after in costs:
        if not result.tuning.changes.changes:
            sentences.append(f"{name}: {before}.")
        elif quantity != in_headline:
            sentences.append(f"{name}: {before} at baseline, {after} with the changes.")
    return " ".join(sentences)


def _cost(value: float | None, form: Callable[[float], str]) -> str:
    return UNKNOWN if value is None else form(value)


def _notes(result: TuneResult, style: TextStyle) -> list[str]:
    notes = list(dict.fromkeys(all_notes(result)))
    lines = [_title("Notes", style)] if notes else []
    for note in notes[:MOST_NOTES]:
        lines += style.wrapped(note, label="  ")
    if len(notes) > MOST_NOTES:
        lines.append(f"  and {len(notes) - MOST_NOTES} more, in tuning.json")
    return lines


def _next(result: TuneResult, folder: Path | str, style: TextStyle) -> list[str]:
    label = f"Next, to {next_reason(result)}:"
    return [style.bold(line) for line in (label, *command_lines(next_words(result, folder), style))]


def command_lines(words: Sequence[str], style: TextStyle) -> list[str]:
    """Return a command that can be copied; a long one continues on the next line after a backslash."""
    lines = ["  " + style.clean(quoted(words[0]))]
    for word in words[1:]:
        text = style.clean(quoted(word))
        if len(lines[-1]) + len(text) + 3 > style.width:
            lines[-1] += " \\"
            lines.append("      " + text)
        else:
            lines[-1] += f" {text}"
    return lines
