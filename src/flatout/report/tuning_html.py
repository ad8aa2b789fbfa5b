"""Write a tuning run as one self-contained HTML file: no script, no external reference, always under 1 MB.

In: a `TuneResult`, the command line, and the tuning's folder. Out: a string. Texts from the job are untrusted: the
template escapes all of them, and a content policy in the page forbids scripts and external references.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from flatout import __version__, units
from flatout.records.change import Change
from flatout.records.prediction import Prediction
from flatout.records.tuning import TriedSet, TuneResult
from flatout.records.verdict import Verdict
from flatout.report.command import command_line, quoted
from flatout.report.parts import SAFETY_MEANINGS
from flatout.report.phrases import counted
from flatout.report.ratio_axis import RatioAxis, ratio_axis
from flatout.report.template import rendered
from flatout.report.tuning_bounds import above_bound_sentences, bound_name
from flatout.report.tuning_errors import error_sentence
from flatout.report.tuning_next import next_reason, next_words
from flatout.report.tuning_phrases import (
    OBJECTIVE_WORDS,
    all_notes,
    end_sentence,
    evidence_words,
    facts,
    final_sentences,
    headline,
    is_better,
    noise_sentence,
    step_parts,
    why,
)
from flatout.report.tuning_ratios import UNKNOWN, gain, has_predictions, measured_text, predicted_text, ratio
from flatout.report.tuning_rows import OUTCOME_MEANINGS, OUTCOME_ORDER, adopted_rows, not_adopted, not_shown_sentence
from flatout.secrets import masked_command

MOST_TRIED = 200
MOST_BOUNDS = 40
MOST_NOTES = 100
MOST_COMPARED = 40
VERDICT_MEANINGS = {
    "better": "the interval of the ratio excludes 1, and the gain exceeds the smallest one that counts",
    "worse": "the interval excludes 1, and the loss exceeds the smallest one that counts",
    "equivalent": "any difference is smaller than the smallest one that counts",
    "undecided": "none of these: the trials are inconclusive",
}


def tuning_html(result: TuneResult, command: Sequence[str], folder: Path | str) -> str:
    """Return the page. `folder` is the tuning's `--out`, as the next command names it."""
    return rendered("tuning.html.j2", page_content(result, command, folder))


def page_content(result: TuneResult, command: Sequence[str], folder: Path | str) -> dict[str, object]:
    """Return what the template shows, as texts and numbers ready to print."""
    left = not_adopted(result)
    notes = list(dict.fromkeys(all_notes(result)))
    return {
        "tool_version": __version__,
        "command": command_line(command),
        "job_command": command_line(result.tuning.command),
        "date": result.tuning.date,
        "headline": headline(result, arrow="\N{RIGHTWARDS ARROW}"),
        "facts": facts(result),
        "is_better": is_better(result),
        "answers": _answers(result),
        "next": {"why": next_reason(result), "words": [quoted(word) for word in next_words(result, folder)]},
        "before_after": _before_after(result),
        "step_parts": step_parts(result, arrow="\N{RIGHTWARDS ARROW}"),
        "forest": _forest(result),
        "evidence": evidence_words(result.tuning.verdict) if result.tuning.verdict is not None else "",
        "adopted": [
            {
                "name": row.name,
                "safety": row.safety,
                "predicted": predicted_text(row.prediction, row.bound, result.objective),
                "measured": measured_text(row.verdict),
                "changes": [_change(change) for change in row.changes],
            }
            for row in adopted_rows(result)
        ],
        "not_shown": not_shown_sentence(adopted_rows(result)),
        "compared": _compared(result),
        "error": error_sentence(result),
        "has_predictions": has_predictions(result),
        "tried": [_tried(one, result) for one in left[:MOST_TRIED]],
        "num_tried": len(result.tried),
        "num_left": len(left),
        "num_more_tried": max(0, len(left) - MOST_TRIED),
        "outcomes": _outcomes(left),
        "bounds": [
            {
                "finding": bound_name(bound),
                "speedup": ratio(bound.speedup),
                "bar": _percent(1 - 1 / bound.speedup) if bound.speedup > 1 else "0.00",
                "share": units.percent(1 - 1 / bound.speedup) if bound.speedup > 1 else "0 %",
            }
            for bound in result.bounds[:MOST_BOUNDS]
        ],
        "above_bounds": above_bound_sentences(result),
        "how": _how(result),
        "notes": notes[:MOST_NOTES],
        "num_more_notes": max(0, len(notes) - MOST_NOTES),
        "safety": SAFETY_MEANINGS,
        "verdicts": VERDICT_MEANINGS,
        "outcome_meanings": OUTCOME_MEANINGS,
    }


