"""`flatout schedule`: many jobs on one cluster."""

from __future__ import annotations

import typer

from flatout.cli import schedule_kubernetes, schedule_slurm

app = typer.Typer(
    help="Many jobs on one cluster: control the scheduler that runs them.", no_args_is_help=True, rich_markup_mode=None
)
schedule_slurm.register(app)
schedule_kubernetes.register(app)
