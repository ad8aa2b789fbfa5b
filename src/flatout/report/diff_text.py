"""Print a diff on a terminal: the change from A to B, the parts and findings behind it, and the range of step times.

In: a `DiagnosisDiff` and the two diagnoses. Out: a string of at most 80 columns.
"""

from __future__ import annotations

from collections.abc import Sequence

from flatout import units
from flatout.records.diagnosis import Diagnosis
from flatout.report.comparison_phrases import environment_lines
from flatout.report.diff import STALLS, DiagnosisDiff, DiffSide, PartChange
from flatout.report.parts import part_label
from flatout.report.phrases import counted, job_summary, ranks_text
from flatout.report.scaling_text import scaling_lines, scaling_sentences
from flatout.report.terminal import TextStyle

SMALLEST_CHANGE = 0.001  # of the larger time; the text sums up smaller changes
BAR_WIDTH = 8
NAME_WIDTH = 26


def diff_text(
    result: DiagnosisDiff, a: Diagnosis, b: Diagnosis, *, style: TextStyle | None = None, next_command: str = ""
) -> str:
    """Return the diff for a terminal: times, parts by the size of their change, findings, and ranges of step times."""
    style = style or TextStyle()
    separator = " · " if style.has_unicode else ", "
    head = []
    for name, diagnosis in (("A", a), ("B", b)):
        head += style.wrapped(separator.join(job_summary(diagnosis)), label=f"{name}  ")
    scaling = [] if result.scaling is None else scaling_lines(result.scaling, style)
    sections = [head, _change_lines(result, style), scaling, _recorded_lines(result, style), _part_lines(result, style)]
    sections.append(_finding_lines(result, style))
    sections.append(environment_lines(result.environment, style))
    sections.append([line for note in _caveats(result) for line in style.wrapped(note, label="- ")])
    if next_command:
        sections.append([style.bold(line) for line in style.wrapped(next_command, label="next: ")])
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def _change_lines(result: DiagnosisDiff, style: TextStyle) -> list[str]:
    """Return the change of the recordings, then that of the traced time with the part that explains most of it."""
    lines = []
    if result.scaling is not None:  # a job of another size is neither faster nor slower
        for sentence in scaling_sentences(result.scaling):
            lines += style.wrapped(sentence)
    elif result.basis == "recording":
        lines += style.wrapped(f"{_recording_sentence(result)} {_regular_sentence(result)}".rstrip())
    if result.parts:
        lines += style.wrapped(_traced_sentence(result))
    return [style.bold(line) for line in lines]


def _recording_sentence(result: DiagnosisDiff) -> str:
    """Say how much faster B is over all of its steps."""
    a, b = result.a, result.b
    times = f"{units.seconds(a.time_s)} per step in A and {units.seconds(b.time_s)} in B"
    steps = f"{counted(a.num_recorded_steps or 0, 'step')} of A and {b.num_recorded_steps or 0:,} of B"
    rates = _rates(a.samples_per_s, b.samples_per_s, "samples/s") or _rates(a.tokens_per_s, b.tokens_per_s, "tokens/s")
    if not result.speedup:
        return f"Over all {steps}: {times}."
    change = f"B is {result.speedup:.2f} times as fast as A"
    return f"{change}, one run each. Over all {steps}: {rates}{times}."


def _rates(a_per_s: float | None, b_per_s: float | None, unit: str) -> str:
    if a_per_s is None or b_per_s is None:
        return ""
    return f"{a_per_s:,.0f} {unit} in A and {b_per_s:,.0f} in B, "


def _regular_sentence(result: DiagnosisDiff) -> str:
    a_s, b_s = result.a.regular_step_s, result.b.regular_step_s
    if a_s is None or b_s is None:
        return ""
    return f"The regular step took {units.seconds(a_s)} in A and {units.seconds(b_s)} in B."


