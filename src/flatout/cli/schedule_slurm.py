"""`flatout schedule slurm` and `flatout schedule undo`: act on a running Slurm cluster, and revert these actions."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.durations import Duration, duration
from flatout.cli.help import Command
from flatout.cli.output import print_json, typed_command
from flatout.cli.values import amount, whole_number

if TYPE_CHECKING:
    from collections.abc import Callable

    from flatout.schedule.live.controller import Cycle
    from flatout.schedule.live.decide import ControllerSettings

LOG = Path("flatout-out/schedule.jsonl")


def register(app: typer.Typer) -> None:
    """Add both commands to `flatout schedule`."""
    app.command("slurm", cls=Command)(slurm)
    app.command("undo", cls=Command)(undo)


def slurm(
    apply: Annotated[
        bool, typer.Option("--apply", help="Carry out the actions. Without this option, they are only printed.")
    ] = False,
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Order of waiting jobs: priority (Slurm's own), fifo, shortest, qssf or least-attained.",
        ),
    ] = "priority",
    order_by: Annotated[
        str,
        typer.Option(
            metavar="FIELD",
            help="Job field to set for the order: priority, or nice, which keeps Slurm's priority factors.",
        ),
    ] = "priority",
    history: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Output of `sacct -P` for ended jobs, to predict durations. [default: run sacct]"
        ),
    ] = None,
    urgent: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=PATTERN",
            help="Jobs to free GPUs for, e.g. partition=high or comment=*urgent*. Repeatable.",
        ),
    ] = None,
    urgent_partition: Annotated[
        str | None, typer.Option(metavar="NAME", help="Move urgent jobs into this partition.")
    ] = None,
    urgent_qos: Annotated[str | None, typer.Option(metavar="NAME", help="Move urgent jobs into this QOS.")] = None,
    reserve: Annotated[bool, typer.Option("--reserve", help="Reserve the freed nodes for the urgent job.")] = False,
    protect: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=PATTERN",
            help="Jobs never to act on, besides those with flatout-protected in their comment. Repeatable.",
        ),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="KEY=PATTERN", help="Act only on these jobs. Repeatable.")
    ] = None,
    usage: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="Source of GPU utilization, for reclaiming idle GPUs: a file, a recording, or Prometheus at "
            "http://HOST:9090.",
        ),
    ] = None,
    idle_after: Annotated[
        Duration,
        duration(
            least_s=0.6, instead_of="m", help="How long all GPUs of a job must be idle before they are reclaimed."
        ),
    ] = Duration("30m", 1800.0),
    idle_below: Annotated[
        float, amount(metavar="SHARE", most=1.0, help="Utilization below which a GPU is idle.")
    ] = 0.02,
    idle_partition: Annotated[
        str | None, typer.Option(metavar="NAME", help="Move jobs with idle GPUs into this partition.")
    ] = None,
    idle_qos: Annotated[
        str | None, typer.Option(metavar="NAME", help="Move jobs with idle GPUs into this QOS.")
    ] = None,
    drain_after: Annotated[
        float, amount(metavar="N", least=1.0, help="Failures per day after which a node is drained.")
    ] = 3,
    interval: Annotated[Duration, duration(least_s=1.0, help="Polling interval.")] = Duration("30s", 30.0),
    once: Annotated[bool, typer.Option("--once", help="Poll once, and exit.")] = False,
    max_actions_per_hour: Annotated[
        int, whole_number(least=1, help="Maximum actions per hour, also across restarts of the controller.")
    ] = 60,
    timeout: Annotated[Duration, duration(least_s=1.0, help="Timeout of each Slurm command.")] = Duration("30s", 30.0),
    log: Annotated[Path, typer.Option(metavar="FILE", help="Log of all actions, for `flatout schedule undo`.")] = LOG,
    json: Annotated[bool, typer.Option("--json", help="Print each poll as one line of JSON.")] = False,
) -> None:
    """Control a Slurm cluster: job order, urgent jobs, idle GPUs, failing nodes. Changes nothing without --apply.

    Example: flatout schedule slurm --policy shortest --urgent partition=high --once
    """
    from flatout.schedule.live.controller import Controller, named, run
    from flatout.schedule.live.enrich import Enricher, ended_jobs
    from flatout.schedule.live.log import LogFile, read_log
    from flatout.schedule.live.slurm import Slurm

    settings = _settings(
        policy,
        order_by,
        urgent=urgent or [],
        protect=protect or [],
        only=only or [],
        urgent_partition=urgent_partition,
        urgent_qos=urgent_qos,
        reserves_nodes=reserve,
        reclaims_idle=usage is not None,
        idle_partition=idle_partition,
        idle_qos=idle_qos,
        drain_failures=drain_after,
    )
    scheduler = Slurm(timeout_s=timeout.seconds)
    cluster = named(scheduler, interval_s=interval.seconds, once=once, say=_say)
    ended = ended_jobs(history, scheduler, _say) if policy in ("shortest", "qssf") else None
    enrich = Enricher(usage, ended, idle_after_s=idle_after.seconds, idle_below=idle_below, say=_say)
    with ExitStack() as stack:
        log_file = stack.enter_context(LogFile(log, cluster=cluster, command=typed_command())) if apply else None
        controller = Controller(
            scheduler,
            settings,
            log=log_file,
            former=read_log(log, cluster=cluster) if not apply and log.exists() else ((), ()),
            max_actions_per_hour=max_actions_per_hour,
            enrich=enrich,
            say=_say if json else print,
        )
        run(controller, interval_s=interval.seconds, once=once, say=_say, report=_reporter(json=json))
    if not apply:
        _say("nothing was changed; pass --apply to act")
    elif once:
        _say(f"to revert these actions: flatout schedule undo {log} --apply")


def undo(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="Log from `flatout schedule slurm`.", show_default=False)],
    apply: Annotated[
        bool, typer.Option("--apply", help="Carry out the actions. Without this option, they are only printed.")
    ] = False,
    timeout: Annotated[Duration, duration(least_s=1.0, help="Timeout of each Slurm command.")] = Duration("30s", 30.0),
) -> None:
    """Revert the controller's actions, newest first; skip settings that changed since.

    Example: flatout schedule undo flatout-out/schedule.jsonl --apply
    """
    from flatout.schedule.live.log import LogFile, read_log
    from flatout.schedule.live.slurm import Slurm
    from flatout.schedule.live.undo import undo_actions

    scheduler = Slurm(timeout_s=timeout.seconds)
    cluster = scheduler.cluster()
    entries, _ = read_log(log, cluster=cluster)  # a missing log is an error, and is not created
    if apply:
        with LogFile(log, cluster=cluster, command=typed_command()) as log_file:
            undo_actions(log_file.entries, scheduler, log=log_file, say=print)
    else:
        undo_actions(entries, scheduler, log=None, say=print)
        _say("nothing was changed; pass --apply to act")


def _settings(
    policy: str, order_by: str, *, urgent: list[str], protect: list[str], only: list[str], **rest: object
) -> ControllerSettings:
    from flatout.errors import UsageError
    from flatout.schedule.live.decide import ControllerSettings
    from flatout.schedule.live.orders import order_named
    from flatout.schedule.live.selectors import selectors

    if order_by not in ("priority", "nice"):
        raise UsageError(f"--order-by must be priority or nice, but is `{order_by}`")
    return ControllerSettings(
        order_name=policy,
        order=order_named(policy),
        order_by="nice" if order_by == "nice" else "priority",
        urgent=selectors("--urgent", urgent),
        protected=selectors("--protect", protect),
        only=selectors("--only", only),
        **rest,  # type: ignore[arg-type]
    )


def _reporter(*, json: bool) -> Callable[[Cycle], None]:
    """Return a function that prints each poll as JSON if requested, and its summary if that has changed."""
    last_summary = ""

    def report(cycle: Cycle) -> None:
        from flatout.schedule.live.controller import summary

        nonlocal last_summary
        if json:
            print_json("flatout/schedule-cycle", cycle, pretty=False)
        sys.stdout.flush()
        new_summary = summary(cycle)
        if new_summary != last_summary:
            _say(new_summary)
        last_summary = new_summary

    return report


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
