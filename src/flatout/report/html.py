"""Render a diagnosis as one self-contained HTML file: no script, no external reference, under 1 MB for any job.

In: a `Diagnosis`, the command line, and optionally when each finding is wrong, from `flatout explain`. Out: a string.
With more than 64 ranks, similar ranks share a row. Texts from traces are untrusted: the template escapes them all, and
a content policy in the page forbids scripts and external references.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from flatout import __version__, units
from flatout.records.diagnosis import PART_NAMES, Diagnosis, Finding, StepDiagnosis
from flatout.report.axis import step_labels, ticks
from flatout.report.blame import SMALLEST_SHARE, STRONGEST_SHARE, BlameCell, charges, matrix
from flatout.report.command import command_line
from flatout.report.evidence import evidence_texts
from flatout.report.group_phrases import HEADER, TITLE, group_lines
from flatout.report.parts import PART_LABELS, PART_MEANINGS, SAFETY_MEANINGS, part_label, part_values, rounded_shares
from flatout.report.phrases import cost, cost_base, counted, job_summary, ranks_of_job, ranks_text
from flatout.report.quality import shared_notes
from flatout.report.recorded_html import recorded_section
from flatout.report.rows import MOST_NAMED_RANKS, Row, Rows, rank_rows
from flatout.report.template import rendered

MOST_RANKS = 64
MOST_ROWS = 40
MOST_SEGMENTS = 4000  # pieces of bars in the steps chart
SMALLEST_DRAWN = 0.003  # of an axis: a few pixels
MOST_BLAMED = 16  # columns of the blame matrix
MOST_CHARGES = 40
MOST_FINDINGS = 50
MOST_NOTES = 100
LONGEST_TAG = 17  # characters of a finding's name that fit next to the bars


class BarSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a bar; widths of a bar sum to 100 %."""

    part: int
    width: str  # percent of the bar
    text: str  # "compute 55 %"
    title: str  # "compute 55.1 %, 50.8 ms"


