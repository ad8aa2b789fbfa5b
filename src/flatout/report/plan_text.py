"""Print a plan, or an evaluation of plans, on a terminal."""

from __future__ import annotations

from flatout.records.plan import Layout, Plan, PlanEvaluation, PlannedLayout, SourceAccuracy
from flatout.report.goal_text import goal_text
from flatout.report.network_text import network_lines
from flatout.report.phrases import counted
from flatout.report.plan_phrases import difference
from flatout.report.plan_placement import placement_lines
from flatout.report.terminal import TextStyle
from flatout.report.text_table import text_table
from flatout.units import num_bytes, number, percent, seconds

# The text omits parts below this share of the step; the JSON has all of them.
SMALLEST_PART = 0.005
_MOST_REASONS = 3
# The frameworks in the column that says which can run a layout.
_SHORT_NAMES = {"megatron": "M", "torchtitan": "T", "deepspeed": "D", "fsdp2": "F", "nemo": "N"}


def layout_text(layout: Layout) -> str:
    """Return the layout as one line: degrees above 1, ZeRO, micro-batch x accumulation, and recomputation.

    For example `TP4+SP PP8x6 DP16 Z1 1x64 full`.
    """
    words = []
    if layout.tp > 1:
        sequence = "+SP" if layout.sequence_parallel else ""
        words.append(f"TP{layout.tp}{sequence}")
    if layout.pp > 1:
        chunks = f"x{layout.vpp}" if layout.vpp > 1 else ""
        schedule = {"zero-bubble": "zb", "gpipe": "gpipe"}.get(layout.schedule, "")
        words.append(f"PP{layout.pp}{chunks}{schedule}")
    if layout.cp > 1:
        words.append(f"CP{layout.cp}")
    if layout.ep > 1:
        words.append(f"EP{layout.ep}")
    if layout.etp > 1:
        words.append(f"ETP{layout.etp}")
    words.append(f"DP{layout.dp}")
    if layout.zero:
        group = f"/{layout.shard}" if layout.shard else ""
        words.append(f"Z{layout.zero}{group}")
    if layout.offload:
        words.append("host")
    words.append(f"{layout.micro_batch}x{layout.num_micro_batches}")
    if layout.recompute != "none":
        words.append(layout.recompute)
    return " ".join(words)


def parameters_text(plan: Plan) -> str:
    """Return the number of parameters, with how many are trained if not all are, and an optimizer other than Adam."""
    words = [f"{number(plan.num_parameters)} parameters"]
    if plan.num_trained_parameters is not None:
        words.append(f"{number(plan.num_trained_parameters)} of them trained")
    if plan.optimizer != "adam":
        words.append(f"optimizer {plan.optimizer}")
    if plan.is_pure_bf16:
        words.append("weights, gradients and moments in bf16 only")
    elif plan.gradients != "fp32":
        words.append(f"gradients in {plan.gradients}")
    return ", ".join(words)


def plan_text(plan: Plan, *, style: TextStyle, next_command: str) -> str:
    """Return the best layouts, the winner's time and memory, why similar layouts lost, and what to measure."""
    best = plan.layouts[0]
    lines = [
        style.bold(f"{plan.workload} ({parameters_text(plan)}) on {plan.cluster}"),
        *style.wrapped(
            f"{number(plan.global_batch)} sequences of {number(plan.seq)} tokens per step, {plan.precision}: "
            f"{number(plan.num_layouts)} valid layouts in {seconds(plan.search_s)}, {number(plan.num_fitting)} fit "
            f"at a risk below {percent(plan.risk)}"
        ),
        *(style.wrapped(excluded_note(plan)) if plan.excluded else []),
        "",
    ]
    rows = [_row(position, layout) for position, layout in enumerate(plan.layouts, 1)]
    header = ["#", "step", "90 % interval", "MFU", "memory", "OOM", "layout"]
    legend = (
        "Layout: degrees, Z for ZeRO (/ its group), micro-batch x accumulation, recomputation. OOM: probability of "
        f"running out of memory, which --risk keeps below {percent(plan.risk)}."
    )
    if plan.target == "any":
        header.append("runs on")
        rows = [[*row, runs_on_text(layout)] for row, layout in zip(rows, plan.layouts, strict=True)]
        legend += f" Runs on: {', '.join(f'{short} {name}' for name, short in _SHORT_NAMES.items())}."
    lines += text_table(header, rows, style=style, flexible=[6])
    lines += style.wrapped(legend)
    lines += ["", style.bold("Step time of the best layout")]
    lines += _parts(best, style)
    lines += ["", style.bold("Memory of the best layout, on the rank that uses the most")]
    for name, value in best.memory_parts_bytes.items():
        if value > SMALLEST_PART * best.memory_bytes:
            lines.append(f"  {name:20s}{num_bytes(value):>10s}")
    lines += ["", style.bold("Why similar layouts lost")]
    for neighbour in plan.neighbours:
        changes = difference(neighbour.layout, best.layout)
        lines += style.wrapped(neighbour.why, indent="  ", label=f"{changes:28s}")
    lines += ["", style.bold("What would help")]
    for name, factor in plan.sensitivity.items():
        resource = name.removesuffix("_x2").replace("_", " ")
        lines.append(f"  twice the {resource:20s}step x {factor:.2f}")
    lines += ["", style.bold("Worth measuring before the run")]
    lines += [f"  {layout_text(layout)}" for layout in plan.worth_measuring]
    lines += style.wrapped(calibration_note(plan))
    if plan.goal is not None:
        lines += ["", *goal_text(plan.goal, style)]
    if plan.network is not None:
        lines += ["", *network_lines(plan.network, style)]
    if plan.placement is not None:
        lines += ["", *placement_lines(plan.placement, style)]
    if next_command:
        lines += ["", f"next: {next_command}"]
    return "\n".join(lines)


