"""`flatout schedule replay`: a job history on a cluster, under one or several scheduling policies."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.again import again, has_option

if TYPE_CHECKING:
    from flatout.schedule.cluster import Cluster


def register(app: typer.Typer) -> None:
    app.command("replay")(replay)


def replay(
    jobs: Annotated[
        Path | None, typer.Argument(metavar="JOBS", help="CSV, sacct output, Philly, openb, Helios, Acme or Gavel.")
    ] = None,
    nodes: Annotated[int | None, typer.Option(min=1, max=100_000, metavar="N", help="Nodes, all alike.")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(min=1, max=1024, metavar="G", help="GPUs of each node.")] = None,
    cluster: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A cluster in TOML, or openb's list of nodes (CSV).")
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Once or several times; the first is the baseline.")
    ] = None,
    checkpoint: Annotated[float, typer.Option(min=1, metavar="S", help="Seconds of work between checkpoints.")] = 1800,
    restart: Annotated[
        float, typer.Option(min=0, metavar="S", help="Seconds that a stopped job needs to start.")
    ] = 180,
    failures: Annotated[float, typer.Option(min=0, metavar="R", help="Node failures in 1,000 node-days.")] = 0,
    repair: Annotated[float, typer.Option(min=0, metavar="H", help="Hours that a failed node is away.")] = 4,
    seeds: Annotated[int, typer.Option(min=1, max=1000, metavar="N", help="Draws of the failures.")] = 1,
    starved_after: Annotated[
        float, typer.Option(min=0, metavar="DAYS", help="Waiting at a stretch that starves.")
    ] = 14,
    policies: Annotated[bool, typer.Option("--policies", help="List the policies and exit.")] = False,
    html: Annotated[Path | None, typer.Option(readable=False, help="Write a self-contained HTML report.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the report.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Replay a job history under scheduling policies: completion times, utilization, goodput, fairness, money.

    Example: flatout schedule replay jobs.csv --nodes 64 --gpus-per-node 8 --policy fifo --policy flatout
    """
    if policies:
        _list_policies()
        return
    from flatout.cli.amounts import check_amounts
    from flatout.cli.progress import Progress
    from flatout.errors import UsageError
    from flatout.report.files import check_new
    from flatout.schedule.engine import FailureModel
    from flatout.schedule.jobs import Assumptions
    from flatout.schedule.load.detect import load
    from flatout.schedule.policies.names import check
    from flatout.schedule.replay import replay as run

    if jobs is None:
        raise UsageError(
            "a replay needs a job history", hint="flatout schedule replay jobs.csv --nodes 64 --gpus-per-node 8"
        )
    check_amounts(
        {
            "--checkpoint": checkpoint,
            "--restart": restart,
            "--failures": failures,
            "--repair": repair,
            "--starved-after": starved_after,
        }
    )
    if html is not None:
        check_new(html, force=force)
    machine = _cluster(nodes, gpus_per_node, cluster)
    names = policy or ["fifo"]
    check(names)
    loaded = load(jobs)
    with Progress("replaying") as progress:
        result = run(
            loaded,
            machine,
            names,
            assumptions=Assumptions(checkpoint_s=checkpoint, restart_s=restart),
            failures=FailureModel(per_1000_node_days=failures, repair_s=repair * 3600) if failures else None,
            num_seeds=seeds,
            starved_after_s=starved_after * 86_400,
            progress=lambda done, total: progress.show(max(1, done), total),
        )
    if html is not None:
        from flatout.report.files import write_new
        from flatout.report.replay_html import replay_html

        page = replay_html(result, ["flatout", *sys.argv[1:]], next_command=_next(names))
        write_new(html, page, force=force)
        print(f"wrote {html}", file=sys.stderr)
    if json:
        from flatout.report.json import enveloped_json

        sys.stdout.write(enveloped_json("flatout/replay", 1, ["flatout", *sys.argv[1:]], result).decode())
        return
    from flatout.report.replay_text import replay_text
    from flatout.report.terminal import style_of

    print(replay_text(result, style=style_of(sys.stdout), next_command=_next(names)))


def _cluster(nodes: int | None, gpus_per_node: int | None, path: Path | None) -> Cluster:
    from flatout.errors import UsageError
    from flatout.schedule.cluster import read_cluster, uniform
    from flatout.schedule.load.openb import nodes as read_nodes

    if path is not None:
        if nodes is not None or gpus_per_node is not None:
            raise UsageError("a cluster is either --cluster FILE or --nodes with --gpus-per-node, but got both")
        return read_nodes(path) if path.name.removesuffix(".gz").endswith(".csv") else read_cluster(path)
    if nodes is None or gpus_per_node is None:
        raise UsageError(
            "a replay needs a cluster: --nodes with --gpus-per-node, or --cluster FILE",
            hint="flatout schedule replay jobs.csv --nodes 64 --gpus-per-node 8 --policy flatout",
        )
    return uniform(nodes, gpus_per_node)


def _next(names: list[str]) -> str:
    """The same command with the policy that is still missing, or with failures, or as JSON."""
    words = again(sys.argv[1:])
    if "flatout" not in names:
        words += ["--policy", "flatout"]
    elif not has_option(words, "--failures"):
        words += ["--failures", "2.34", *([] if has_option(words, "--seeds") else ["--seeds", "5"])]
    else:
        words += ["--json"]
    return shlex.join(words)


def _list_policies() -> None:
    from flatout.schedule.policies.names import POLICIES

    for name, policy in POLICIES.items():
        print(f"{name:14s}{policy.summary}")
