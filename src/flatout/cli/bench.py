"""`flatout bench`: the rates that this machine achieves, saved as ceilings to compare other measurements with."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.durations import Duration, duration
from flatout.cli.fail_on import exit_if_met, fail_on_option
from flatout.cli.output import print_json, text_style, typed_command
from flatout.cli.paths import path_option
from flatout.cli.values import whole_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flatout.bench_pipeline import BenchRequest
    from flatout.conditions.words import Condition
    from flatout.records.ceilings import Ceilings

_LEAST_S, _MOST_S = 10.0, 86_400.0


def bench(
    path: Annotated[
        Path | None,
        path_option(metavar="DIR", help="Folder on the storage to measure; its files are read."),
    ] = None,
    allow_write: Annotated[
        bool,
        typer.Option("--allow-write", help="Also measure writing, with temporary files that are removed at the end."),
    ] = False,
    time: Annotated[
        Duration, duration(least_s=_LEAST_S, most_s=_MOST_S, help="Time limit for all measurements together.")
    ] = Duration("2m", 120.0),
    ranks: Annotated[
        int | None,
        whole_number(least=1, most=1024, help="Number of processes. [default: one per GPU, or up to 8 on CPUs]"),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Measure only this: matmul, all_reduce, ... Repeatable."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", readable=False, help="Save the ceilings to this file instead of the state folder."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    fail_on: Annotated[list[str] | None, fail_on_option("bench")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the ceilings as JSON.")] = False,
    share: Annotated[
        bool,
        typer.Option(
            "--share", help="Measure what a share of the GPU delivers (MIG, MPS, HAMi, time slices), not the ceilings."
        ),
    ] = False,
    with_command: Annotated[
        str | None,
        typer.Option("--with", metavar="COMMAND", help="With --share, whether two commands gain from sharing."),
    ] = None,
    whole: Annotated[
        Path | None,
        path_option("--whole", help="With --share, ceilings of the whole GPU, from `flatout bench --out`."),
    ] = None,
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND...]", help="With --share --with, the other command.")
    ] = None,
) -> None:
    """Measure achievable rates of this machine: matrix multiplication, memory, links, collectives, storage.

    Example: flatout bench --path /data/train

    Example: flatout bench --share --with "python b.py" -- python a.py
    """
    if share:
        from flatout.cli.bench_share import share as share_gpu

        others = bool(only or fail_on or allow_write or path is not None)
        share_gpu(command or [], with_command, ranks=ranks, whole=whole, out=out, force=force, json=json, others=others)
        return
    from flatout.bench_pipeline import BenchRequest, is_reporting_rank, measure
    from flatout.conditions.words import parse_conditions
    from flatout.errors import UsageError

    if command or with_command is not None or whole is not None:
        raise UsageError("a command, `--with` and `--whole` need `--share`", hint="flatout bench --share --help")
    conditions = parse_conditions("bench", fail_on or ())
    request = BenchRequest(
        time_s=time.seconds,
        path=path,
        allow_write=allow_write,
        num_ranks=ranks,
        only=tuple(only or ()),
        out=out,
        force=force,
    )
    request.check()
    with _Bar(is_quiet=not is_reporting_rank()) as bar:
        ceilings = measure(request, bar.show)
    if ceilings is not None:
        _report(ceilings, request, conditions, json=json)


def _report(ceilings: Ceilings, request: BenchRequest, conditions: Sequence[Condition], *, json: bool) -> None:
    """Save and print the ceilings, and exit with 1 for a wrong result or a condition that is met."""
    from flatout.bench_pipeline import save
    from flatout.conditions.met import met_by_ceilings
    from flatout.errors import OutputError

    target, problem = None, None
    try:
        target = save(ceilings, request, typed_command())
    except OutputError as error:  # print the result first, as it took minutes to measure
        problem = error
    if json:
        from flatout.probe.ceilings.saved import SCHEMA, VERSION

        print_json(SCHEMA, ceilings, version=VERSION)
    else:
        from flatout.report.ceilings_text import ceilings_text

        print(ceilings_text(ceilings, style=text_style()))
    if target is not None:
        print(f"saved the ceilings: {target}", file=sys.stderr)
    if problem is not None:
        sys.stdout.flush()
        raise problem
    if ceilings.wrong:
        raise typer.Exit(1)
    exit_if_met(met_by_ceilings(ceilings, conditions))


class _Bar:
    """A progress bar on standard error, on a terminal only."""

    def __init__(self, *, is_quiet: bool) -> None:
        self._is_quiet = is_quiet or not sys.stderr.isatty()

    def __enter__(self) -> _Bar:
        if not self._is_quiet:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            from flatout.report.streams import bar_stream

            label = TextColumn("{task.description:28}")
            self._progress = Progress(
                label, BarColumn(), TimeElapsedColumn(), console=Console(file=bar_stream()), transient=True
            )
            self._progress.start()
            self._task = self._progress.add_task("starting", total=None)
        return self

    def show(self, done: int, total: int, label: str) -> None:
        """Show that `done` of `total` measurements are done, and which is running now."""
        if not self._is_quiet:
            self._progress.update(self._task, completed=done, total=total, description=label)

    def __exit__(self, *_: object) -> None:
        if not self._is_quiet:
            self._progress.stop()
