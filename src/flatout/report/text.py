"""Print a diagnosis on a terminal: the problems and their costs, in 80 columns, readable without colour.

In: a `Diagnosis` and a style. Out: a string. With more than 16 ranks, ranks that behave alike share a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from flatout import units
from flatout.records.diagnosis import PART_NAMES, Diagnosis, Finding
from flatout.records.recorded_time import RecordedTime
from flatout.report.blame import charges
from flatout.report.evidence import evidence_texts
from flatout.report.group_phrases import HEADER, TITLE, group_lines
from flatout.report.parts import part_label, rounded_shares
from flatout.report.phrases import cost, counted, job_summary, ranks_of_job, ranks_text
from flatout.report.quality import shared_notes
from flatout.report.recorded_text import recorded_lines
from flatout.report.rows import Rows, rank_rows
from flatout.report.terminal import TextStyle
from flatout.report.text_table import text_table

MOST_RANKS = 16
MOST_ROWS = 12
MOST_EVIDENCE = 8
MOST_CHARGES = 5
SMALLEST_WAITING = 0.005  # of the step, mean over ranks
SMALLEST_CHARGE = 0.02  # of the total waiting time
LARGEST_OTHER = 20  # tenths of a percent that may go into the column `other`
BAR_WIDTH = 20

_HEADERS = {
    "communication_unsplit": ("comm.", "unsplit"),
    "memory_copy": ("memory", "copy"),
    "data_loading": ("data", "loading"),
    "checkpoint": ("check-", "point"),
    "allocator": ("allo-", "cator"),
    "host_sync": ("host", "sync"),
    "host_launch": ("host", "launch"),
    "launch_latency": ("launch", "latency"),
    "unattributed": ("unattri-", "buted"),
    "other": ("", "other"),
}


def diagnosis_text(diagnosis: Diagnosis, *, style: TextStyle | None = None, next_command: str | None = None) -> str:
    """Return the full report. Its last line is the next command, by default `flatout explain` of the first finding."""
    style = style or TextStyle()
    sections = [
        _header(diagnosis, style),
        _recorded(diagnosis, style),
        _parts_table(diagnosis, style),
        _communication(diagnosis, style),
        _findings(diagnosis, style),
        _blame(diagnosis, style),
        _data_quality(diagnosis, style),
    ]
    if next_command is None and diagnosis.findings:
        next_command = f"flatout explain {diagnosis.findings[0].name}"
    if next_command:
        sections.append([style.bold(line) for line in style.wrapped(next_command, label="next: ")])
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _header(diagnosis: Diagnosis, style: TextStyle) -> list[str]:
    separator = " · " if style.has_unicode else ", "
    lines = style.wrapped(separator.join(job_summary(diagnosis)))
    missing = diagnosis.job.missing_ranks
    if missing:
        noun = "rank" if len(missing) == 1 else "ranks"
        lines += style.wrapped(f"No trace of {noun} {units.rank_ranges(missing)}.")
    return [style.bold(line) for line in lines]


def _title(text: str, style: TextStyle) -> str:
    rule = ("─" if style.has_unicode else "-") * (style.width - len(text) - 1)
    return f"{style.bold(text)} {style.dim(rule)}"


def _recorded(diagnosis: Diagnosis, style: TextStyle) -> list[str]:
    if isinstance(diagnosis.recorded, msgspec.UnsetType):
        return []
    return [_title("All steps of the recording", style), *recorded_lines(diagnosis.recorded, style)]


def _parts_table(diagnosis: Diagnosis, style: TextStyle) -> list[str]:
    rows = rank_rows(diagnosis, most_ranks=MOST_RANKS, most_rows=MOST_ROWS)
    if not rows.rows:
        return []
    table_rows = _table_rows(rows)
    shares = [row.shares for row in table_rows]
    base = "step" if diagnosis.job.num_steps else "time"
    label_width = max(4, *(len(row.label) for row in table_rows))
    duration_width = max(4, *(len(row.duration) for row in table_rows))
    heads = (" " * (label_width + 2 + duration_width), f"{'rank':>{label_width}}  {base:>{duration_width}}")

    of_what = "traced step" if isinstance(diagnosis.recorded, RecordedTime) and base == "step" else base
    lines = [_title(f"Where the {of_what} goes, in % of the {base}", style)]
    blocks = _fitting_columns(shares, style.width - len(heads[0]))
    for number, columns in enumerate(blocks):
        if number > 0:
            lines.append("")
        lines += _header_lines(columns, heads)
        for row in table_rows:
            head = f"{row.label:>{label_width}}  {row.duration:>{duration_width}}"
            lines.append(head + _aligned(columns, {name: _tenths(row.shares[name]) for name in columns}))
    return lines + _legend(rows, style)


def _header_lines(columns: Sequence[str], heads: tuple[str, str]) -> list[str]:
    """Return the two lines above the rows, of which the upper one may be empty."""
    lines = [
        head + _aligned(columns, {name: _headers(name)[place] for name in columns}) for place, head in enumerate(heads)
    ]
    return [line.rstrip() for line in lines if line.strip()]


def _aligned(columns: Iterable[str], cells: Mapping[str, str]) -> str:
    return "".join(f"{cells[name]:>{_width(name)}}" for name in columns)


class _TableRow(NamedTuple):
    label: str
    duration: str
    shares: dict[str, int]  # by part, in tenths of a percent


def _table_rows(rows: Rows) -> list[_TableRow]:
    """Return a row for each rank or group, and their mean if there are several."""
    table_rows = [_table_row(row.short_label, row.duration_s, row.parts_s) for row in rows.by_device()]
    if len(table_rows) > 1:
        mean_s = rows.mean_parts_s()
        table_rows.append(_table_row("mean", sum(mean_s), mean_s))
    return table_rows


def _table_row(label: str, duration_s: float, parts_s: Sequence[float]) -> _TableRow:
    shares = dict(zip(PART_NAMES, rounded_shares(parts_s, 1000), strict=True))
    return _TableRow(label, units.seconds(duration_s), shares)


def _headers(part: str) -> tuple[str, str]:
    return _HEADERS.get(part, ("", part_label(part)))


def _width(part: str) -> int:
    return max(5, *map(len, _headers(part))) + 2


def _tenths(share: int) -> str:
    return f"{share // 10}.{share % 10}" if share else "-"


def _fitting_columns(shares: list[dict[str, int]], width: int) -> list[list[str]]:
    """Return the parts with a share in any row, in blocks that fit the width.

    Small parts share the column `other` if that saves a block; it is added to `shares`.
    """
    largest = {name: max(row[name] for row in shares) for name in PART_NAMES}
    columns = [name for name in PART_NAMES if largest[name] > 0]
    if sum(map(_width, columns)) <= width:
        return [columns]
    kept = list(columns)
    while sum(map(_width, kept)) + _width("other") > width:
        smallest = min(kept, key=lambda name: (largest[name], -PART_NAMES.index(name)))
        kept.remove(smallest)
    for row in shares:
        row["other"] = sum(row[name] for name in columns if name not in kept)
    if max(row["other"] for row in shares) <= LARGEST_OTHER:
        return [[*kept, "other"]]
    blocks: list[list[str]] = [[]]
    for name in columns:
        if sum(map(_width, [*blocks[-1], name])) > width:
            blocks.append([])
        blocks[-1].append(name)
    return blocks


def _legend(rows: Rows, style: TextStyle) -> list[str]:
    if rows.tolerance is None:
        return []
    lines = style.wrapped(
        f"Ranks share a row when no part differs from the group's centre by more than {rows.tolerance * 100:.3g} % "
        "of the step:"
    )
    for row in rows.groups:
        lines += style.wrapped(units.rank_ranges(row.ranks), indent="  ", label=f"{row.label}: ")
    return lines


def _findings(diagnosis: Diagnosis, style: TextStyle) -> list[str]:
    if not diagnosis.findings:
        base = "the step" if diagnosis.job.num_steps else "the recorded time"
        return [_title("Findings", style), f"No finding above 2 % of {base}."]
    lines = [_title("Findings", style)]
    for number, finding in enumerate(diagnosis.findings, start=1):
        if number > 1:
            lines.append("")
        lines += _finding(diagnosis, finding, number, style)
    return lines


def _finding(diagnosis: Diagnosis, finding: Finding, number: int, style: TextStyle) -> list[str]:
    name = f"{number}. {style.clean(finding.name)}"
    facts = f"{cost(diagnosis, finding.cost_s_per_step)}, {units.percent(finding.share_of_step)}"
    facts += f", {ranks_of_job(finding.ranks, diagnosis)}"
    head = style.wrapped(f"{name}: {facts}")
    bar = style.bar(finding.share_of_step, BAR_WIDTH)
    if len(head) == 1 and len(head[0]) + 2 + BAR_WIDTH <= style.width:
        head[0] = f"{head[0]:<{style.width - BAR_WIDTH}}{bar}"
    if head[0].startswith(name):
        head[0] = style.bold(name) + head[0].removeprefix(name)
    lines = head + style.wrapped(finding.title, indent="   ")
    evidence = evidence_texts(finding.evidence)
    if evidence:
        more = f"; and {len(evidence) - MOST_EVIDENCE} more" if len(evidence) > MOST_EVIDENCE else ""
        shown = "; ".join(f"{label}: {value}" for label, value in evidence[:MOST_EVIDENCE])
        lines += style.wrapped(shown + more, indent="   ", label="evidence    ")
    if finding.changes:
        first, *others = finding.changes
        lines += style.wrapped(f"{first} ({finding.safety})", indent="   ", label="try         ")
        for change in others:
            lines += style.wrapped(change, indent="   ", label="or          ")
    return lines + style.wrapped(finding.confidence, indent="   ", label="confidence  ")


def _blame(diagnosis: Diagnosis, style: TextStyle) -> list[str]:
    all_charges = charges(diagnosis)
    total_s = sum(charge.mean_wait_s for charge in all_charges)
    duration_s = diagnosis.job.step_s or max((rank.window_s for rank in diagnosis.ranks), default=0.0)
    if total_s <= SMALLEST_WAITING * duration_s:
        return []
    num_large = sum(charge.mean_wait_s >= SMALLEST_CHARGE * total_s for charge in all_charges)
    num_shown = min(MOST_CHARGES, max(1, num_large))
    lines = [_title("Who waits for whom", style)]
    for charge in all_charges[:num_shown]:
        waiting = ranks_text(charge.waiting_ranks, 0)
        verb = "waits" if len(charge.waiting_ranks) == 1 else "wait"
        cause = f"rank {charge.blamed_rank}: {part_label(charge.part)}"
        lines += style.wrapped(
            f"{waiting} {verb} {cost(diagnosis, charge.wait_s)} for {cause} "
            f"({units.percent(charge.mean_wait_s / total_s)} of all waiting)",
            label="  ",
        )
    rest = all_charges[num_shown:]
    if rest:
        rest_share = units.percent(sum(charge.mean_wait_s for charge in rest) / total_s)
        lines.append(f"  and {counted(len(rest), 'smaller cause')}, {rest_share} of all waiting")
    return lines


def _communication(diagnosis: Diagnosis, style: TextStyle) -> list[str]:
    rows = group_lines(diagnosis)
    if not rows:
        return []
    return [_title(TITLE, style), *text_table(HEADER, rows, style=style, flexible=[0, 1])]


def _data_quality(diagnosis: Diagnosis, style: TextStyle) -> list[str]:
    notes = shared_notes(diagnosis.data_quality)
    lines = [_title("Data quality", style)] if notes else []
    for note in notes:
        ranks = f"{ranks_of_job(note.ranks, diagnosis)}: " if note.ranks else ""
        lines += style.wrapped(f"{ranks}{note.problem}; {note.effect}", label="  ")
    return lines
