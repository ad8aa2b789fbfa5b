"""`flatout run`: a command with the changes of a tuning, and else as if Flatout were not there."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer


def run(
    command: Annotated[list[str], typer.Argument(help="The training command, after `--`.", show_default=False)],
    config: Annotated[Path, typer.Option(metavar="FILE", help="What `flatout tune` wrote: tuned.toml.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be started, and start nothing.")] = False,
) -> None:
    """Run a training command with the changes of a tuned.toml. Ends with the command's own exit code.

    Example: flatout run --config tuned.toml -- torchrun --standalone --nproc-per-node 2 train.py
    """
    from flatout.emit import tuned_toml
    from flatout.launch import end_like, run_local, with_inside
    from flatout.trial.command import TRIAL_DIR, describe, keeps_outputs_apart, trial_command
    from flatout.trial.patches import unapplied

    changes = tuned_toml.read(config).change_set()
    made = trial_command(command, changes, Path.cwd())
    environment = with_inside(os.environ) | made.variables
    if dry_run:
        loads = {"PYTHONPATH": environment["PYTHONPATH"]} if changes.patches else {}
        print(describe(loads | made.variables, made.words))
        return
    names = ", ".join(change.name for change in changes.changes)
    print(f"flatout: with {names or 'no change'}", file=sys.stderr, flush=True)
    if keeps_outputs_apart(command):
        print(f"flatout: {TRIAL_DIR} is this folder: {Path.cwd()}", file=sys.stderr, flush=True)
    with TemporaryDirectory(prefix="flatout-") as reports:
        ended = run_local(made.words, environment | ({"FLATOUT_REPORTS": reports} if changes.patches else {}))
        for line in unapplied(Path(reports), changes):
            print(f"flatout: not applied on this host: {line}", file=sys.stderr)
    sys.stdout.flush()
    raise typer.Exit(end_like(ended))
