"""`flatout schedule`: many jobs on one cluster."""

from __future__ import annotations

import typer

from flatout.cli import schedule_kubernetes, schedule_replay, schedule_slurm
from flatout.cli.help import Group

app = typer.Typer(
    cls=Group,
    help="Schedule many jobs on one cluster: compare policies on a job history, or control a running scheduler.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
schedule_replay.register(app)
schedule_slurm.register(app)
schedule_kubernetes.register(app)
