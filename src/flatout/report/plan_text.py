"""A plan, and an evaluation of plans, as text for a terminal."""

from __future__ import annotations

from flatout.records.plan import Layout, Plan, PlanEvaluation, PlannedLayout
from flatout.report.goal_text import goal_text
from flatout.report.phrases import counted
from flatout.report.plan_phrases import difference
from flatout.report.terminal import TextStyle
from flatout.report.text_table import text_table
from flatout.units import num_bytes, number, percent, seconds

# Parts below this share of the step are left out of the text; the JSON has all.
SMALLEST_PART = 0.005


def layout_text(layout: Layout) -> str:
    """One line: `TP4+SP PP8x6 DP16 Z1 1x64 full`: degrees above 1, ZeRO, micro-batch x accumulation, recomputation."""
    words = []
    if layout.tp > 1:
        words.append(f"TP{layout.tp}{'+SP' if layout.sequence_parallel else ''}")
    if layout.pp > 1:
        chunks = f"x{layout.vpp}" if layout.vpp > 1 else ""
        schedule = {"zero-bubble": "zb", "gpipe": "gpipe"}.get(layout.schedule, "")
        words.append(f"PP{layout.pp}{chunks}{schedule}")
    if layout.cp > 1:
        words.append(f"CP{layout.cp}")
    if layout.ep > 1:
        words.append(f"EP{layout.ep}")
    words.append(f"DP{layout.dp}")
    if layout.zero:
        words.append(f"Z{layout.zero}{f'/{layout.shard}' if layout.shard else ''}")
    if layout.offload:
        words.append("host")
    words.append(f"{layout.micro_batch}x{layout.num_micro_batches}")
    if layout.recompute != "none":
        words.append(layout.recompute)
    return " ".join(words)


def plan_text(plan: Plan, *, style: TextStyle, next_command: str) -> str:
    """The best layouts, the winner's time and memory, why its neighbours lost, and what to measure."""
    best = plan.layouts[0]
    lines = [
        style.bold(f"{plan.workload} ({number(plan.num_parameters)} parameters) on {plan.cluster}"),
        *style.wrapped(
            f"{number(plan.global_batch)} sequences of {number(plan.seq)} tokens a step, {plan.precision}: "
            f"{number(plan.num_layouts)} valid layouts in {seconds(plan.search_s)}, {number(plan.num_fitting)} fit"
        ),
        "",
    ]
    rows = [_row(place, one) for place, one in enumerate(plan.layouts, 1)]
    lines += text_table(["#", "step", "nine in ten", "MFU", "memory", "OOM", "layout"], rows, style=style, flexible=[6])
    lines += style.wrapped(
        "Layout: degrees, Z for ZeRO (/ its group), micro-batch x accumulation, what is redone. OOM: probability of "
        "running out of memory."
    )
    lines += ["", style.bold("Where the first one's step goes")]
    lines += _parts(best, style)
    lines += ["", style.bold("Its memory, on the fullest rank")]
    lines += [
        f"  {name:20s}{num_bytes(value):>10s}"
        for name, value in best.memory_parts_bytes.items()
        if value > SMALLEST_PART * best.memory_bytes
    ]
    lines += ["", style.bold("Why its neighbours lost")]
    for one in plan.neighbours:
        lines += style.wrapped(one.why, indent="  ", label=f"{difference(one.layout, best.layout):28s}")
    lines += ["", style.bold("What would help")]
    for name, factor in plan.sensitivity.items():
        what = name.removesuffix("_x2").replace("_", " ")
        lines.append(f"  twice the {what:20s}step x {factor:.2f}")
    lines += ["", style.bold("Worth measuring before the run")]
    lines += [f"  {layout_text(layout)}" for layout in plan.worth_measuring]
    told = (
        f"Corrected with {counted(plan.calibrated_with, 'measured run')} of your own."
        if plan.calibrated_with
        else "The model has not seen your cluster: the first one alone can be several per cent off."
    )
    lines += style.wrapped(told)
    if plan.goal is not None:
        lines += ["", *goal_text(plan.goal, style)]
    lines += ["", f"next: {next_command}"]
    return "\n".join(lines)


def _row(place: int, one: PlannedLayout) -> list[str]:
    low, high = one.step_time_interval_s
    return [
        str(place),
        seconds(one.step_time_s),
        f"{seconds(low)} to {seconds(high)}",
        percent(one.mfu),
        num_bytes(one.memory_bytes),
        percent(one.out_of_memory_probability),
        layout_text(one.layout),
    ]


def _parts(one: PlannedLayout, style: TextStyle) -> list[str]:
    shown = [(name, value) for name, value in one.parts_s.items() if value > SMALLEST_PART * one.step_time_s]
    return [
        f"  {name.replace('_', ' '):20s}{seconds(value):>10s}  {style.bar(value / one.step_time_s, 30)} "
        f"{percent(value / one.step_time_s)}"
        for name, value in sorted(shown, key=lambda each: -each[1])
    ]


def evaluation_text(evaluation: PlanEvaluation, *, style: TextStyle) -> str:
    """Errors by source, then regrets by group."""
    e = evaluation
    held = "each source by constants that saw none of it" if e.held_out == "source" else "by the shipped constants"
    lines = [f"{number(e.rows_used)} of {number(e.rows_read)} rows can be replayed; {held}", ""]
    rows = [
        [
            one.source,
            number(one.rows),
            _share(one.mape),
            _share(one.mape_calibrated),
            _share(one.mape_calibrated_random),
            "-" if one.bias is None else f"{one.bias:+.1%}",
            _share(one.coverage_90),
            _share(one.memory_mape),
            f"{one.out_of_memory_called_safe} of {one.out_of_memory_rows}" if one.out_of_memory_rows else "-",
        ]
        for one in e.sources
    ]
    rows.append(
        [
            "all, weighed alike",
            "",
            _share(e.mape),
            _share(e.mape_calibrated),
            _share(e.mape_calibrated_random),
            "",
            _share(e.coverage_90),
            "",
            "",
        ]
    )
    lines += text_table(
        ["source", "rows", "error", "calibrated", "random", "bias", "in interval", "memory", "OOM as safe"],
        rows,
        style=style,
        flexible=[0],
    )
    if e.groups:
        lines += ["", "How much slower the best of the first k predicted layouts is than the best measured one:"]
        lines += text_table(
            ["group", "layouts", "k = 1", "k = 3", "k = 5"],
            [
                [one.group, number(one.n), *(percent(x) for x in (one.regret_top1, one.regret_top3, one.regret_top5))]
                for one in e.groups
            ],
            style=style,
            flexible=[0],
        )
    return "\n".join(lines)


def _share(value: float | None) -> str:
    return "-" if value is None else percent(value)
