"""Compare two diagnoses, part by part and finding by finding.

In: two `Diagnosis`. Out: a `DiagnosisDiff` and its text and JSON (schema `flatout/diff`, version 1). It reports what
changed, by how much, and the range of step times within each run. It gives no verdict: that takes repeated trials.
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
SMALLEST_CHANGE = 0.001  # of the larger time; the text sums up smaller changes
BAR_WIDTH = 8
NAME_WIDTH = 26


class DiffSide(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two runs. Times are means over ranks."""

    num_ranks: int
    num_steps: int
    device: str | None
    time_s: float  # of a mean step, or of the window
    step_s_min: float | None  # shortest step, each step being the mean over ranks; None without steps
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
    a_ranks: tuple[int, ...] | None  # None if the finding is not in A
    b_ranks: tuple[int, ...] | None
    a_cost_s: float | None
    b_cost_s: float | None
    change_s: float  # b - a; a missing finding counts as 0


class DiagnosisDiff(msgspec.Struct, frozen=True, kw_only=True):
    basis: str  # step | window: what the times refer to
    a: DiffSide
    b: DiffSide
    change_s: float  # b - a
    ratio: float | None  # b / a; None if A's time is 0
    ratio_range: tuple[float, float] | None  # B's shortest step / A's longest, and B's longest / A's shortest
    parts: tuple[PartChange, ...]  # largest change first; the changes sum to `change_s`
    findings: tuple[FindingChange, ...]  # largest change first
    notes: tuple[str, ...]  # reasons why the two are hard to compare


def diff(a: Diagnosis, b: Diagnosis) -> DiagnosisDiff:
    """Compare the mean step of A and B, or their complete windows if either has no steps."""
    is_step = all(any(rank.steps for rank in diagnosis.ranks) for diagnosis in (a, b))
    a_parts, b_parts = _mean(a, is_step), _mean(b, is_step)
    a_side, b_side = _side(a, a_parts, is_step), _side(b, b_parts, is_step)
    parts = [
        PartChange(
            part=name,
            a_s=a_s,
            b_s=b_s,
            change_s=b_s - a_s,
            a_share=_ratio(a_s, a_side.time_s) or 0.0,
            b_share=_ratio(b_s, b_side.time_s) or 0.0,
        )
        for name, a_s, b_s in zip(PART_NAMES, a_parts, b_parts, strict=True)
    ]
    return DiagnosisDiff(
        basis="step" if is_step else "window",
        a=a_side,
        b=b_side,
        change_s=b_side.time_s - a_side.time_s,
        ratio=_ratio(b_side.time_s, a_side.time_s),
        ratio_range=_ratio_range(a_side, b_side),
        parts=tuple(sorted(parts, key=lambda part: (-abs(part.change_s), PART_NAMES.index(part.part)))),
        findings=_finding_changes(a, b, is_step),
        notes=_notes(a, b, is_step),
    )


def diff_json(result: DiagnosisDiff, command: Sequence[str], *, pretty: bool = True) -> bytes:
    return enveloped_json(SCHEMA, VERSION, command, result, pretty=pretty)


def _ratio(value: float, base: float) -> float | None:
    return value / base if base else None


def _mean(diagnosis: Diagnosis, is_step: bool) -> tuple[float, ...]:
    """Return the seconds of each part, the mean over the ranks (in steps: over the ranks that have steps)."""
    if is_step:
        values = [mean_parts(rank) for rank in diagnosis.ranks if rank.steps]
    else:
        values = [part_values(rank.parts_s) for rank in diagnosis.ranks]
    if not values:
        return (0.0,) * len(PART_NAMES)
    return tuple(sum(column) / len(values) for column in zip(*values, strict=True))


def _side(diagnosis: Diagnosis, parts_s: tuple[float, ...], is_step: bool) -> DiffSide:
    times: list[float] = []
    if is_step:
        windows_of_step: dict[int, list[float]] = {}
        for rank in diagnosis.ranks:
            for step in rank.steps:
                windows_of_step.setdefault(step.step, []).append(step.window_s)
        times = [sum(windows) / len(windows) for windows in windows_of_step.values()]
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
    """Pair the findings of the same name: first those with the same ranks, then those that share ranks, by cost.

    Findings of different ranks are different findings: a straggler on rank 0 is gone if rank 1 is one now.
    """
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
        for finding in list(left):
            overlapping = next((other for other in right if not set(finding.ranks).isdisjoint(other.ranks)), None)
            if overlapping:
                pairs.append((finding, overlapping))
                left.remove(finding)
                right.remove(overlapping)
        pairs += [(finding, None) for finding in left]
        pairs += [(None, finding) for finding in right]
        changes += [_finding_change(name, pair, a, b, is_step) for pair in pairs]
    return tuple(sorted(changes, key=lambda change: (-abs(change.change_s), change.name)))


