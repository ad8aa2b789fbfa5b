"""Two diagnoses side by side: part by part and finding by finding.

In: two `Diagnosis`. Out: a `DiagnosisDiff` and its text and JSON (schema `flatout/diff`, version 1). It says what
changed and by how much, and how far the steps of one run lie apart; it gives no verdict, which takes repeated trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

from flatout import units
from flatout.records.diagnosis import PART_NAMES, Diagnosis, Finding
from flatout.report.json import enveloped_json
from flatout.report.parts import part_label, part_values
from flatout.report.phrases import job_summary, ranks_text
from flatout.report.rows import mean_parts
from flatout.report.terminal import TextStyle

SCHEMA = "flatout/diff"
VERSION = 1
SMALLEST_CHANGE = 0.001  # of the larger time; smaller changes of a part are summed up in the text
BAR_WIDTH = 8
NAME_WIDTH = 26


class DiffSide(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two runs. Times are means over ranks."""

    num_ranks: int
    num_steps: int
    device: str | None
    time_s: float  # of a mean step, or of the window
    step_s_min: float | None  # over the steps, each the mean over ranks; None without steps
    step_s_median: float | None
    step_s_max: float | None


class PartChange(msgspec.Struct, frozen=True, kw_only=True):
    part: str
    a_s: float
    b_s: float
    change_s: float  # b - a
    a_share: float
    b_share: float


