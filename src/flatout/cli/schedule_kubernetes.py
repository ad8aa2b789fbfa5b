"""`flatout schedule kubernetes`: teams and quotas as Kueue's queues, and jobs for them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.help import Command
from flatout.cli.paths import path_option


def register(app: typer.Typer) -> None:
    """Add the command to `flatout schedule`."""
    app.command("kubernetes", cls=Command)(kubernetes)


def kubernetes(
    teams: Annotated[
        Path, typer.Argument(metavar="TEAMS.toml", help="TOML file with flavors, teams, quotas and jobs.")
    ],
    kube_nodes: Annotated[
        Path | None,
        path_option(
            help="Output of `kubectl get nodes -o json`: refuse flavors with more than its nodes can allocate."
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write into. [default: print the manifests]")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that differ.")] = False,
) -> None:
    """Write manifests for Kueue, JobSet and Kubeflow Trainer. Nothing is applied.

    Example: flatout schedule kubernetes teams.toml --out manifests
    """
    from flatout.emit.write import write
    from flatout.schedule.live.kueue import manifests
    from flatout.schedule.live.teams import read_teams

    wanted = read_teams(teams)
    if kube_nodes is not None:
        from flatout.schedule.live.flavor_nodes import check_flavors

        check_flavors(wanted, kube_nodes)
    for number, manifest in enumerate(manifests(wanted)):
        if out is not None:
            print(write(manifest, out, force=force))
        else:
            separator = "---\n" if number else ""
            print(f"{separator}# {manifest.path}\n{manifest.text}", end="")
        for note in manifest.notes:
            print(note, file=sys.stderr)
    if out is not None:
        print(f"next: kubectl apply --server-side --dry-run=server -f {out}", file=sys.stderr)
