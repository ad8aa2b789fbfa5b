"""Render a plan as one self-contained HTML file: no script, no external reference, under 1 MB for any plan.

In: a `Plan`, its `PlanDetails`, the command line and the next command. Out: a string. Names of models and clusters are
untrusted: the template escapes all texts, and a content policy in the page forbids scripts and external references.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from flatout import __version__, units
from flatout.records.placement import PlannedPlacement
from flatout.records.plan import Plan, PlannedLayout
from flatout.records.plan_details import PlanDetails, StageMemory
from flatout.report.axis import ticks
from flatout.report.command import command_line, quoted
from flatout.report.goal_text import INTERVALS, goal_rows, goal_sentence, option_rows
from flatout.report.network_text import network_sentences
from flatout.report.plan_charts import PipelineChart, beginning_s, front_points, pipeline_chart
from flatout.report.plan_phrases import SENSITIVITY, difference, layout_words, memory_part, schedule_name, step_part
from flatout.report.plan_placement import first_nodes, placement_sentences
from flatout.report.plan_text import calibration_note, excluded_note, layout_text
from flatout.report.template import rendered
from flatout.secrets import masked_command

MOST_STAGES = 64
SMALLEST_DRAWN = 0.0005  # of a bar
AFTER_PIPELINE = ("pipeline_send", "data_parallel", "optimizer", "offload", "jitter")


def plan_html(plan: Plan, details: PlanDetails, command: Sequence[str], *, next_command: Sequence[str]) -> str:
    """Return the page."""
    return rendered("plan.html.j2", page_content(plan, details, command, next_command))


def page_content(
    plan: Plan, details: PlanDetails, command: Sequence[str], next_command: Sequence[str]
) -> dict[str, object]:
    """Return the texts and numbers that the template shows, ready to print."""
    best = plan.layouts[0]
    return {
        "tool_version": __version__,
        "command": command_line(command),
        "facts": [
            f"{_billions(plan.num_parameters)} parameters",
            f"{units.number(plan.global_batch)} sequences of {units.number(plan.seq)} tokens per step",
            plan.precision,
            f"{units.number(plan.num_layouts)} valid layouts, {units.number(plan.num_fitting)} fit at a risk below "
            f"{units.percent(plan.risk)}",
        ],
        "headline": f"{plan.workload} on {plan.cluster}: {units.seconds(best.step_time_s)} per step",
        "answers": _answers(plan, best, details),
        "layout": layout_text(best.layout),
        "layout_words": layout_words(best.layout),
        "goal": _goal(plan),
        "network": [] if plan.network is None else network_sentences(plan.network),
        "placement": _placement(plan.placement),
        "step": _bar(best.parts_s, step_part, units.seconds),
        "pipeline": _pipeline(best, details),
        "memory": _memory(details, plan.risk),
        "front": _front(details),
        "layouts": [_layout_row(position, planned) for position, planned in enumerate(plan.layouts, 1)],
        "has_target": bool(plan.target),
        "excluded": excluded_note(plan) if plan.excluded else "",
        "neighbours": [
            {
                "difference": difference(neighbour.layout, best.layout),
                "layout": layout_text(neighbour.layout),
                "why": neighbour.why,
            }
            for neighbour in plan.neighbours
        ],
        "sensitivity": [_sensitivity(name, factor) for name, factor in plan.sensitivity.items()],
        "worth_measuring": [
            {"layout": layout_text(layout), "words": layout_words(layout)} for layout in plan.worth_measuring
        ],
        "calibrated": calibration_note(plan),
        "next": [quoted(word) for word in masked_command(next_command)],
    }


def _billions(count: int) -> str:
    """Format a count: `70.6 billion`, `345 million`."""
    scale, word = (1e9, "billion") if count >= 1e9 else (1e6, "million")
    return f"{count / scale:,.3g} {word}"


def _answers(plan: Plan, best: PlannedLayout, details: PlanDetails) -> list[dict[str, str]]:
    low, high = best.step_time_interval_s
    return [
        {
            "term": "Step time",
            "big": units.seconds(best.step_time_s),
            "small": f"90 % interval: {units.seconds(low)} to {units.seconds(high)}",
        },
        {
            "term": "Throughput",
            "big": f"{units.number(round(best.tokens_per_s_per_gpu))} tokens/s",
            "small": f"per GPU; MFU {units.percent(best.mfu)}",
        },
        {
            "term": "Memory",
            "big": units.num_bytes(best.memory_bytes),
            "small": f"of {units.num_bytes(details.gpu_memory_bytes)}; probability of running out: "
            f"{units.percent(best.out_of_memory_probability)}",
        },
    ]


def _bar(
    parts: Mapping[str, float], named: Callable[[str], tuple[str, str, str]], written: Callable[[float], str]
) -> dict[str, object]:
    """Return a bar of 100 % with its legend, without negligible parts."""
    total = sum(parts.values())
    rows = []
    for name, value in parts.items():
        if value <= SMALLEST_DRAWN * total:
            continue
        label, css, meaning = named(name)
        share = value / total
        rows.append(
            {
                "css": css,
                "label": label,
                "meaning": meaning,
                "value": written(value),
                "share": units.percent(share),
                "width": f"{share * 100:.2f}",
                "title": f"{label} {units.percent(share)}, {written(value)}",
            }
        )
    return {"parts": rows, "whole": written(total), "spoken": ", ".join(str(row["title"]) for row in rows)}


def _pipeline(best: PlannedLayout, details: PlanDetails) -> dict[str, object]:
    tail = [(step_part(name)[1], best.parts_s.get(name, 0.0)) for name in AFTER_PIPELINE]
    drawn_stages = details.pipeline[:MOST_STAGES]
    chart = pipeline_chart(drawn_stages, tail)
    charts = [_with_ticks(chart)]
    if chart.is_merged:
        beginning = pipeline_chart(drawn_stages, (), until_s=beginning_s(details.pipeline))
        charts.append(_with_ticks(beginning))
    intervals = [interval for stage in details.pipeline for interval in stage]
    end_s = max(stage[-1].end_s for stage in details.pipeline)
    busy_s = sum(interval.end_s - interval.start_s for interval in intervals)
    kinds = {interval.kind for interval in intervals}
    busy_share = busy_s / (end_s * len(details.pipeline))
    return {
        "charts": charts,
        "schedule": schedule_name(best.layout) if best.layout.pp > 1 else "one stage",
        "num_stages": best.layout.pp,
        "num_left_out": max(0, len(details.pipeline) - MOST_STAGES),
        "num_micro_batches": units.number(best.layout.num_micro_batches),
        "vpp": best.layout.vpp,
        "has_weights": "weights" in kinds,
        "idle": units.percent(max(0.0, 1.0 - busy_share)),
        "tail": [
            {"css": step_part(name)[1], "label": step_part(name)[0], "value": units.seconds(best.parts_s[name])}
            for name in AFTER_PIPELINE
            if best.parts_s.get(name, 0.0) > SMALLEST_DRAWN * best.step_time_s
        ],
    }


def _with_ticks(chart: PipelineChart) -> dict[str, object]:
    return {
        "lanes": chart.lanes,
        "is_merged": chart.is_merged,
        "has_edges": chart.has_edges,
        "span": units.seconds(chart.span_s),
        "ticks": [{"left": f"{left * 100:.2f}", "text": text} for left, text in ticks(0.0, chart.span_s)],
    }


def _memory(details: PlanDetails, risk: float) -> dict[str, object]:
    """Return bars on the scale of the GPU's memory, or of the largest stage if that is more."""
    stages = details.stages[:MOST_STAGES]
    largest_bytes = max(sum(stage.parts_bytes.values()) for stage in stages)
    scale = max(details.gpu_memory_bytes, largest_bytes) * 1.04
    used = [name for name in stages[0].parts_bytes if any(stage.parts_bytes[name] > 0 for stage in stages)]
    return {
        "rows": [_stage(stage, scale, len(stages), risk) for stage in stages],
        "limit": f"{details.gpu_memory_bytes / scale * 100:.2f}",
        "gpu": details.gpu,
        "gpu_memory": units.num_bytes(details.gpu_memory_bytes),
        "legend": [{"css": memory_part(n)[1], "label": memory_part(n)[0], "meaning": memory_part(n)[2]} for n in used],
        "num_left_out": max(0, len(details.stages) - MOST_STAGES),
        "table": [
            {
                "label": f"stage {stage.stage}",
                "layers": str(stage.num_layers),
                "values": [units.num_bytes(stage.parts_bytes[name]) for name in used],
                "whole": units.num_bytes(sum(stage.parts_bytes.values())),
                "out": units.percent(stage.out_of_memory_probability),
            }
            for stage in stages
        ],
    }


