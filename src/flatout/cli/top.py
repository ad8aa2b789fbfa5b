"""`flatout top`: all running jobs of this host."""

from __future__ import annotations

from typing import Annotated

import typer

from flatout.cli.durations import Duration, duration
from flatout.cli.output import print_json, text_style


def top(
    every: Annotated[
        Duration, duration(least_s=0.1, most_s=3600.0, help="Time between two updates of the screen.")
    ] = Duration("2s", 2.0),
    once: Annotated[bool, typer.Option("--once", help="Print the jobs once, and exit.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the jobs once, as JSON.")] = False,
) -> None:
    """Show all running jobs of `flatout run` and `flatout profile` on this host, one per line.

    Example: flatout top
    """
    import sys

    from flatout.records.watch import TopStatus
    from flatout.report.watch_text import top_lines
    from flatout.watch.view.live import all_statuses, show_all

    if json:
        print_json("flatout/top", TopStatus(jobs=tuple(all_statuses())))
    elif once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        print("\n".join(top_lines(all_statuses(), text_style())))
    else:
        show_all(every.seconds)