class StepBar(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one row on the common time axis, in percent of the axis."""

    left: str
    width: str
    title: str
    segments: tuple[BarSegment, ...]


def diagnosis_html(diagnosis: Diagnosis, command: Sequence[str], *, explain: Mapping[str, str] | None = None) -> str:
    """Return the page. `explain` maps a finding's name to its section "When this is wrong"."""
    return rendered("diagnosis.html.j2", page_content(diagnosis, command, explain or {}))


def page_content(diagnosis: Diagnosis, command: Sequence[str], explain: Mapping[str, str]) -> dict[str, object]:
    """Return the texts and numbers that the template shows, ready to print."""
    rows = rank_rows(diagnosis, most_ranks=MOST_RANKS, most_rows=MOST_ROWS)
    findings = diagnosis.findings
    notes = shared_notes(diagnosis.data_quality)
    missing_ranks = diagnosis.job.missing_ranks
    tags = {name for row in rows.rows for name in _findings_of(row, diagnosis)}
    return {
        "tool_version": __version__,
        "command": command_line(command),
        "facts": job_summary(diagnosis),
        "missing": ranks_text(missing_ranks, 0) if missing_ranks else "",
        "has_long_tags": any(len(name) > LONGEST_TAG for name in tags),
        "base": "step" if diagnosis.job.num_steps else "recording",
        "findings": [_finding(diagnosis, finding, explain) for finding in findings[:MOST_FINDINGS]],
        "num_more_findings": max(0, len(findings) - MOST_FINDINGS),
        "all_findings": _all_findings(diagnosis),
        "recorded": None if diagnosis.recorded is msgspec.UNSET else recorded_section(diagnosis.recorded),
        "mean": _mean(rows),
        "rows": [_row(row, diagnosis, rows) for row in rows.by_device()],
        "groups": [{"label": row.label, "ranks": units.rank_ranges(row.ranks, 40)} for row in rows.groups],
        "tolerance": None if rows.tolerance is None else f"{rows.tolerance * 100:.3g} %",
        "part_columns": [{"part": part, "label": PART_LABELS[PART_NAMES[part]]} for part in _used_parts(rows)],
        "steps": _steps(rows),
        "communication": group_lines(diagnosis),
        "communication_header": HEADER,
        "communication_title": TITLE,
        "blame": _blame(diagnosis, rows),
        "notes": [
            {"ranks": ranks_of_job(note.ranks, diagnosis), "problem": note.problem, "effect": note.effect}
            for note in notes[:MOST_NOTES]
        ],
        "num_more_notes": max(0, len(notes) - MOST_NOTES),
        "glossary": [
            {"part": index, "label": PART_LABELS[name], "meaning": PART_MEANINGS[name]}
            for index, name in enumerate(PART_NAMES)
        ],
        "safety": SAFETY_MEANINGS,
    }


def _all_findings(diagnosis: Diagnosis) -> str:
    findings = diagnosis.findings
    cost_s = sum(finding.cost_s_per_step for finding in findings)
    share = units.percent(sum(finding.share_of_step for finding in findings))
    together = "together " if len(findings) > 1 else ""
    return f"{counted(len(findings), 'finding')}, {together}{cost(diagnosis, cost_s)} ({share})"


def _finding(diagnosis: Diagnosis, finding: Finding, explain: Mapping[str, str]) -> dict[str, object]:
    return {
        "name": finding.name,
        "code": finding.code,
        "title": finding.title,
        "cost": units.seconds(finding.cost_s_per_step),
        "cost_base": cost_base(diagnosis),
        "share": units.percent(finding.share_of_step),
        "bar": f"{min(1.0, max(0.0, finding.share_of_step)) * 100:.1f}",
        "ranks": ranks_of_job(finding.ranks, diagnosis),
        "evidence": evidence_texts(finding.evidence),
        "changes": finding.changes,
        "safety": finding.safety,
        "safety_meaning": SAFETY_MEANINGS.get(finding.safety, ""),
        "confidence": finding.confidence,
        "when_wrong": [text for text in explain.get(finding.name, "").split("\n\n") if text.strip()],
    }


def _segments(parts_s: Iterable[float]) -> tuple[BarSegment, ...]:
    """Return a stacked bar of the parts that have a width, in the order of the parts."""
    values = tuple(parts_s)
    segments = []
    for part, width in enumerate(rounded_shares(values, 10_000)):
        if not width:
            continue
        label = PART_LABELS[PART_NAMES[part]]
        segments.append(
            BarSegment(
                part=part,
                width=f"{width // 100}.{width % 100:02d}",
                text=f"{label} {units.percent(width / 10_000)}",
                title=f"{label} {width / 100:.1f} %, {units.seconds(values[part])}",
            )
        )
    return tuple(segments)


def _spoken(segments: Sequence[BarSegment]) -> str:
    return ", ".join(segment.text for segment in segments)


def _mean(rows: Rows) -> dict[str, object]:
    """Return the mean rank's step and, for each part, its range over the rows."""
    num_ranks = sum(len(row.ranks) for row in rows.rows)
    mean = rows.mean_parts_s()
    segments = _segments(mean)
    shares = [tuple(_share(row, part) for row in rows.rows) for part in range(len(PART_NAMES))]
    return {
        "segments": segments,
        "spoken": _spoken(segments),
        "duration": units.seconds(sum(mean)),
        "num_ranks": num_ranks,
        "parts": [
            {
                "part": part,
                "label": PART_LABELS[PART_NAMES[part]],
                "meaning": PART_MEANINGS[PART_NAMES[part]],
                "time": units.seconds(mean[part]),
                "share": f"{mean[part] / sum(mean) * 100:.1f} %",
                "range": f"{min(shares[part]) * 100:.1f} to {max(shares[part]) * 100:.1f} %",
            }
            for part in _used_parts(rows)
        ],
    }


def _share(row: Row, part: int) -> float:
    return row.parts_s[part] / row.duration_s if row.duration_s else 0.0


def _used_parts(rows: Rows) -> list[int]:
    return [part for part in range(len(PART_NAMES)) if any(row.parts_s[part] > 0 for row in rows.rows)]


def _findings_of(row: Row, diagnosis: Diagnosis) -> list[str]:
    """Return the names of the findings that concern this rank and few others."""
    if row.is_group:
        return []
    most_ranks = min(MOST_NAMED_RANKS, diagnosis.job.num_ranks - 1)
    findings = [finding for finding in diagnosis.findings if row.ranks[0] in finding.ranks]
    return list(dict.fromkeys(finding.name for finding in findings if len(finding.ranks) <= most_ranks))


def _row(row: Row, diagnosis: Diagnosis, rows: Rows) -> dict[str, object]:
    longest_s = max(other.duration_s for other in rows.rows) or 1.0
    segments = _segments(row.parts_s)
    return {
        "label": row.label,
        "findings": _findings_of(row, diagnosis),
        "duration": units.seconds(row.duration_s),
        "length": f"{row.duration_s / longest_s * 100:.2f}",
        "segments": segments,
        "spoken": _spoken(segments),
        "shares": [f"{_share(row, part) * 100:.1f}" for part in _used_parts(rows)],
        "shown": f"rank {row.shown.rank}" if row.is_group else "",
    }


def _steps(rows: Rows) -> dict[str, object] | None:
    """Return each row's steps on one time axis. If there are too many, only those around the longest step."""
    numbers = sorted({step.step for row in rows.rows for step in row.shown.steps})
    if not numbers:
        return None
    chosen = set(_chosen_steps(rows, numbers))
    lanes = [[step for step in row.shown.steps if step.step in chosen] for row in rows.rows]
    first_s, span_s = _extent(lanes, begins_at_0=numbers[0] in chosen)
    starts = [lane[0].start_s for lane in lanes if lane]

    # If ranks start their steps at different times, as in a pipeline, the step numbers are right for one rank only.
    longest = max(range(len(lanes)), key=lambda index: len(lanes[index]))
    starts_differ = max(starts) - min(starts) > 0.01 * span_s
    return {
        "num_all": len(numbers),
        "num_shown": len(chosen),
        "num_lanes": len(lanes),
        "has_lead_in": min(starts) - first_s > SMALLEST_DRAWN * span_s,
        "labelled": f"rank {rows.rows[longest].shown.rank}" if starts_differ else "",
        "labels": _step_labels(lanes[longest], first_s, span_s),
        "ticks": [{"left": _percent(left), "text": text} for left, text in ticks(first_s, span_s)],
        "lanes": [_lane(row, lane, first_s, span_s) for row, lane in zip(rows.rows, lanes, strict=True)],
    }


def _extent(lanes: Sequence[Sequence[StepDiagnosis]], *, begins_at_0: bool) -> tuple[float, float]:
    """Return where the time axis of the drawn steps begins, and its length, in seconds."""
    drawn = [step for lane in lanes for step in lane]
    first_s = 0.0 if begins_at_0 else min(step.start_s for step in drawn)
    return first_s, max(step.start_s + step.window_s for step in drawn) - first_s or 1.0


def _step_labels(lane: Sequence[StepDiagnosis], first_s: float, span_s: float) -> list[dict[str, str]]:
    labels = []
    for label in step_labels(lane, first_s, span_s):
        classes = [label.size, "before"] if label.is_before else [label.size]
        labels.append({"left": _percent(label.left), "text": label.text, "classes": " ".join(filter(None, classes))})
    return labels


def _lane(row: Row, steps: Sequence[StepDiagnosis], first_s: float, span_s: float) -> dict[str, object]:
    return {
        "label": row.label,
        "shown": f"rank {row.shown.rank}" if row.is_group else "",
        "blocks": [_block(step, first_s, span_s) for step in steps],
    }


def _chosen_steps(rows: Rows, numbers: list[int]) -> list[int]:
    """Return the consecutive steps that fit the chart, with the longest step in the middle."""
    num_segments = sum(part > 0 for row in rows.rows for part in row.parts_s)
    most = max(1, MOST_SEGMENTS // max(1, num_segments))
    if len(numbers) <= most:
        return numbers
    longest = max((step for row in rows.rows for step in row.shown.steps), key=lambda step: step.window_s)
    first = min(max(0, numbers.index(longest.step) - most // 2), len(numbers) - most)
    return numbers[first : first + most]


def _block(step: StepDiagnosis, first_s: float, span_s: float) -> StepBar:
    segments = _segments(part_values(step.parts_s))
    when = f"from {units.seconds(step.start_s)}, {units.seconds(step.window_s)}"
    return StepBar(
        left=_percent((step.start_s - first_s) / span_s),
        width=_percent(step.window_s / span_s),
        title=f"step {step.step}, {when}: {_spoken(segments)}",
        segments=segments,
    )


def _percent(share: float) -> str:
    return f"{share * 100:.2f}"


def _blame(diagnosis: Diagnosis, rows: Rows) -> dict[str, object] | None:
    all_charges = charges(diagnosis)
    if not all_charges:
        return None
    table = matrix(diagnosis, rows, most_columns=MOST_BLAMED)
    total_s = sum(charge.mean_wait_s for charge in all_charges)
    columns = [f"rank {rank}" for rank in table.columns]
    if table.num_other:
        columns.append(f"{table.num_other:,} others")
    return {
        "columns": columns,
        "rows": [
            {"label": row.label, "cells": [_cell(cell, len(columns)) for cell in cells]}
            for row, cells in zip(rows.rows, table.cells, strict=True)
        ],
        "scale": [
            {"strength": f"{_strength(share):.2f}", "text": f"{share:.0%}".replace("%", " %")}
            for share in (SMALLEST_SHARE, 0.1, STRONGEST_SHARE)
        ],
        "charges": [
            {
                "waiting": ranks_of_job(charge.waiting_ranks, diagnosis),
                "blamed": f"rank {charge.blamed_rank}",
                "part": part_label(charge.part),
                "wait": units.seconds(charge.wait_s),
                "share": units.percent(charge.mean_wait_s / total_s),
            }
            for charge in all_charges[:MOST_CHARGES]
        ],
        "num_more": max(0, len(all_charges) - MOST_CHARGES),
    }


def _strength(share: float) -> float:
    """Return the strength of a cell's colour: none below the smallest finding, full at half a step or more."""
    if share < SMALLEST_SHARE:
        return 0.0
    position = (share - SMALLEST_SHARE) / (STRONGEST_SHARE - SMALLEST_SHARE)
    return 0.1 + 0.5 * math.sqrt(min(1.0, position))


def _cell(cell: BlameCell | None, num_columns: int) -> dict[str, str] | None:
    if cell is None:
        return None
    parts = "; ".join(f"{part_label(part)} {units.seconds(wait_s)}" for part, wait_s in cell.parts_s[:6])
    return {
        "text": units.seconds(cell.wait_s),
        "part": _main_part(cell) if num_columns <= 8 else "",
        "strength": f"{_strength(cell.share):.2f}",
        "title": f"{units.percent(cell.share)} of the step: {parts}",
    }


def _main_part(cell: BlameCell) -> str:
    """Return the part that is blamed most, with its share if other parts are blamed too."""
    part, wait_s = cell.parts_s[0]
    if wait_s >= 0.95 * cell.wait_s:
        return part_label(part)
    return f"{part_label(part)} {units.percent(wait_s / cell.wait_s)}"
