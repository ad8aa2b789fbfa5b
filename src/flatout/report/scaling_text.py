"""Word how a job scales from one size to another. In: a `Scaling`. Out: sentences and a table for a terminal."""

from __future__ import annotations

from flatout import units
from flatout.report.parts import part_label
from flatout.report.phrases import counted
from flatout.report.scaling import Scaling
from flatout.report.terminal import TextStyle
from flatout.report.text_table import text_table

SMALLEST_LOSS = 0.005  # of the larger job's step: smaller losses are not listed


def scaling_sentences(scaling: Scaling) -> list[str]:
    """Say which kind of scaling it is, the efficiency, and the part that consumed most of the rest."""
    small, large = scaling.num_ranks
    names = ("A", "B") if scaling.smaller == "A" else ("B", "A")
    sizes = f"{names[1]} has {counted(large, 'rank')} and {names[0]} has {small:,}"
    if scaling.efficiency is None or scaling.per_rank_rates is None:
        return [
            f"{sizes}. The samples per step are unknown, so the scaling efficiency is too: by the step times,"
            f" {units.percent(scaling.if_weak)} if each rank does the same work in both (weak scaling), and"
            f" {units.percent(scaling.if_strong)} if each step does (strong scaling); one run each."
        ]
    kinds = {
        "weak": "each rank does the same work in both: weak scaling",
        "strong": "each step does the same work in both: strong scaling",
        "mixed": f"a step of {names[1]} does {scaling.work_ratio:.2f} times the work",
    }
    before, after = scaling.per_rank_rates
    kind = kinds[scaling.kind or "mixed"]
    return [
        f"{sizes}, and {kind}.",
        f"Scaling efficiency {units.percent(scaling.efficiency)}, one run each: {before:,.4g} {scaling.rate_unit} per"
        f" rank in {names[0]} and {after:,.4g} in {names[1]}.{_rest_sentence(scaling)}",
    ]


def _rest_sentence(scaling: Scaling) -> str:
    """Name the part that consumed most of the rest."""
    lost = [part for part in scaling.lost_parts if part.share >= SMALLEST_LOSS]
    if scaling.efficiency is None or scaling.efficiency >= 1 or not lost:
        return ""
    largest = lost[0]
    return (
        f" Most of the rest is {part_label(largest.part)}: {units.seconds(largest.lost_s)} of each traced step,"
        f" {units.percent(largest.share)}, beyond the ideal."
    )


def scaling_lines(scaling: Scaling, style: TextStyle) -> list[str]:
    """Return the table of the parts that consumed the rest; empty without traced steps."""
    shown = [part for part in scaling.lost_parts if abs(part.share) >= SMALLEST_LOSS]
    if not shown:
        return []
    larger = "B" if scaling.smaller == "A" else "A"
    cells = [
        [
            part_label(part.part),
            units.seconds(part.ideal_s),
            units.seconds(part.actual_s),
            f"{'+' if part.lost_s > 0 else ''}{units.seconds(part.lost_s)}",
            f"{'+' if part.share > 0 else ''}{units.percent(part.share)}",
        ]
        for part in shown
    ]
    header = (f"part of {larger}'s traced step", "ideal", "actual", "lost", "share")
    return text_table(header, cells, style=style, flexible=(0,))