def _finding_change(
    name: str, pair: tuple[Finding | None, Finding | None], a: Diagnosis, b: Diagnosis, is_step: bool
) -> FindingChange:
    in_a, in_b = pair
    if in_a is None:
        state = "new"
    elif in_b is None:
        state = "gone"
    else:
        state = "both"
    a_cost_s, b_cost_s = _cost_s(in_a, a, is_step), _cost_s(in_b, b, is_step)
    return FindingChange(
        name=name,
        state=state,
        a_ranks=in_a.ranks if in_a else None,
        b_ranks=in_b.ranks if in_b else None,
        a_cost_s=a_cost_s,
        b_cost_s=b_cost_s,
        change_s=(b_cost_s or 0.0) - (a_cost_s or 0.0),
    )


def _cost_s(finding: Finding | None, diagnosis: Diagnosis, is_step: bool) -> float | None:
    """Return the cost per step, or over the recorded steps if complete windows are compared."""
    if finding is None:
        return None
    if is_step:
        return finding.cost_s_per_step
    return finding.cost_s_per_step * max(1, diagnosis.job.num_steps)


def _notes(a: Diagnosis, b: Diagnosis, is_step: bool) -> tuple[str, ...]:
    notes = []
    sides = (("A", a), ("B", b))
    if not is_step:
        names = " and ".join(name for name, side in sides if not any(rank.steps for rank in side.ranks))
        notes.append(f"no steps are marked in {names}: complete recordings are compared, including the warm-up")
    if a.job.num_ranks != b.job.num_ranks:
        notes.append(f"A has {a.job.num_ranks:,} ranks and B {b.job.num_ranks:,}: times are means over ranks")
    if a.job.device != b.job.device:
        notes.append(f"A ran on {a.job.device or 'an unnamed device'} and B on {b.job.device or 'an unnamed device'}")
    incomplete = " and ".join(name for name, side in sides if side.job.missing_ranks)
    if incomplete:
        notes.append(f"ranks are missing in {incomplete}: waiting may be counted as unsplit communication")
    return tuple(notes)


def diff_text(
    result: DiagnosisDiff, a: Diagnosis, b: Diagnosis, *, style: TextStyle | None = None, next_command: str = ""
) -> str:
    """Return the diff for a terminal: times, parts by the size of their change, findings, and ranges of step times."""
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
    """Return one sentence: the change from A to B, and the part that explains most of it."""
    what = "A step" if result.basis == "step" else "The recording"
    took = f"{what} took {units.seconds(result.a.time_s)} in A and {units.seconds(result.b.time_s)} in B"
    basis = "one run each"
    if result.ratio is not None:
        basis = f"B / A = {result.ratio:.3f}, {basis}"
    if result.ratio_range:
        basis += f"; single steps {result.ratio_range[0]:.3f} to {result.ratio_range[1]:.3f}"
    sentence = f"{took} ({basis})."
    same_direction = [part for part in result.parts if part.change_s * result.change_s > 0]
    if same_direction:
        largest = same_direction[0]
        sentence = (
            f"{took} ({basis}): {_signed(result.change_s)}. The largest part of that is "
            f"{part_label(largest.part)}, {_signed(largest.change_s)}."
        )
    return [style.bold(line) for line in style.wrapped(sentence)]


def _signed(value_s: float) -> str:
    sign = "+" if value_s > 0 else ""
    return f"{sign}{units.seconds(value_s)}"


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
        ranges = "; ".join(f"{name} {_spread(side)}" for name, side in sides)
        caveats.append(f"step times range: {ranges}")
    caveats.append("one run each, so no verdict: repeat both before you trust a difference of a few percent")
    return caveats


def _spread(side: DiffSide) -> str:
    if side.step_s_min is None or side.step_s_median is None or side.step_s_max is None:
        return "has no steps"
    return (
        f"{units.seconds(side.step_s_min)} to {units.seconds(side.step_s_max)}, median "
        f"{units.seconds(side.step_s_median)} of {side.num_steps}"
    )
