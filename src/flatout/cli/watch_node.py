"""`flatout watch node`: whether this node should be drained, for health checks of schedulers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flatout.cli.durations import Duration, duration
from flatout.cli.output import print_json, text_style
from flatout.cli.paths import path_option
from flatout.cli.values import whole_number
from flatout.inside.protocol import Variable

_MOST_S = 30 * 86_400.0


def watch_node(
    log: Annotated[
        Path | None, path_option(help="Kernel log of the node, as dmesg prints it. [default: that of this machine]")
    ] = None,
    job_gpus: Annotated[
        int | None, whole_number(least=1, help="GPUs of the job on this node, to weigh draining against waiting.")
    ] = None,
    node_gpus: Annotated[int, whole_number(least=1, help="GPUs of the node.")] = 8,
    checkpoint_every: Annotated[
        Duration, duration(least_s=1.0, most_s=_MOST_S, help="Time between two checkpoints of the job.")
    ] = Duration("30m", 1800.0),
    restart: Annotated[
        Duration, duration(least_s=0.0, most_s=_MOST_S, help="Time that the job needs to save and to start again.")
    ] = Duration("5m", 300.0),
    repair: Annotated[
        Duration, duration(least_s=0.0, most_s=_MOST_S, help="Time for which a drained node is not used.")
    ] = Duration("1h", 3600.0),
    history: Annotated[
        Path | None,
        path_option(help="Earlier GPU readings, for rates; this one is added, and the file keeps a week."),
    ] = None,
    ledger: Annotated[
        list[Path] | None,
        path_option(help="Ledger of a job on this node, to count failures that the machine caused. Repeatable."),
    ] = None,
    redfish: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Address of the node's BMC, whose sensors are read by Redfish, e.g. https://bmc-n7. The user and the "
            f"password are in {Variable.REDFISH_USER} and {Variable.REDFISH_PASSWORD}.",
        ),
    ] = None,
    redfish_credentials: Annotated[
        Path | None, path_option(help="File with one line `user:password`, of mode 0600, instead of the variables.")
    ] = None,
    ipmi: Annotated[Path | None, path_option(help="File with the output of `ipmitool sdr elist` on the node.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Judge a node by its Xids, its GPUs' counters and its jobs' failures, and weigh draining it against waiting.

    Exits with 0 if nothing calls for an action, with 1 if a GPU is to be reset or the node drained, and with 2 if the
    log cannot be read, as a custom plugin of Kubernetes' node-problem-detector does. Nothing is drained or reset.

    Example: flatout watch node --job-gpus 64
    """
    from flatout.report.node_health_text import node_health_lines
    from flatout.watch.health.node import NodeQuestion, NodeSources, judge_node

    question = NodeQuestion(
        job_gpus=job_gpus,
        node_gpus=node_gpus,
        checkpoint_interval_s=checkpoint_every.seconds,
        restart_s=restart.seconds,
        repair_s=repair.seconds,
    )
    sources = NodeSources(
        log=log,
        history=history,
        ledgers=tuple(ledger or ()),
        redfish=redfish,
        redfish_credentials=redfish_credentials,
        ipmi=ipmi,
    )
    health = judge_node(sources, question)
    if json:
        print_json("flatout/node-health", health)
    else:
        print("\n".join(node_health_lines(health, text_style())))
    if health.needs_action:
        raise typer.Exit(1)
