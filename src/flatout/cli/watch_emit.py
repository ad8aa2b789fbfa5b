"""`flatout watch emit`: write rules, alerts and dashboards for the metrics of `flatout run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_DEFAULT = Path("flatout-out/watch")


def watch_emit(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="Kind of files: prometheus, grafana, alertmanager, dcgm-job-mapping, node-health or scrape-config.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the files.")] = _DEFAULT,
    address: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST:PORT", help="Exporter to scrape, for scrape-config; repeatable. [default: localhost:9464]"
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that differ.")] = False,
) -> None:
    """Write rules, alerts and dashboards for the metrics of `flatout run --metrics-port`.

    Example: flatout watch emit prometheus
    """
    from flatout.emit.write import write
    from flatout.watch.emit.targets import emitted

    files = emitted(target, address or ())
    for each in files:
        print(write(each, out, force=force))
    for note in files[0].notes:
        print(f"next: {note}")
