"""`flatout profile`: run a command and record it; the diagnosis follows on standard error."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flatout.cli.fail_on import exit_if_met, fail_on_option, finding_conditions
from flatout.cli.output import typed_command
from flatout.cli.values import whole_number

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flatout.api.results import ProfileResult
    from flatout.conditions.words import Condition
    from flatout.records.diagnosis import Diagnosis


def profile(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="Training command, after `--`.", show_default=False)
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the recording. [default: flatout-out/TIME]")
    ] = None,
    steps: Annotated[int, whole_number(least=1, help="Number of steps to trace.")] = 3,
    warmup: Annotated[
        int | None, whole_number(help="Warm-up steps before tracing. [default: until step times are stable]")
    ] = None,
    light: Annotated[
        bool,
        typer.Option("--light", help="Record step times, data loading, memory and the machine's state, but no trace."),
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", readable=False, help="Write the diagnosis as an HTML report.")
    ] = None,
    fail_on: Annotated[list[str] | None, fail_on_option("profile")] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the result as one line of JSON after the job's output.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing recording and report.")] = False,
) -> None:
    """Run a training command, unchanged, and record what slows it down.

    Exits with the command's own code; if that is 0 and a condition of --fail-on holds, with 1.

    Example: flatout profile -- torchrun --standalone --nproc-per-node 2 train.py --epochs 1
    """
    from flatout.api import profile as profile_job
    from flatout.launch import end_like
    from flatout.report.progress import ProgressLine

    conditions = finding_conditions("profile", fail_on or ())
    if html is not None:
        _check_html(html, light=light, force=force)
    with ProgressLine("reading traces") as progress:
        result = profile_job(
            command, out=out, steps=steps, warmup=warmup, light=light, force=force, progress=progress.show, say=_say
        )
    problem = _report(result, html, light=light, json=json)
    if problem is not None:
        _say(f"the recording is in {result.path}, but {problem}")
    sys.stdout.flush()
    if conditions and result.ended.code == 0 and result.is_first:
        exit_if_met(_met(result.diagnosis, conditions))
    raise typer.Exit(end_like(result.ended))


def _met(diagnosis: Diagnosis | None, conditions: Sequence[Condition]) -> list[str]:
    """Return which conditions are met; without a diagnosis all are, because nothing was checked."""
    from flatout.conditions.met import met_by_diagnosis

    if diagnosis is None:
        return ["there is no diagnosis of the recording"]
    return met_by_diagnosis(diagnosis, conditions)


def _check_html(html: Path, *, light: bool, force: bool) -> None:
    """Raise UsageError or OutputError before the job, if there can be no report afterwards."""
    from flatout.errors import UsageError
    from flatout.report.files import check_new

    if light:
        raise UsageError("`--html` needs a diagnosis, which `--light` records no trace for")
    check_new(html, force=force)


def _report(result: ProfileResult, html: Path | None, *, light: bool, json: bool) -> str | None:
    """Print what was recorded, and return what could not be read or printed; None if nothing failed."""
    try:
        if result.recording is not None:
            _print(result, light=light, json=json)
        if html is not None:
            _write_html(html, result)
    except Exception as error:  # noqa: BLE001 - whatever fails here, the job's own exit code counts
        if isinstance(error, OSError) and error.filename is None:
            return f"standard output failed: {error.strerror or error}"
        return f"reading it failed: {error}"
    return None if result.error is None else f"reading it failed: {result.error}"


def _write_html(html: Path, result: ProfileResult) -> None:
    from flatout.report.files import write_new

    if result.diagnosis is None:
        _say(f"{html} was not written: the recording has no diagnosis")
        return
    write_new(html, result.diagnosis.to_html(typed_command()), force=True)
    _say(f"wrote the report: {html}")


def _print(result: ProfileResult, *, light: bool, json: bool) -> None:
    """Print JSON to standard output, and text to standard error, separate from the job's output."""
    from flatout.report.paths import relative_path

    folder = relative_path(result.path)
    for line in result.recorded_lines():
        _say(line)
    if json:
        print(result.to_json(typed_command(), pretty=False).decode())
    elif (text := _text(result)) is not None:
        print(text, file=sys.stderr)
    has_trace = result.recording is not None and bool(result.recording.traced_ranks)
    is_diagnosed = has_trace or result.diagnosis is not None
    has_ranks = result.recording is not None and bool(result.recording.ranks)
    if is_diagnosed and result.error is None:
        page = "" if result.ended.signal is not None else " --html report.html"
        _say_next(f"flatout diagnose {shlex.quote(folder)}{page}")
    elif light and has_ranks:
        _say_next("run the same command without --light to get a trace and its diagnosis")


def _text(result: ProfileResult) -> str | None:
    """Return the diagnosis, or without a trace where the recorded time went; None if neither is known."""
    from flatout.recorded_job_pipeline import recorded_time_of
    from flatout.report.recorded_text import recorded_lines
    from flatout.report.terminal import TextStyle
    from flatout.report.text import diagnosis_text

    if result.diagnosis is not None:
        return diagnosis_text(result.diagnosis, next_command="")
    if result.recording is None or result.recording.traced_ranks:
        return None
    recorded = recorded_time_of(result.recording)
    return None if recorded is None else "\n".join(recorded_lines(recorded, TextStyle()))


def _say(line: str) -> None:
    print(f"flatout: {line}", file=sys.stderr)


def _say_next(text: str) -> None:
    print(f"next: {text}", file=sys.stderr)
