"""`flatout schedule`: many jobs on one cluster."""

from __future__ import annotations

import typer

from flatout.cli import schedule_kubernetes, schedule_replay, schedule_slurm

app = typer.Typer(
    help="Many jobs on one cluster: what another policy would do, and having it done on the scheduler that runs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
schedule_replay.register(app)
schedule_slurm.register(app)
schedule_kubernetes.register(app)
