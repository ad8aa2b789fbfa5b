"""`flatout explain`: explain a finding: what it means, why it costs, what to try, and when it is wrong."""

from __future__ import annotations

from typing import Annotated

import typer

from flatout.cli.output import print_json, text_style


def explain(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Finding name or code; omit to list all.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the explanation as JSON.")] = False,
) -> None:
    """Explain a finding: what it means, why it costs time, what to try, and when it is wrong.

    Example: flatout explain straggler
    """
    from flatout.diagnose.explain import Explanations, explanation, listed

    summaries = dict(listed())
    if json:
        names = [name] if name is not None else list(summaries)
        print_json("flatout/explanation", Explanations(findings=tuple(explanation(each) for each in names)))
        return
    style = text_style()
    if name is None:
        for finding, summary in summaries.items():
            print("\n".join(style.wrapped(summary, label=f"{finding:26s}")))
        print(f"\nnext: flatout explain {next(iter(summaries))}")
        return
    explained = explanation(name)
    print("\n".join(style.wrapped(f"{explained.name} ({explained.code}): {explained.summary}")))
    for heading, text in explained.sections.items():
        print(f"\n{heading}")
        print("\n".join(style.wrapped(text, indent="    ")))
