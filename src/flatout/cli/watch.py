"""`flatout watch`: a live view of a running job."""

from __future__ import annotations

from typing import Annotated

import typer

from flatout.cli.durations import Duration, duration
from flatout.cli.output import print_json, text_style
from flatout.cli.values import whole_number


def watch(
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB]",
            help="Name, PID or folder of a job of `flatout run` or `flatout profile`. [default: the only one]",
            show_default=False,
        ),
    ] = None,
    attach: Annotated[
        int | None,
        whole_number(metavar="PID", least=1, help="Show a process that Flatout did not start, and its ranks."),
    ] = None,
    every: Annotated[
        Duration, duration(least_s=0.1, most_s=3600.0, help="Time between two updates of the screen.")
    ] = Duration("1s", 1.0),
    once: Annotated[bool, typer.Option("--once", help="Print the status once, and exit.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the status once, as JSON.")] = False,
) -> None:
    """Show a running job: the steps, waits and GPU of each rank, and lost ranks.

    Without a terminal it prints the status once.

    Example: flatout watch train.py
    """
    import sys

    from flatout.report.watch_text import watch_lines
    from flatout.watch.view.live import JobView, open_source

    source = open_source(job, attach)
    if json:
        print_json("flatout/watch", source.read())
    elif once or not (sys.stdout.isatty() and sys.stdin.isatty()):
        print("\n".join(watch_lines(source.read(), text_style())))
    else:
        JobView(source).show(every.seconds)