def _traced_sentence(result: DiagnosisDiff) -> str:
    """Say how the traced time changed, and the part that explains most of it."""
    what = {"recording": "A traced step", "step": "A step", "window": "The recording"}[result.basis]
    took = f"{what} took {units.seconds(result.a.traced_s)} in A and {units.seconds(result.b.traced_s)} in B"
    basis = "one run each"
    if result.a.traced_s:
        basis = f"B / A = {result.b.traced_s / result.a.traced_s:.3f}, {basis}"
    if result.ratio_range:
        basis += f"; single steps {result.ratio_range[0]:.3f} to {result.ratio_range[1]:.3f}"
    same_direction = [part for part in result.parts if part.change_s * result.traced_change_s > 0]
    if not same_direction:
        return f"{took} ({basis})."
    largest = same_direction[0]
    return (
        f"{took} ({basis}): {_signed(result.traced_change_s)}. The largest part of that is "
        f"{part_label(largest.part)}, {_signed(largest.change_s)}."
    )


def _signed(value_s: float) -> str:
    sign = "+" if value_s > 0 else ""
    return f"{sign}{units.seconds(value_s)}"


def _recorded_lines(result: DiagnosisDiff, style: TextStyle) -> list[str]:
    """Return the regular steps and the stalls of the recordings, per step."""
    if not result.recorded_parts:
        return []
    times = (result.a.time_s, result.b.time_s, result.change_s)
    return _table(result.recorded_parts, "steps and stalls", "recorded step", times, style)


def _part_lines(result: DiagnosisDiff, style: TextStyle) -> list[str]:
    if not result.parts:
        return []
    name = {"recording": "traced step", "step": "step", "window": "window"}[result.basis]
    times = (result.a.traced_s, result.b.traced_s, result.traced_change_s)
    return _table(result.parts, "part", name, times, style)


def _table(
    parts: Sequence[PartChange], head: str, total_name: str, times: tuple[float, float, float], style: TextStyle
) -> list[str]:
    """Return a table of the parts by the size of their change; `times` are the sums of A, of B and of the changes."""
    a_s, b_s, change_s = times
    threshold_s = SMALLEST_CHANGE * max(a_s, b_s)
    shown = [part for part in parts if abs(part.change_s) >= threshold_s and part.change_s]
    largest_s = max((abs(part.change_s) for part in shown), default=0.0)
    lines = [f"{head:<22}{'A':>10}{'share':>8}{'B':>10}{'share':>8}{'change':>11}"]
    for part in shown:
        bar = style.bar(abs(part.change_s) / largest_s, BAR_WIDTH).rstrip("░.")
        label = part_label(part.part.removeprefix(f"{STALLS}: "))
        line = f"{label:<22}{units.seconds(part.a_s):>10}{units.percent(part.a_share):>8}"
        line += f"{units.seconds(part.b_s):>10}{units.percent(part.b_share):>8}{_signed(part.change_s):>11}"
        lines.append(f"{line}  {'-' if part.change_s < 0 else '+'}{bar}")
    rest_s = sum(part.change_s for part in parts if part not in shown)
    lines.append(f"{'all other parts':<22}{'':>36}{_signed(rest_s):>11}")
    total = f"{total_name:<22}{units.seconds(a_s):>10}{'':>8}{units.seconds(b_s):>10}{'':>8}"
    lines.append(f"{total}{_signed(change_s):>11}")
    return lines


def _finding_lines(result: DiagnosisDiff, style: TextStyle) -> list[str]:
    if not result.parts:
        return []
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
    if result.has_same_work is False and result.scaling is None:
        caveats.append("steps of A and B process different numbers of samples: compare rates, not step times")
    if result.basis != "window" and result.parts:
        sides = (("A", result.a), ("B", result.b))
        ranges = "; ".join(f"{name} {_spread(side)}" for name, side in sides)
        caveats.append(f"traced step times range: {ranges}")
    caveats.append("one run each, so there is no verdict: repeat both before you trust a difference of a few percent")
    return caveats


def _spread(side: DiffSide) -> str:
    if side.step_s_min is None or side.step_s_median is None or side.step_s_max is None:
        return "has no steps"
    return (
        f"{units.seconds(side.step_s_min)} to {units.seconds(side.step_s_max)}, median "
        f"{units.seconds(side.step_s_median)} of {side.num_steps}"
    )