def _stage(stage: StageMemory, scale: float, num_stages: int, risk: float) -> dict[str, object]:
    total = sum(stage.parts_bytes.values())
    segments = []
    for name, value in stage.parts_bytes.items():
        if value <= SMALLEST_DRAWN * scale:
            continue
        label, css, _ = memory_part(name)
        title = f"{label} {units.num_bytes(value)}"
        segments.append({"css": css, "width": f"{value / total * 100:.2f}", "title": title})
    return {
        "label": f"stage {stage.stage}" if num_stages > 1 else "every rank",
        "layers": f"{stage.num_layers} layers",
        "whole": units.num_bytes(total),
        "out": units.percent(stage.out_of_memory_probability),
        "is_risky": stage.out_of_memory_probability >= risk,
        "width": f"{total / scale * 100:.2f}",
        "segments": segments,
        "spoken": ", ".join(segment["title"] for segment in segments),
    }


def _front(details: PlanDetails) -> dict[str, object] | None:
    if len(details.front) < 2:
        return None
    titles = [
        f"{layout_text(planned.layout)}: {units.seconds(planned.step_time_s)}, {units.num_bytes(planned.memory_bytes)}"
        for planned in details.front
    ]
    points, marks = front_points(details.front, titles)
    most = max(planned.memory_bytes for planned in details.front)
    return {
        "points": points,
        "marks": [
            {"left": left, "text": units.seconds(value)} for left, value in zip(("3", "50", "97"), marks, strict=True)
        ],
        "levels": [{"top": f"{100 - share * 92:.2f}", "text": units.num_bytes(most * share)} for share in (1.0, 0.5)],
        "rows": [
            {
                "layout": layout_text(planned.layout),
                "time": units.seconds(planned.step_time_s),
                "memory": units.num_bytes(planned.memory_bytes),
                "out": units.percent(planned.out_of_memory_probability),
            }
            for planned in details.front
        ],
    }


