"""`flatout schedule kubernetes`: teams and quotas as Kueue's queues, and jobs for them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add it to `flatout schedule`."""
    app.command("kubernetes")(kubernetes)


def kubernetes(
    teams: Annotated[Path, typer.Argument(metavar="TEAMS.toml", help="Flavors, teams, quotas, jobs.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the files there.  [default: print them]")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that differ.")] = False,
) -> None:
    """Write manifests for Kueue, JobSet and Kubeflow Trainer. They are written, and applied to no cluster.

    Example: flatout schedule kubernetes teams.toml --out manifests
    """
    from flatout.emit.write import write
    from flatout.schedule.live.kueue import manifests, read_teams

    files = manifests(read_teams(teams))
    for number, emitted in enumerate(files):
        if out is None:
            print("---\n" * bool(number) + f"# {emitted.path}\n{emitted.text}", end="")
        else:
            print(write(emitted, out, force=force))
        for note in emitted.notes:
            print(note, file=sys.stderr)
    if out is not None:
        print(f"next: kubectl apply --server-side --dry-run=server -f {out}", file=sys.stderr)