class FindingChange(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    state: str  # new | gone | both
    a_ranks: tuple[int, ...] | None  # None where it is not in A
    b_ranks: tuple[int, ...] | None
    a_cost_s: float | None
    b_cost_s: float | None
    change_s: float  # b - a, none counted as 0


class DiagnosisDiff(msgspec.Struct, frozen=True, kw_only=True):
    basis: str  # step | window: what the times are of
    a: DiffSide
    b: DiffSide
    change_s: float  # b - a
    ratio: float | None  # b / a; None where A has no time
    ratio_range: tuple[float, float] | None  # from B's shortest step over A's longest to the opposite
    parts: tuple[PartChange, ...]  # largest change first; the changes sum to `change_s`
    findings: tuple[FindingChange, ...]  # largest change first
    notes: tuple[str, ...]  # what makes the two hard to compare


def diff(a: Diagnosis, b: Diagnosis) -> DiagnosisDiff:
    """What changed from A to B: a mean step each, or the whole windows where either has no steps."""
    is_step = all(any(rank.steps for rank in diagnosis.ranks) for diagnosis in (a, b))
    a_parts, b_parts = _mean(a, is_step), _mean(b, is_step)
    a_side, b_side = _side(a, a_parts, is_step), _side(b, b_parts, is_step)
    parts = [
        PartChange(
            part=name,
            a_s=a_s,
            b_s=b_s,
            change_s=b_s - a_s,
            a_share=a_s / a_side.time_s if a_side.time_s else 0.0,
            b_share=b_s / b_side.time_s if b_side.time_s else 0.0,
        )
        for name, a_s, b_s in zip(PART_NAMES, a_parts, b_parts, strict=True)
    ]
    return DiagnosisDiff(
        basis="step" if is_step else "window",
        a=a_side,
        b=b_side,
        change_s=b_side.time_s - a_side.time_s,
        ratio=b_side.time_s / a_side.time_s if a_side.time_s else None,
        ratio_range=_ratio_range(a_side, b_side),
        parts=tuple(sorted(parts, key=lambda part: (-abs(part.change_s), PART_NAMES.index(part.part)))),
        findings=_finding_changes(a, b, is_step),
        notes=_notes(a, b, is_step),
    )


def diff_json(result: DiagnosisDiff, command: Sequence[str], *, pretty: bool = True) -> bytes:
    return enveloped_json(SCHEMA, VERSION, command, result, pretty=pretty)


def _mean(diagnosis: Diagnosis, is_step: bool) -> tuple[float, ...]:
    """Seconds of each part, mean over the ranks (in steps: those that have any)."""
    if is_step:
        values = [mean_parts(rank) for rank in diagnosis.ranks if rank.steps]
    else:
        values = [part_values(rank.parts_s) for rank in diagnosis.ranks]
    if not values:
        return (0.0,) * len(PART_NAMES)
    return tuple(sum(column) / len(values) for column in zip(*values, strict=True))


def _side(diagnosis: Diagnosis, parts_s: tuple[float, ...], is_step: bool) -> DiffSide:
    by_step: dict[int, list[float]] = {}
    for rank in diagnosis.ranks:
        for step in rank.steps:
            by_step.setdefault(step.step, []).append(step.window_s)
    times = [sum(windows) / len(windows) for windows in by_step.values()] if is_step else []
    return DiffSide(
        num_ranks=diagnosis.job.num_ranks,
        num_steps=diagnosis.job.num_steps,
        device=diagnosis.job.device,
        time_s=sum(parts_s),
        step_s_min=min(times, default=None),
        step_s_median=median(times) if times else None,
        step_s_max=max(times, default=None),
    )


def _ratio_range(a: DiffSide, b: DiffSide) -> tuple[float, float] | None:
    if not (a.step_s_min and a.step_s_max and b.step_s_min and b.step_s_max):
        return None
    return b.step_s_min / a.step_s_max, b.step_s_max / a.step_s_min


def _finding_changes(a: Diagnosis, b: Diagnosis, is_step: bool) -> tuple[FindingChange, ...]:
    """Findings of one name belong together: first those of the same ranks, then in the order of their costs."""
    changes = []
    names = dict.fromkeys(finding.name for finding in (*a.findings, *b.findings))
    for name in names:
        left = [finding for finding in a.findings if finding.name == name]
        right = [finding for finding in b.findings if finding.name == name]
        pairs: list[tuple[Finding | None, Finding | None]] = []
        for finding in list(left):
            same = next((other for other in right if other.ranks == finding.ranks), None)
            if same:
                pairs.append((finding, same))
                left.remove(finding)
                right.remove(same)
        pairs += zip(left, right, strict=False)
        pairs += [(finding, None) for finding in left[len(right) :]]
        pairs += [(None, finding) for finding in right[len(left) :]]
        changes += [_finding_change(name, pair, a, b, is_step) for pair in pairs]
    return tuple(sorted(changes, key=lambda change: (-abs(change.change_s), change.name)))


def _finding_change(
    name: str, pair: tuple[Finding | None, Finding | None], a: Diagnosis, b: Diagnosis, is_step: bool
) -> FindingChange:
    costs = [
        finding.cost_s_per_step * (1 if is_step else max(1, diagnosis.job.num_steps)) if finding else None
        for finding, diagnosis in zip(pair, (a, b), strict=True)
    ]
    return FindingChange(
        name=name,
        state="new" if pair[0] is None else "gone" if pair[1] is None else "both",
        a_ranks=pair[0].ranks if pair[0] else None,
        b_ranks=pair[1].ranks if pair[1] else None,
        a_cost_s=costs[0],
        b_cost_s=costs[1],
        change_s=(costs[1] or 0.0) - (costs[0] or 0.0),
    )


def _notes(a: Diagnosis, b: Diagnosis, is_step: bool) -> tuple[str, ...]:
    notes = []
    if not is_step:
        without = [name for name, side in (("A", a), ("B", b)) if not any(rank.steps for rank in side.ranks)]
        notes.append(f"no steps are marked in {' and '.join(without)}: whole recordings are compared, lead-in included")
    if a.job.num_ranks != b.job.num_ranks:
        notes.append(f"A has {a.job.num_ranks:,} ranks and B {b.job.num_ranks:,}: times are means over ranks")
    if a.job.device != b.job.device:
        notes.append(f"A ran on {a.job.device or 'an unnamed device'} and B on {b.job.device or 'an unnamed device'}")
    missing = [name for name, side in (("A", a), ("B", b)) if side.job.missing_ranks]
    if missing:
        notes.append(f"ranks are missing in {' and '.join(missing)}: waiting may be counted as unsplit communication")
    return tuple(notes)


def diff_text(
    result: DiagnosisDiff, a: Diagnosis, b: Diagnosis, *, style: TextStyle | None = None, next_command: str = ""
) -> str:
    """The diff for a terminal: times, parts by the size of their change, findings, how far single steps lie apart."""
    style = style or TextStyle()
    separator = " · " if style.has_unicode else ", "
    head = []
    for name, diagnosis in (("A", a), ("B", b)):
        head += style.wrapped(separator.join(job_summary(diagnosis)), label=f"{name}  ")
    sections = [head, _change_lines(result, style), _part_lines(result, style), _finding_lines(result, style)]
    sections.append([line for note in _caveats(result) for line in style.wrapped(note, label="- ")])
    if next_command:
        sections.append([style.bold(line) for line in style.wrapped(next_command, label="next: ")])
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _change_lines(result: DiagnosisDiff, style: TextStyle) -> list[str]:
    """One sentence: from A to B, and which part explains most of it."""
    what = "A step" if result.basis == "step" else "The recording"
    took = f"{what} took {units.seconds(result.a.time_s)} in A and {units.seconds(result.b.time_s)} in B"
    ratio = f" (B / A = {result.ratio:.3f}, one run each" if result.ratio is not None else " (one run each"
    if result.ratio_range:
        ratio += f"; single steps {result.ratio_range[0]:.3f} to {result.ratio_range[1]:.3f}"
    ratio += ")"
    same_way = [part for part in result.parts if part.change_s * result.change_s > 0]
    if not same_way:
        return [style.bold(line) for line in style.wrapped(f"{took}{ratio}.")]
    first = same_way[0]
    return [
        style.bold(line)
        for line in style.wrapped(
            f"{took}{ratio}: {_signed(result.change_s)}. The largest part of that is "
            f"{part_label(first.part)}, {_signed(first.change_s)}."
        )
    ]


def _signed(value_s: float) -> str:
    return ("+" if value_s > 0 else "") + units.seconds(value_s)


def _part_lines(result: DiagnosisDiff, style: TextStyle) -> list[str]:
    threshold_s = SMALLEST_CHANGE * max(result.a.time_s, result.b.time_s)
    shown = [part for part in result.parts if abs(part.change_s) >= threshold_s and part.change_s]
    largest_s = max((abs(part.change_s) for part in shown), default=0.0)
    lines = [f"{'part':<22}{'A':>10}{'share':>8}{'B':>10}{'share':>8}{'change':>11}"]
    for part in shown:
        bar = style.bar(abs(part.change_s) / largest_s, BAR_WIDTH).rstrip("░.")
        line = f"{part_label(part.part):<22}{units.seconds(part.a_s):>10}{units.percent(part.a_share):>8}"
        line += f"{units.seconds(part.b_s):>10}{units.percent(part.b_share):>8}{_signed(part.change_s):>11}"
        lines.append(f"{line}  {'-' if part.change_s < 0 else '+'}{bar}")
    rest_s = sum(part.change_s for part in result.parts if part not in shown)
    lines.append(f"{'all other parts':<22}{'':>36}{_signed(rest_s):>11}")
    total = f"{result.basis:<22}{units.seconds(result.a.time_s):>10}{'':>8}{units.seconds(result.b.time_s):>10}{'':>8}"
    lines.append(f"{total}{_signed(result.change_s):>11}")
    return lines


def _finding_lines(result: DiagnosisDiff, style: TextStyle) -> list[str]:
    if not result.findings:
        return ["Neither has a finding."]
    lines = []
    for change in result.findings:
        cost_a = units.seconds(change.a_cost_s) if change.a_cost_s is not None else "-"
        cost_b = units.seconds(change.b_cost_s) if change.b_cost_s is not None else "-"
        state = {"new": "new in B", "gone": "gone in B", "both": "in both"}[change.state]
        ranks = ranks_text(change.b_ranks if change.b_ranks is not None else change.a_ranks or (), 0)
        name = style.clean(change.name)
        if len(name) <= NAME_WIDTH:
            lines += style.wrapped(f"{cost_a} -> {cost_b}, {ranks}", label=f"{state:<11}{name:<{NAME_WIDTH}}")
        else:
            lines += style.wrapped(f"{name} {cost_a} -> {cost_b}, {ranks}", label=f"{state:<11}")
    return lines


def _caveats(result: DiagnosisDiff) -> list[str]:
    caveats = list(result.notes)
    if result.basis == "step":
        sides = (("A", result.a), ("B", result.b))
        caveats.append(f"single steps lie apart: {'; '.join(f'{name} {_spread(side)}' for name, side in sides)}")
    caveats.append("one run each, so no verdict: repeat both before you trust a difference of a few percent")
    return caveats


def _spread(side: DiffSide) -> str:
    if side.step_s_min is None or side.step_s_median is None or side.step_s_max is None:
        return "has no steps"
    return (
        f"{units.seconds(side.step_s_min)} to {units.seconds(side.step_s_max)}, median "
        f"{units.seconds(side.step_s_median)} of {side.num_steps}"
    )