def _percent(share: float) -> str:
    return f"{min(1.0, max(0.0, share)) * 100:.2f}"


def _answers(result: TuneResult) -> list[dict[str, str]]:
    """Return two short answers to show with the command: the gain and the verdict."""
    verdict = result.tuning.verdict
    if not result.tuning.changes.changes:
        outcomes = Counter(one.outcome for one in result.tried)
        small = ", ".join(f"{outcomes[name]} {name}" for name in OUTCOME_ORDER if outcomes[name])
        return [
            {"term": "Accepted changes", "big": "none", "small": "the job stays unchanged"},
            {"term": "Tried changes", "big": str(len(result.tried)), "small": small or "nothing"},
        ]
    if verdict is None or verdict.speedup is None:
        sure = verdict.reason if verdict is not None else "no further trials were made"
        return [
            {"term": "Gain", "big": UNKNOWN, "small": "not compared with the baseline"},
            {"term": "Verdict", "big": "undecided", "small": sure},
        ]
    brings = gain(verdict)
    return [
        {"term": "Gain", "big": brings.value, "small": brings.interval},
        {"term": "Verdict", "big": verdict.verdict, "small": evidence_words(verdict)},
    ]


def _before_after(result: TuneResult) -> list[dict[str, object]]:
    """Return bars of the baseline and the tuned job, for step time and peak memory; the objective comes first."""
    has_changes = bool(result.tuning.changes.changes)
    sides = ("baseline", "tuned") if has_changes else ("baseline",)
    step = (result.baseline_step_s, result.tuned_step_s)
    memory = (result.baseline_peak_memory_bytes, result.tuned_peak_memory_bytes)
    measures = [_bars("A step", sides, step, units.seconds), _bars("Peak memory", sides, memory, units.num_bytes)]
    return measures[::-1] if result.objective == "peak_memory_bytes" else measures


def _bars(
    title: str, sides: Sequence[str], values: Sequence[float | None], form: Callable[[float], str]
) -> dict[str, object]:
    longest = max((value for value in values[: len(sides)] if value), default=1.0)
    return {
        "title": title,
        "bars": [
            {
                "label": side,
                "text": form(value) if value is not None else UNKNOWN,
                "width": _percent(value / longest) if value is not None else None,
                "is_tuned": side == "tuned",
            }
            for side, value in zip(sides, values, strict=False)
        ],
    }


def _forest(result: TuneResult) -> dict[str, object] | None:
    """Return each confirmed change and all changes together, on one axis."""
    rows = [(row.name, row.verdict, False) for row in adopted_rows(result) if _is_drawn(row.verdict)]
    if _is_drawn(result.tuning.verdict):
        rows.append(("all, against the baseline", result.tuning.verdict, True))
    drawn = [(name, verdict, is_all) for name, verdict, is_all in rows if verdict is not None]
    if not drawn:
        return None
    axis = ratio_axis(value for _, verdict, _ in drawn for value in _values(verdict))
    return {
        "rows": [
            {
                "label": name,
                "text": measured_text(verdict),
                "spoken": f"{name}: {measured_text(verdict)}, {verdict.verdict}",
                "is_all": is_all,
                **_mark(axis, verdict.speedup, verdict.interval),
            }
            for name, verdict, is_all in drawn
        ],
        **_axis(axis),
    }


