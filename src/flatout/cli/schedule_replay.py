"""`flatout schedule replay`: a job history on a cluster, under one or several scheduling policies."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.durations import Duration, duration
from flatout.cli.help import Command
from flatout.cli.next_command import has_option, repeated
from flatout.cli.output import text_style, typed_command
from flatout.cli.paths import path_option
from flatout.cli.values import amount, whole_number

if TYPE_CHECKING:
    from flatout.api.results import ReplayResult

_EXAMPLE = "flatout schedule replay jobs.csv --nodes 64 --gpus-per-node 8"


def register(app: typer.Typer) -> None:
    """Add the command to `flatout schedule`."""
    app.command("replay", cls=Command)(replay)


def replay(
    jobs: Annotated[
        Path | None,
        typer.Argument(
            metavar="JOBS", help="Job history: CSV, sacct output, or a trace of Philly, openb, Helios, Acme or Gavel."
        ),
    ] = None,
    nodes: Annotated[int | None, whole_number(least=1, most=100_000, help="Number of identical nodes.")] = None,
    gpus_per_node: Annotated[int | None, whole_number(least=1, most=1024, help="GPUs per node.")] = None,
    cluster: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Cluster as a TOML file, or openb's node list (CSV).")
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Policy to replay; the first is the baseline. Repeatable. [default: fifo]"),
    ] = None,
    checkpoint: Annotated[Duration, duration(least_s=1.0, help="Work between two checkpoints.")] = Duration(
        "30m", 1800.0
    ),
    restart: Annotated[
        Duration, duration(allows_zero=True, help="Time that a stopped job needs to start again.")
    ] = Duration("3m", 180.0),
    failures: Annotated[float, amount(metavar="RATE", help="Node failures per 1,000 node-days.")] = 0,
    repair: Annotated[
        Duration, duration(allows_zero=True, instead_of="h", help="Time to repair a failed node.")
    ] = Duration("4h", 14_400.0),
    seeds: Annotated[int, whole_number(least=1, most=1000, help="Number of random seeds for the failures.")] = 1,
    starved_after: Annotated[
        Duration,
        duration(
            allows_zero=True,
            instead_of="d",
            help="A job is starved after waiting longer than this without interruption.",
        ),
    ] = Duration("14d", 1_209_600.0),
    sharing: Annotated[
        list[Path] | None,
        path_option("--sharing", help="Result of `flatout bench --share`: what shares of a GPU deliver. Repeatable."),
    ] = None,
    policies: Annotated[bool, typer.Option("--policies", help="List the policies and exit.")] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", readable=False, help="Write a self-contained HTML report.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", readable=False, help="Write a row for each policy as CSV.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Replay a job history under scheduling policies: completion times, utilization, goodput, fairness, money.

    Example: flatout schedule replay jobs.csv --nodes 64 --gpus-per-node 8 --policy fifo --policy flatout
    """
    if policies:
        _list_policies()
        return
    from flatout.api import replay as replay_jobs
    from flatout.errors import UsageError
    from flatout.report.files import check_new
    from flatout.report.progress import ProgressLine

    if jobs is None:
        raise UsageError("a replay needs a job history", hint=_EXAMPLE)
    for target in (html, csv):
        if target is not None:
            check_new(target, force=force)
    names = policy or ["fifo"]
    with ProgressLine("replaying") as progress:
        result = replay_jobs(
            jobs,
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            cluster=cluster,
            policies=names,
            checkpoint_s=checkpoint.seconds,
            restart_s=restart.seconds,
            failures=failures,
            repair_s=repair.seconds,
            seeds=seeds,
            starved_after_s=starved_after.seconds,
            sharing=tuple(sharing or ()),
            progress=lambda done, total: progress.show(max(1, done), total),
        )
    if csv is not None:
        _write_csv(csv, result, force=force)
    _report(result, names, html, force=force, json=json)


def _report(result: ReplayResult, names: list[str], html: Path | None, *, force: bool, json: bool) -> None:
    next_command = _next_command(names)
    if html is not None:
        from flatout.report.files import write_new
        from flatout.report.replay_html import replay_html

        write_new(html, replay_html(result, typed_command(), next_command=next_command), force=force)
        print(f"wrote {html}", file=sys.stderr)
    if json:
        sys.stdout.write(result.to_json(typed_command()).decode())
        return
    from flatout.report.replay_text import replay_text

    print(replay_text(result, style=text_style(), next_command=next_command))


def _write_csv(path: Path, result: ReplayResult, *, force: bool) -> None:
    from flatout.report.csv_rows import csv_text
    from flatout.report.files import write_new

    write_new(path, csv_text(result.policies), force=force)
    print(f"wrote {path}", file=sys.stderr)


def _next_command(names: list[str]) -> str:
    """Return this command with a missing policy added, else with failures, else with JSON output."""
    words = repeated(sys.argv[1:])
    if "flatout" not in names:
        words += ["--policy", "flatout"]
    elif not has_option(words, "--failures"):
        words += ["--failures", "2.34"]
        if not has_option(words, "--seeds"):
            words += ["--seeds", "5"]
    else:
        words += ["--json"]
    return shlex.join(words)


def _list_policies() -> None:
    from flatout.schedule.policies.names import POLICIES

    for name, policy in POLICIES.items():
        print(f"{name:14s}{policy.summary}")
