"""`flatout schedule slurm` and `flatout schedule undo`: act on a running Slurm, and put back what was done."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from flatout.schedule.live.controller import Cycle
    from flatout.schedule.live.decide import ControllerSettings
    from flatout.schedule.live.durations import EndedJobs
    from flatout.schedule.live.slurm import Slurm
    from flatout.schedule.live.view import ClusterView

LOG = Path("flatout-out/schedule.jsonl")


def register(app: typer.Typer) -> None:
    """Add the two to `flatout schedule`."""
    app.command("slurm")(slurm)
    app.command("undo")(undo)


def slurm(
    apply: Annotated[bool, typer.Option("--apply", help="Do it. Without: only say what would be done.")] = False,
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="The order of waiting jobs: priority (as Slurm has it), fifo, shortest, qssf or least-attained.",
        ),
    ] = "priority",
    order_by: Annotated[
        str, typer.Option(metavar="WHAT", help="What sets the order: priority, or nice, which lets factors age.")
    ] = "priority",
    history: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="`sacct -P` of ended jobs, for predictions.  [default: ask sacct]"),
    ] = None,
    urgent: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=PATTERN", help="Jobs for which others make room: partition=high, comment=*urgent*."),
    ] = None,
    urgent_partition: Annotated[
        str | None, typer.Option(metavar="NAME", help="Move urgent jobs into this partition.")
    ] = None,
    urgent_qos: Annotated[str | None, typer.Option(metavar="NAME", help="Move urgent jobs into this QOS.")] = None,
    reserve: Annotated[
        bool, typer.Option("--reserve", help="Reserve the nodes on which room is made for the urgent job.")
    ] = False,
    protect: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=PATTERN", help="Jobs never acted upon, as are those with flatout-protected in their comment."
        ),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="KEY=PATTERN", help="The only jobs that may be acted upon.")
    ] = None,
    usage: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="How busy GPUs are: a file, a recording, or Prometheus's http://HOST:9090."
            " Idle ones are reclaimed for jobs that wait.",
        ),
    ] = None,
    idle_after: Annotated[
        float, typer.Option(min=0.01, metavar="MINUTES", help="How long all GPUs of a job must be idle.")
    ] = 30.0,
    idle_below: Annotated[
        float, typer.Option(min=0, max=1, metavar="SHARE", help="How busy an idle GPU may be.")
    ] = 0.02,
    idle_partition: Annotated[
        str | None, typer.Option(metavar="NAME", help="Move jobs with idle GPUs into this partition.")
    ] = None,
    idle_qos: Annotated[
        str | None, typer.Option(metavar="NAME", help="Move jobs with idle GPUs into this QOS.")
    ] = None,
    drain_after: Annotated[
        float, typer.Option(min=1, metavar="N", help="Failures in a day after which a node is drained.")
    ] = 3.0,
    interval: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Between two looks.")] = 30.0,
    once: Annotated[bool, typer.Option("--once", help="Look once.")] = False,
    max_actions_per_hour: Annotated[
        int, typer.Option(min=1, metavar="N", help="The most that is done in an hour; restarts count too.")
    ] = 60,
    timeout: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="For each of Slurm's commands.")] = 30.0,
    log: Annotated[Path, typer.Option(metavar="FILE", help="What was done, for `flatout schedule undo`.")] = LOG,
    json: Annotated[bool, typer.Option("--json", help="Print each look as one line of JSON.")] = False,
) -> None:
    """Control a running Slurm: order, urgent jobs, idle GPUs, failing nodes. Changes nothing without --apply.

    Example: flatout schedule slurm --policy shortest --urgent partition=high --once
    """
    from contextlib import ExitStack

    from flatout.cli.amounts import check_amounts
    from flatout.schedule.live.controller import Controller, named, run
    from flatout.schedule.live.log import LogFile, read_log
    from flatout.schedule.live.slurm import Slurm

    check_amounts(
        {
            "--idle-after": idle_after,
            "--idle-below": idle_below,
            "--drain-after": drain_after,
            "--interval": interval,
            "--timeout": timeout,
        }
    )
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
    scheduler = Slurm(timeout_s=timeout)
    cluster = named(scheduler, interval_s=interval, once=once, say=_say)
    ended = _history(history, scheduler) if policy in ("shortest", "qssf") else None
    with ExitStack() as stack:
        kept = stack.enter_context(LogFile(log, cluster=cluster, command=["flatout", *sys.argv[1:]])) if apply else None
        controller = Controller(
            scheduler,
            settings,
            log=kept,
            former=read_log(log, cluster=cluster) if not apply and log.exists() else ((), ()),
            max_actions_per_hour=max_actions_per_hour,
            enrich=_enricher(usage, idle_after * 60, idle_below, ended),
            say=_say if json else print,
        )
        run(controller, interval_s=interval, once=once, say=_say, report=_reporter(json=json))
    if not apply:
        _say("nothing was changed; --apply does it")
    elif once:
        _say(f"to put back what was done: flatout schedule undo {log} --apply")


def undo(
    log: Annotated[Path, typer.Argument(help="The log of `flatout schedule slurm`.", show_default=False)],
    apply: Annotated[bool, typer.Option("--apply", help="Do it. Without: only say what would be done.")] = False,
    timeout: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="For each of Slurm's commands.")] = 30.0,
) -> None:
    """Put back what a controller did, the last first; what has been changed since is left as it is.

    Example: flatout schedule undo flatout-out/schedule.jsonl --apply
    """
    from flatout.schedule.live.log import LogFile, read_log
    from flatout.schedule.live.slurm import Slurm
    from flatout.schedule.live.undo import put_back

    scheduler = Slurm(timeout_s=timeout)
    cluster = scheduler.cluster()
    entries, _ = read_log(log, cluster=cluster)  # a missing log is an error, and none is made
    if apply:
        with LogFile(log, cluster=cluster, command=["flatout", *sys.argv[1:]]) as kept:
            put_back(kept.entries, scheduler, log=kept, say=print)
    else:
        put_back(entries, scheduler, log=None, say=print)
        _say("nothing was changed; --apply does it")


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


def _history(path: Path | None, scheduler: Slurm) -> EndedJobs | None:
    from flatout.errors import InputError
    from flatout.schedule.live.durations import EndedJobs

    if path is not None:
        try:
            text: str | None = path.read_bytes().decode("utf-8", "replace")
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from None
    else:
        text = scheduler.history()
    if text is None:
        _say("no accounting: time limits stand for durations; --history FILE gives ended jobs")
        return None
    return EndedJobs(text, str(path) if path else "sacct")


def _enricher(
    usage: str | None, grace_s: float, threshold: float, ended: EndedJobs | None
) -> Callable[[ClusterView], ClusterView]:
    """A source of usage that fails is said, and nothing is idle meanwhile."""

    def enrich(view: ClusterView) -> ClusterView:
        import msgspec

        from flatout.errors import InputError
        from flatout.schedule.live.usage import idle_jobs, read_samples

        if ended is not None:
            view = msgspec.structs.replace(view, durations_s=ended.predicted(view.jobs))
        if usage is None:
            return view
        try:
            samples = read_samples(usage, now_unix_s=view.now_unix_s, window_s=grace_s)
        except InputError as error:
            _say(f"no GPUs are reclaimed now: {error}")
            return view
        idle, unseen = idle_jobs(view.jobs, samples, now_unix_s=view.now_unix_s, grace_s=grace_s, threshold=threshold)
        if unseen:
            _say(f"unknown whether their GPUs are idle, for want of samples: {len(unseen)} jobs, as {unseen[0]}")
        return msgspec.structs.replace(view, idle_for_s=idle, unseen_jobs=unseen)

    return enrich


def _reporter(*, json: bool) -> Callable[[Cycle], None]:
    """What is seen is said when it is something new."""
    said = ""

    def report(cycle: Cycle) -> None:
        from flatout.schedule.live.controller import summary

        if json:
            from flatout.report.json import enveloped_json

            command = ["flatout", *sys.argv[1:]]
            sys.stdout.write(enveloped_json("flatout/schedule-cycle", 1, command, cycle, pretty=False).decode() + "\n")
        sys.stdout.flush()
        nonlocal said
        if said != (said := summary(cycle)):
            _say(said)

    return report


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
