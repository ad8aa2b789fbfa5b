"""`flatout track`: a history of results, its changes, and results in the formats of CI systems."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.gate import FAIL, gate_code, gate_option, undecided_option
from flatout.cli.help import Command, Group
from flatout.cli.output import print_json, text_style, typed_command
from flatout.cli.paths import given_path
from flatout.cli.values import amount, whole_number

if TYPE_CHECKING:
    from flatout.records.tracking import Reported, TrackCheck
    from flatout.track.check import CheckRequest

app = typer.Typer(
    cls=Group,
    help="Keep a history of results, and find the commits that made a job faster or slower.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_History = Annotated[
    Path, typer.Argument(metavar="HISTORY", parser=given_path, help="File of results from `flatout track add`.")
]
_Jobs = Annotated[
    list[str] | None, typer.Option("--job", metavar="TEXT", help="Only jobs whose name contains TEXT. Repeatable.")
]
_Machines = Annotated[
    list[str] | None,
    typer.Option("--machine", metavar="TEXT", help="Only machines whose class contains TEXT. Repeatable."),
]
_Measures = Annotated[
    list[str] | None,
    typer.Option("--measure", metavar="NAME", help="Only this measure. Repeatable. [default: all, without parts]"),
]
_Branches = Annotated[
    list[str] | None, typer.Option("--branch", metavar="NAME", help="Only results of this branch. Repeatable.")
]
_Html = Annotated[Path | None, typer.Option(metavar="FILE", readable=False, help="Write the trends as an HTML page.")]
_Force = Annotated[bool, typer.Option("--force", help="Overwrite existing files.")]
_Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@app.command(cls=Command)
def add(
    history: Annotated[
        Path, typer.Argument(metavar="HISTORY", help="File to add to. It is created if it does not exist.")
    ],
    results: Annotated[
        list[Path],
        typer.Argument(
            metavar="RESULT...",
            parser=given_path,
            help="Results that commands printed with --json, or logs of a training.",
        ),
    ],
    job: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the job. [default: the command that was measured]")
    ] = None,
    machine: Annotated[
        str | None, typer.Option(metavar="NAME", help="Class of machine. [default: devices, ranks and hosts]")
    ] = None,
    commit: Annotated[
        str | None, typer.Option(metavar="COMMIT", help="Measured commit. [default: of the working folder]")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Another fact of the environment. Repeatable.")
    ] = None,
    elsewhere: Annotated[
        bool, typer.Option("--elsewhere", help="Measured on another machine: record no facts of this one.")
    ] = False,
) -> None:
    """Add results to a history, each with its job, class of machine, commit and environment.

    Example: flatout track add history.jsonl tuning.json
    """
    from flatout.report.phrases import counted
    from flatout.track.add import AddRequest, add_results
    from flatout.training_log_pipeline import read_result_or_log

    request = AddRequest(job=job, machine=machine, commit=commit, settings=tuple(env or ()), is_elsewhere=elsewhere)
    added, num_known = add_results(history, results, request, read_result_or_log)
    known = f"; {num_known} had been added before" if num_known else ""
    print(f"flatout: added {counted(len(added), 'result')} to {history}{known}", file=sys.stderr)


@app.command(cls=Command)
def show(
    history: _History,
    job: _Jobs = None,
    machine: _Machines = None,
    measure: _Measures = None,
    branch: _Branches = None,
    html: _Html = None,
    force: _Force = False,
    json: _Json = False,
) -> None:
    """Show the trend of each measure, for each job and class of machine.

    Example: flatout track show history.jsonl --html trends.html
    """
    from flatout.track.check import CheckRequest

    request = CheckRequest(
        jobs=tuple(job or ()),
        machines=tuple(machine or ()),
        measures=tuple(measure or ()),
        branches=tuple(branch or ()),
    )
    _report(_checked(history, request), html, force=force, json=json, is_check=False)


@app.command(cls=Command)
def check(
    history: _History,
    job: _Jobs = None,
    machine: _Machines = None,
    measure: _Measures = None,
    branch: _Branches = None,
    gate: Annotated[
        float | None, gate_option("a measure is worse by more than PERCENT, by changes in its last results")
    ] = None,
    undecided: Annotated[str, undecided_option("there are too few results")] = FAIL,
    last: Annotated[
        int, whole_number(least=1, help="With --gate: how many of the latest results of each measure are judged.")
    ] = 20,
    false_alarms: Annotated[
        float,
        amount(
            metavar="PERCENT",
            least=0.001,
            most=50.0,
            unit="%",
            help="Maximum share of checks of unchanged jobs that report a change.",
        ),
    ] = 1.0,
    min_effect: Annotated[
        float, amount(metavar="PERCENT", least=0.01, most=1000.0, unit="%", help="Smallest change to report.")
    ] = 1.0,
    format: Annotated[
        str | None,
        typer.Option(metavar="FORMAT", help="Print as junit, github, markdown, bmf or benchmark-action."),
    ] = None,
    html: _Html = None,
    force: _Force = False,
    json: _Json = False,
) -> None:
    """Find the changes of each measure: between which commits they are, and what else changed there.

    Exits with code 0 whatever it finds. With --gate, exits with code 1 if a measure became worse by more than the gate
    among its last results, and with 3 if a measure has too few results to judge.

    Example: flatout track check history.jsonl --gate 3%
    """
    from flatout.track.check import CheckRequest

    request = CheckRequest(
        rate=false_alarms / 100,
        min_effect=min_effect / 100,
        gate=gate / 100 if gate is not None else None,
        last=last,
        jobs=tuple(job or ()),
        machines=tuple(machine or ()),
        measures=tuple(measure or ()),
        branches=tuple(branch or ()),
    )
    _check_format(format, json=json)
    result = _checked(history, request)
    if format is None:
        _report(result, html, force=force, json=json, is_check=True)
    else:
        from flatout.report.ci_formats.reported import reported_check

        if html is not None:
            _write_page(result, html, force=force)
        _print_reported(reported_check(result), format)
    raise typer.Exit(gate_code(result.gate.outcome if result.gate is not None else None, undecided))


@app.command(cls=Command)
def export(
    result: Annotated[
        Path, typer.Argument(metavar="RESULT", parser=given_path, help="Result that a command printed with --json.")
    ],
    format: Annotated[
        str, typer.Option(metavar="FORMAT", help="Format: junit, github, markdown, bmf or benchmark-action.")
    ],
    job: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the job. [default: the command that was measured]")
    ] = None,
    machine: Annotated[
        str | None, typer.Option(metavar="NAME", help="Class of machine. [default: devices, ranks and hosts]")
    ] = None,
) -> None:
    """Print one result in the format of a CI system, or of a service that keeps results.

    Example: flatout track export comparison.json --format junit
    """
    from flatout.report.ci_formats.reported import reported_result
    from flatout.track.add import AddRequest
    from flatout.track.export import exported_result

    _check_format(format)
    exported = exported_result(result, AddRequest(job=job, machine=machine))
    tracked = exported.result
    reported = reported_result(
        tracked.job, tracked.machine, tracked.measures, verdict=exported.verdict, gate=exported.gate
    )
    _print_reported(reported, format)


def _checked(history: Path, request: CheckRequest) -> TrackCheck:
    from flatout.track.check import check_history
    from flatout.track.history_file import read_history

    return check_history(history, read_history(history), request)


def _report(result: TrackCheck, html: Path | None, *, force: bool, json: bool, is_check: bool) -> None:
    if html is not None:
        _write_page(result, html, force=force)
    if json:
        print_json("flatout/track-check", result)
        return
    from flatout.report.track_text import track_text

    print(track_text(result, style=text_style(), is_check=is_check))


def _write_page(result: TrackCheck, html: Path, *, force: bool) -> None:
    from flatout.report.files import write_new
    from flatout.report.track_html import track_html

    write_new(html, track_html(result, typed_command()), force=force)
    print(f"flatout: wrote {html}", file=sys.stderr)


def _check_format(name: str | None, *, json: bool = False) -> None:
    from flatout.errors import UsageError
    from flatout.report.ci_formats import FORMATS

    if name is not None and name not in FORMATS:
        raise UsageError(f"`--format` must be one of {', '.join(FORMATS)}, but got {name}")
    if name is not None and json:
        raise UsageError("`--format` and `--json` cannot be combined", hint="run the command once for each")


def _print_reported(reported: Reported, format: str) -> None:
    """Print the format. In GitHub Actions, the table is also added to the page of the run."""
    from flatout.report.ci_formats import FORMATS
    from flatout.report.ci_formats.step_summary import add_step_summary

    print(FORMATS[format](reported))
    if format == "github":
        add_step_summary(reported)
