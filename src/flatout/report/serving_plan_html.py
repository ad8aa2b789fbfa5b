"""Write a plan for serving as one self-contained HTML file: no script, no external reference."""

from __future__ import annotations

from collections.abc import Sequence

from flatout import __version__
from flatout.records.serving_plan import ServingPlan
from flatout.report.command import command_line
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
from flatout.report.template import rendered
from flatout.units import num_bytes


def serving_plan_html(plan: ServingPlan, command: Sequence[str], *, next_command: str) -> str:
    """Return the page."""
    return rendered("serving_plan.html.j2", page_content(plan, command, next_command))


def page_content(plan: ServingPlan, command: Sequence[str], next_command: str) -> dict[str, object]:
    """Return the texts that the template shows."""
    return {
        "tool_version": __version__,
        "command": command_line(command),
        "next_command": next_command,
        "headline": headline(plan),
        "facts": facts(plan),
        "header": OPTION_HEADER,
        "options": [option_cells(option) for option in plan.options],
        "legend": legend(plan),
        "memory": memory_sentence(plan) if plan.options else "",
        "cache_header": CACHE_HEADER,
        "cache": [
            [f"{need.tokens:,}", num_bytes(need.bytes_per_request), f"{need.most_concurrent:,}"]
            for need in plan.cache_needs
        ],
        "refused": [
            {"name": f"TP {refused.tensor_parallel}", "why": refused_words(refused, plan)} for refused in plan.refused
        ],
        "accuracy": accuracy_sentence(plan.accuracy),
    }