def excluded_note(plan: Plan) -> str:
    """Say how many valid layouts the plan's target cannot run, and why; the most frequent reasons, in one sentence."""
    framework, counts = plan.excluded[0].framework, [reason.num_layouts for reason in plan.excluded]
    reasons = [f"{reason.why} ({number(reason.num_layouts)})" for reason in plan.excluded[:_MOST_REASONS]]
    num_others = sum(counts[_MOST_REASONS:])
    if num_others:
        reasons.append(f"has other limits ({number(num_others)})")
    why = ", ".join(reasons)
    if not plan.layouts[0].runs_on:
        return f"No framework is known to run these layouts: {framework} {why}."
    if plan.target == "any":
        return f"Excluded: {number(sum(counts))} layouts that no framework can run. For example, {framework} {why}."
    return f"Excluded: {number(sum(counts))} layouts that {framework} cannot run: it {why}."


def runs_on_text(planned: PlannedLayout) -> str:
    """Return the frameworks that can run the layout, abbreviated, or `none`."""
    return " ".join(_SHORT_NAMES[name] for name in planned.runs_on) or "none"


def calibration_note(plan: Plan) -> str:
    """Say whether the plan was corrected with measured runs."""
    if plan.calibrated_with:
        return f"Corrected with {counted(plan.calibrated_with, 'measured run')} from your cluster."
    return "Not calibrated on your cluster: the best layout's step time can be off by several per cent."


def _row(position: int, planned: PlannedLayout) -> list[str]:
    low, high = planned.step_time_interval_s
    return [
        str(position),
        seconds(planned.step_time_s),
        f"{seconds(low)} to {seconds(high)}",
        percent(planned.mfu),
        num_bytes(planned.memory_bytes),
        percent(planned.out_of_memory_probability),
        layout_text(planned.layout),
    ]


def _parts(planned: PlannedLayout, style: TextStyle) -> list[str]:
    step_s = planned.step_time_s
    shown = [(name, value) for name, value in planned.parts_s.items() if value > SMALLEST_PART * step_s]
    shown.sort(key=lambda part: -part[1])
    lines = []
    for name, value in shown:
        label = name.replace("_", " ")
        share = value / step_s
        lines.append(f"  {label:20s}{seconds(value):>10s}  {style.bar(share, 30)} {percent(share)}")
    return lines


def evaluation_text(evaluation: PlanEvaluation, *, style: TextStyle) -> str:
    """Return the prediction errors by source, then the regrets by group."""
    if evaluation.held_out == "source":
        method = "each source is predicted with constants fitted to the other sources"
    else:
        method = "predicted with the shipped constants"
    num_used, num_read = number(evaluation.rows_used), number(evaluation.rows_read)
    lines = [f"{num_used} of {num_read} rows can be replayed; {method}", ""]
    rows = [
        [
            accuracy.source,
            number(accuracy.rows),
            _share(accuracy.mape),
            _share(accuracy.mape_calibrated),
            _share(accuracy.mape_calibrated_random),
            "-" if accuracy.bias is None else f"{accuracy.bias:+.1%}",
            _share(accuracy.coverage_90),
            _share(accuracy.memory_mape),
            _share(accuracy.called_unsafe),
            _called_safe(accuracy),
        ]
        for accuracy in evaluation.sources
    ]
    rows.append(
        [
            "all, equally weighted",
            "",
            _share(evaluation.mape),
            _share(evaluation.mape_calibrated),
            _share(evaluation.mape_calibrated_random),
            "",
            _share(evaluation.coverage_90),
            _share(evaluation.memory_mape),
            _share(evaluation.called_unsafe),
            "",
        ]
    )
    lines += text_table(
        ["source", "rows", "error", "calibrated", "random", "bias", "in interval", "memory", "unsafe", "OOM as safe"],
        rows,
        style=style,
        flexible=[0],
    )
    lines += style.wrapped(
        "unsafe: share of the rows that ran which the default risk calls unsafe, whatever is recomputed if the row "
        "does not say"
    )
    if evaluation.groups:
        lines += ["", "How much slower the best of the top k predicted layouts is than the best measured layout:"]
        regrets = [
            [
                group.group,
                number(group.n),
                percent(group.regret_top1),
                percent(group.regret_top3),
                percent(group.regret_top5),
                _share(group.regret_top1_gated),
                _share(group.regret_top3_gated),
            ]
            for group in evaluation.groups
        ]
        header = ["group", "layouts", "k = 1", "k = 3", "k = 5", "safe, k = 1", "safe, k = 3"]
        lines += text_table(header, regrets, style=style, flexible=[0])
    return "\n".join(lines)


def _called_safe(accuracy: SourceAccuracy) -> str:
    if not accuracy.out_of_memory_rows:
        return "-"
    return f"{accuracy.out_of_memory_called_safe} of {accuracy.out_of_memory_rows}"


def _share(value: float | None) -> str:
    return "-" if value is None else percent(value)
