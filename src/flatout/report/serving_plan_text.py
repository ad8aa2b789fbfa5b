"""Print a plan for serving on a terminal."""

from __future__ import annotations

from flatout.records.serving_plan import ServingPlan
from flatout.report.serving_plan_phrases import (
    CACHE_HEADER,
    OPTION_HEADER,
    accuracy_sentence,
    facts,
    headline,
    legend,
    memory_sentence,
    option_cells,
    refused_words,
)
from flatout.report.terminal import TextStyle
from flatout.report.text_table import text_table
from flatout.units import num_bytes


def serving_plan_text(plan: ServingPlan, *, style: TextStyle, next_command: str) -> str:
    """Return the text."""
    lines = [style.bold(style.clean(headline(plan))), *style.wrapped("; ".join(facts(plan))), ""]
    if plan.options:
        rows = [option_cells(option) for option in plan.options]
        lines += text_table(OPTION_HEADER, rows, style=style, flexible=[1])
        lines += style.wrapped(legend(plan))
        lines += ["", *style.wrapped(memory_sentence(plan)), "", *_cache_lines(plan, style)]
    if plan.refused:
        lines += ["", style.bold("Not offered")]
        for refused in plan.refused:
            label = f"  TP {refused.tensor_parallel}"
            lines += style.wrapped(refused_words(refused, plan), indent="  ", label=f"{label:8s}")
    lines += ["", *style.wrapped(accuracy_sentence(plan.accuracy))]
    lines += ["", f"next: {next_command}"]
    return "\n".join(lines)


def _cache_lines(plan: ServingPlan, style: TextStyle) -> list[str]:
    rows = [
        [f"{need.tokens:,}", num_bytes(need.bytes_per_request), f"{need.most_concurrent:,}"]
        for need in plan.cache_needs
    ]
    best = plan.options[0]
    title = style.bold(f"KV cache by length, in a copy on {best.tensor_parallel}")
    return [title, *text_table(CACHE_HEADER, rows, style=style, flexible=[0])]