def _is_drawn(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.speedup is not None


def _values(verdict: Verdict) -> tuple[float, ...]:
    assert verdict.speedup is not None
    return (verdict.speedup, *(verdict.interval or ()))


def _mark(axis: RatioAxis, value: float | None, interval: tuple[float, float] | None) -> dict[str, str | None]:
    """Return the places of an estimate and its interval, in percent of the axis."""
    assert value is not None
    return {
        "at": _percent(axis.place(value)),
        "low": _percent(axis.place(interval[0])) if interval is not None else None,
        "high": _percent(axis.place(interval[1])) if interval is not None else None,
    }


def _axis(axis: RatioAxis) -> dict[str, object]:
    return {
        "one": _percent(axis.place(1.0)),
        "marks": [{"at": _percent(place), "text": text} for place, text in axis.marks()],
    }


def _compared(result: TuneResult) -> dict[str, object] | None:
    """Return every prediction that has a measurement, with both values on one axis.

    The measured value is the plain mean here, because no change was selected by its result.
    """
    pairs: list[tuple[TriedSet, Prediction, Verdict]] = [
        (one, one.prediction, msgspec.structs.replace(one.verdict, speedup=one.verdict.mean_speedup))
        for one in result.tried
        if one.prediction is not None and one.verdict is not None and one.verdict.mean_speedup is not None
        if one.outcome != "unsafe" and has_predictions(result)
    ]
    if not pairs:
        return None
    pairs = pairs[:MOST_COMPARED]
    axis = ratio_axis(
        value for _, said, found in pairs for value in (said.speedup, said.low, said.high, *_values(found))
    )
    return {
        "rows": [
            {
                "label": one.name,
                "predicted_text": predicted_text(said, None, result.objective),
                "measured_text": measured_text(found),
                "error": units.percent(abs(said.speedup / (found.speedup or 1.0) - 1)),
                "predicted": _mark(axis, said.speedup, (said.low, said.high)),
                "measured": _mark(axis, found.speedup, found.interval),
            }
            for one, said, found in pairs
        ],
        **_axis(axis),
    }


def _change(change: Change) -> dict[str, object]:
    """Return what a change sets, one line per setting."""
    sets = [f"{name}={shlex.quote(value)}" for name, value in change.environment.items()]
    sets += [f"{launcher}: {shlex.join(words)}" for launcher, words in change.launch.items()]
    if change.argument is not None:
        sets += [shlex.join(masked_command(words)) for words in change.argument.words]
    if change.patch is not None:
        values = ", ".join(f"{name}={value}" for name, value in change.patch.parameters.items())
        sets.append(f"inside the processes: {change.patch.name}" + (f" ({values})" if values else ""))
    return {"name": change.name, "summary": change.knob.summary, "sets": sets}


def _tried(one: TriedSet, result: TuneResult) -> dict[str, object]:
    is_unsafe = one.outcome == "unsafe"
    measured = "not shown" if is_unsafe else "one trial"
    if one.verdict is not None and one.verdict.speedup is not None and not is_unsafe:
        measured = measured_text(one.verdict)
    return {
        "name": one.name,
        "safety": one.safety,
        "round": one.round,
        "outcome": one.outcome,
        "css": one.outcome.replace(" ", "-"),
        "predicted": predicted_text(one.prediction, one.bound, result.objective),
        "measured": measured,
        "why": why(one),
    }


def _outcomes(left: Sequence[TriedSet]) -> str:
    counts = Counter(one.outcome for one in left)
    return ", ".join(f"{counts[name]} {name}" for name in OUTCOME_ORDER if counts[name])


def _how(result: TuneResult) -> list[dict[str, str]]:
    """Return terms and texts: pairs, order, interim analyses, noise floor, trials, time, machine."""
    verdict = result.tuning.verdict
    found = [("Objective", f"{OBJECTIVE_WORDS[result.objective]}, as a ratio: above 1 is better.")]
    if verdict is not None:
        sentences = final_sentences(verdict)
        found.append(("Final comparison", " ".join(sentences)))
        found.append(("Smallest gain", f"Less than {units.percent(verdict.min_effect)} is not called better or worse."))
    else:
        found.append(("Final comparison", "None: no set of changes was compared with the baseline."))
    found += [
        ("Trials", f"Each in fresh processes; {counted(result.num_steps, 'measured step')}; warm-up is not counted."),
        (
            "Gates",
            "Losses, first gradients and peak memory of each trial are compared with those of the baseline. A change "
            "that exceeds a tolerance is unsafe.",
        ),
        ("Noise floor", noise_sentence(result)),
        ("Step times", "Means over all trials of that kind. Ratios allow for drift, so they differ slightly."),
        ("End", end_sentence(result)),
    ]
    return [{"term": term, "text": text} for term, text in found]
