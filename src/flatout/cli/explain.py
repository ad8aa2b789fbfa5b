"""`flatout explain`: what a finding means, why it costs, what to try, and when it is wrong."""

from __future__ import annotations

from typing import Annotated

import typer


def explain(
    name: Annotated[str | None, typer.Argument(help="Name or code of a finding; all are listed without one.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Explain a finding: what it means, why it costs, what to try, when it is wrong.

    Example: flatout explain straggler
    """
    import sys

    from flatout.diagnose.explain import Explanations, explanation, listed

    if json:
        from flatout.report.json import enveloped_json

        found = [explanation(name)] if name else [explanation(entry) for entry, _ in listed()]
        command = ["flatout", *sys.argv[1:]]
        sys.stdout.write(
            enveloped_json("flatout/explanation", 1, command, Explanations(findings=tuple(found))).decode()
        )
        return
    from flatout.report.terminal import style_of

    style = style_of(sys.stdout)
    if name is None:
        for entry, summary in listed():
            print("\n".join(style.wrapped(summary, label=f"{entry:26s}")))
        print("\nnext: flatout explain " + listed()[0][0])
        return
    found_one = explanation(name)
    print("\n".join(style.wrapped(f"{found_one.name} ({found_one.code}): {found_one.summary}")))
    for heading, text in found_one.sections.items():
        print(f"\n{heading}")
        print("\n".join(style.wrapped(text, indent="    ")))