def _layout_row(position: int, planned: PlannedLayout) -> dict[str, str]:
    low, high = planned.step_time_interval_s
    return {
        "position": str(position),
        "layout": layout_text(planned.layout),
        "time": units.seconds(planned.step_time_s),
        "interval": f"{units.seconds(low)} to {units.seconds(high)}",
        "mfu": units.percent(planned.mfu),
        "memory": units.num_bytes(planned.memory_bytes),
        "out": units.percent(planned.out_of_memory_probability),
        "runs_on": ", ".join(planned.runs_on) or "none",
    }


def _sensitivity(name: str, factor: float) -> dict[str, str]:
    short = name.removesuffix("_x2")
    gain = max(0.0, 1.0 - factor)
    return {
        "label": SENSITIVITY.get(short, short.replace("_", " ")),
        "gain": f"{units.percent(gain)} less" if gain >= 0.0005 else "nothing",
        "width": f"{gain * 100:.2f}",
    }


def _placement(placement: PlannedPlacement | None) -> dict[str, object] | None:
    """Return where the ranks go; None where there is nothing to choose."""
    if placement is None:
        return None
    nodes = first_nodes(placement) if placement.is_changed else []
    return {"sentences": placement_sentences(placement), "nodes": nodes}


def _goal(plan: Plan) -> dict[str, object] | None:
    answer = plan.goal
    if answer is None:
        return None
    return {
        "sentence": goal_sentence(answer),
        "is_reached": answer.is_reached,
        "rows": [{"term": t, "value": v, "interval": i, "source": s} for t, v, i, s in goal_rows(answer)],
        "options": option_rows(answer),
        "notes": (INTERVALS, *answer.notes),
    }
